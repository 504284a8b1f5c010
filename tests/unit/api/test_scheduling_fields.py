"""What a client may say about whose turn it is and where; each refusal names the field."""

import pytest

from api.validation import JobChecker
from services.problems import InvalidFieldsError

JOB = {"key": "a", "image": "host", "steps": [{"name": "run", "run": "true"}]}
CHECKER = JobChecker([])


@pytest.mark.parametrize(
    ("job", "field"),
    [
        ({"resources": {"gpu": -1}}, "resources.gpu"),
        ({"resources": {"gpu": 1000}}, "resources.gpu"),
        ({"resources": {"gpu": 0.5}}, "resources.gpu"),
        ({"queue": "No Blanks"}, "queue"),
        ({"queue": ""}, "queue"),
        ({"preemptible": "yes"}, "preemptible"),
        ({"placement": {"labels": {"zone": 1}}}, "placement.labels.zone"),
        ({"placement": {"node": "a"}}, "placement.node"),
        ({"placement": {"labels": {f"l{n}": "" for n in range(17)}}}, "placement.labels"),
        ({"retry": {"infra": {"avoid_node": 3}}}, "retry.infra.avoid_node"),
    ],
)
def test_bad_field_of_a_job_is_named(job, field):
    with pytest.raises(InvalidFieldsError) as caught:
        CHECKER.check_job({**JOB, **job})
    assert [problem.field for problem in caught.value.problems] == [field]


@pytest.mark.parametrize(
    ("concurrency", "field"),
    [
        ({"max": 0}, "concurrency.max"),
        ({"max": -5}, "concurrency.max"),
        ({"max": 10**9}, "concurrency.max"),
        ({"per_label": {"repo": 0}}, "concurrency.per_label.repo"),
        ({"per_label": {f"l{n}": 1 for n in range(9)}}, "concurrency.per_label"),
        ({"most": 3}, "concurrency.most"),
    ],
)
def test_bad_cap_of_a_batch_is_named(concurrency, field):
    with pytest.raises(InvalidFieldsError) as caught:
        CHECKER.check_batch({"concurrency": concurrency, "jobs": [JOB]})
    assert [problem.field for problem in caught.value.problems] == [field]


def test_whose_turn_it_is_does_not_change_what_a_job_is():
    """Equal digests are the same work."""
    (plain,) = CHECKER.check_job(JOB).jobs.specs
    (other,) = CHECKER.check_job({**JOB, "queue": "evals", "preemptible": True, "priority": 9}).jobs.specs
    assert plain.digest == other.digest
