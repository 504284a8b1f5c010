"""The matrix of a batch, and needs between its jobs, as far as a request alone can tell."""

import pytest

from api.matrix import combinations, count_combinations
from api.validation import JobChecker
from core.errors import PayloadTooLargeError
from services.jobspec import JobSpec
from services.needs import find_cycle
from services.problems import InvalidFieldsError

CHECKER = JobChecker(["unittest"])
STEPS = [{"name": "run", "run": "echo ${matrix.a} ${matrix.b}"}]


def make(**changes):
    job = {"key": "k", "image": "host", "steps": STEPS}
    return {
        "matrix": {"a": ["1", "2"], "b": ["x", "y"]},
        "jobs": [{**job, **changes.pop("job", {})}],
        **changes,
    }


def check(body) -> list[JobSpec]:
    return list(CHECKER.check_batch(body).jobs.specs)


def problems(body) -> dict[str, str]:
    with pytest.raises(InvalidFieldsError) as raised:
        CHECKER.check_batch(body)
    return {problem.field: problem.message for problem in raised.value.problems}


def test_each_job_is_made_for_each_combination_with_key_labels_and_strings():
    specs = check(make(job={"labels": {"team": "t"}, "env": {"A": "a-${matrix.a}"}}, priority=4))
    assert [spec.key for spec in specs] == ["k@1+x", "k@1+y", "k@2+x", "k@2+y"]
    assert [spec.steps[0].run for spec in specs] == ["echo 1 x", "echo 1 y", "echo 2 x", "echo 2 y"]
    assert specs[1].labels == {"team": "t", "a": "1", "b": "y"}
    assert specs[3].env == {"A": "a-2"}
    assert {spec.priority for spec in specs} == {4}


def test_defaults_are_unfolded_as_well_and_numbers_stay_numbers():
    body = make(defaults={"workdir": "/w/${matrix.b}", "timeouts": {"queue": 5}})
    assert {spec.workdir for spec in check(body)} == {"/w/x", "/w/y"}
    assert {spec.timeouts.queue for spec in check(body)} == {5}


def test_without_a_matrix_strings_are_left_alone():
    (spec,) = check({"jobs": make()["jobs"]})
    assert (spec.key, spec.steps[0].run) == ("k", STEPS[0]["run"])


def test_numbers_are_values_and_what_cannot_stand_in_a_key_is_spelled_the_same_every_time():
    specs = check(make(matrix={"a": [1, 2.5], "b": ["a b/c"]}))
    assert [spec.labels["a"] for spec in specs] == ["1", "2.5"]
    assert [spec.key for spec in specs] == ["k@1+a_b_c-539138d5", "k@2.5+a_b_c-539138d5"]


@pytest.mark.parametrize(
    ("changes", "field", "word"),
    [
        ({"job": {"workdir": "/${matrix.c}"}}, "jobs[0].workdir", "has no 'c'; it has: a, b"),
        (
            {"job": {"steps": [{"name": "s", "argv": ["${matrix.}"]}]}},
            "jobs[0].steps[0].argv[0]",
            "has no ''",
        ),
        ({"defaults": {"workdir": "/${matrix.c}"}}, "defaults.workdir", "has no 'c'"),
        ({"job": {"labels": {"a": "own"}}}, "jobs[0].labels.a", "set by the matrix"),
        ({"matrix": {"a": ["1"], "b": []}}, "matrix.b", "must not be empty"),
        ({"matrix": {"a": ["1", 1], "b": ["x"]}}, "matrix.a[1]", "the same as matrix.a[0]"),
        ({"matrix": {"a": [True], "b": ["x"]}}, "matrix.a[0]", "text or a number"),
        ({"matrix": {"a": [None], "b": ["x"]}}, "matrix.a[0]", "text or a number"),
        ({"matrix": {"a": ["\n"], "b": ["x"]}}, "matrix.a[0]", "control"),
        ({"matrix": {"a": ["x" * 256], "b": ["x"]}}, "matrix.a[0]", "255"),
        ({"matrix": {"a b": ["x"]}}, "matrix.a b", "must be a name"),
        ({"matrix": []}, "matrix", "must be an object"),
        ({"matrix": {"a": list(range(101)), "b": list(range(100))}}, "matrix", "10100 jobs; at most 10000"),
        ({"job": {"key": "k" * 199}}, "jobs[0].key", "1 to 200"),
        ({"stop_when": {}}, "stop_when", "at least one"),
        ({"stop_when": {"failed": 0}}, "stop_when.failed", "at least 1"),
        ({"stop_when": {"cancelled": 1}}, "stop_when.cancelled", "unknown field"),
        ({"open": "yes"}, "open", "true or false"),
    ],
)
def test_what_is_wrong_with_a_batch_is_told_with_its_field(changes, field, word):
    found = problems(make(**changes))
    assert word in found[field], found


def test_a_matrix_of_any_size_is_counted_before_it_is_unfolded():
    matrix = {f"n{number}": [str(value) for value in range(10_000)] for number in range(20)}
    assert count_combinations(matrix) == 10**80
    assert "at most 10000" in problems(make(matrix=matrix))["matrix"]


def test_a_small_body_does_not_unfold_into_gigabytes():
    text = "x" * (1 << 20)
    body = make(matrix={"a": list(range(1000))}, job={"steps": [{"name": "s", "run": text}]})
    with pytest.raises(PayloadTooLargeError) as raised:
        CHECKER.check_batch(body)
    assert raised.value.field == "matrix"


def test_ten_thousand_jobs_of_a_matrix_have_keys_of_their_own():
    assert (
        len({c.suffix for c in combinations({"a": [str(n) for n in range(100)], "b": list("0123456789")})})
        == 1000
    )


def jobs(**needs):
    return {
        "jobs": [
            {"key": key, "image": "host", "steps": [{"name": "s", "run": "true"}],
             "needs": [{"job": name} for name in names]}
            for key, names in needs.items()
        ]
    }  # fmt: skip


@pytest.mark.parametrize(
    ("body", "field", "word"),
    [
        (jobs(a=["a"]), "jobs[0].needs[0].job", "cannot need itself"),
        (jobs(a=[], b=["c"]), "jobs[1].needs[0].job", "has no job 'c'"),
        (jobs(a=[], b=["a", "a"]), "jobs[1].needs[1].job", "another of its needs"),
        (jobs(a=["b"], b=["a"]), "jobs[0].needs", "a → b → a"),
        (jobs(x=[], a=["x", "b"], b=["c"], c=["a"]), "jobs[1].needs", "a → b → c → a"),
        (jobs(a=[], b=["a"] * 101), "jobs[1].needs", "at most 100"),
    ],
)
def test_needs_that_cannot_be_met_are_refused_with_their_field(body, field, word):
    assert word in problems(body)[field]


def test_a_lone_job_has_nothing_to_need():
    with pytest.raises(InvalidFieldsError) as raised:
        CHECKER.check_job(jobs(a=["b"])["jobs"][0])
    assert raised.value.field == "needs"


def test_a_need_means_the_job_with_the_same_values_unless_it_names_one_of_them():
    body = {"matrix": {"v": ["1", "2"]}, **jobs(build=[], test=["build"], last=["build@1"])}
    specs = {spec.key: [need.job for need in spec.needs] for spec in check(body)}
    assert specs["test@1"] == ["build@1"]
    assert specs["test@2"] == ["build@2"]
    assert specs["last@2"] == ["build@1"]


def test_a_chain_of_ten_thousand_is_no_circle_and_found_without_recursion():
    chain = {str(n): [str(n + 1)] for n in range(10_000)}
    assert find_cycle(chain) == []
    assert len(find_cycle({**chain, "10000": ["5000"]})) == 5001


def test_only_an_open_batch_may_begin_without_jobs():
    assert "at least one" in problems({"jobs": []})["jobs"]
    assert CHECKER.check_batch({"jobs": [], "open": True}).is_open


def test_appended_jobs_get_the_batch_s_defaults_and_may_need_jobs_that_are_not_here():
    body = {**jobs(b=["a"]), "defaults": {"env": {"B": "2"}}}
    del body["jobs"][0]["image"]
    found = CHECKER.check_append(body, defaults={"image": "host", "env": {"A": "1"}}, priority=9)
    (spec,) = found.specs
    assert (spec.image, spec.env, spec.priority, spec.needs[0].job) == ("host", {"A": "1", "B": "2"}, 9, "a")
