from dataclasses import replace

import pytest

from services.jobspec import (
    ExitCodeVerdict,
    Input,
    JobSpec,
    JunitVerdict,
    LogVerdict,
    PatchStep,
    RewardVerdict,
    Step,
    StepRole,
)


def make_job(**changes):
    steps = (
        Step("apply", StepRole.SETUP, patch=PatchStep("/p.diff")),
        Step("verify", StepRole.VERIFY, argv=("true", "x"), env={"A": "b"}),
    )
    inputs = (Input("/p.diff", blob="sha256:" + "0" * 64, before="apply"),)
    return replace(JobSpec(key="k", image="host", steps=steps, inputs=inputs), **changes)


@pytest.mark.parametrize(
    "verdict",
    [
        ExitCodeVerdict(pass_codes=(0, 3)),
        RewardVerdict("/r.json", pass_at=0.5),
        JunitVerdict("/j.xml", require=("a",)),
        LogVerdict("unittest", fail_to_pass=("a",), pass_to_pass=("b", "c")),
    ],
    ids=lambda verdict: verdict.kind,
)
def test_json_round_trip_gives_an_equal_job(verdict):
    job = make_job(verdict=verdict)
    assert JobSpec.from_json(job.to_json()) == job


def test_digest_ignores_names_and_covers_what_decides_the_result():
    job = make_job()
    assert replace(job, key="other", labels={"a": "b"}, priority=9).digest == job.digest
    assert replace(job, env={"A": "1"}).digest != job.digest
    assert replace(job, steps=job.steps[:1]).digest != job.digest
