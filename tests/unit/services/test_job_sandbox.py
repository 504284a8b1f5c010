"""When the sandbox that an attempt would make, and one that runs already, are the same thing."""

from dataclasses import fields, replace
from typing import Any
from uuid import UUID

import pytest

from core.sealing import SecretBox
from repositories.attempts import ClaimedAttempt
from runtimes.base import ImageAuth, ResourceLimits, SandboxSpec, VolumeClaim, VolumeMount
from services.job_sandbox import sandbox_key, to_job_sandbox
from services.jobspec import JobSpec, Resources
from services.session_spec import SessionSpec
from services.session_starting import member_key, to_sandbox_spec

LIMITS = ResourceLimits(1000, 512 << 20, 1 << 30, 256)
PLAIN = SandboxSpec("sm-a-1", "image", LIMITS, workdir="/w")
OTHERS: dict[str, Any] = {
    "image": "other",
    "limits": replace(LIMITS, pids=255),
    "workdir": "/v",
    "is_sealed": False,
    "entrypoint": ("true",),
    "image_auth": ImageAuth("u", "p"),
    "pull": "always",
    "platform": "linux/arm64",
    "volumes": (VolumeMount("v", "/v", claim=VolumeClaim("c")),),
    "oci_runtime": "runsc",
    "is_writable": True,
    "hostname": "h",
}
NOT_IN_KEY: dict[str, Any] = {
    "name": "sm-b-2",
    "env": {"A": "1"},
    "labels": {"a": "b"},
    "ready_seconds": 9.0,
}


def test_every_field_of_a_spec_is_either_in_the_key_or_said_not_to_be():
    assert OTHERS.keys() | NOT_IN_KEY.keys() == {field.name for field in fields(SandboxSpec)}


@pytest.mark.parametrize("name", OTHERS)
def test_what_cannot_be_changed_in_what_runs_is_in_the_key(name):
    assert sandbox_key(replace(PLAIN, **{name: OTHERS[name]})) != sandbox_key(PLAIN)


@pytest.mark.parametrize("name", NOT_IN_KEY)
def test_what_need_not_be_the_same_is_not_in_the_key(name):
    assert sandbox_key(replace(PLAIN, **{name: NOT_IN_KEY[name]})) == sandbox_key(PLAIN)


@pytest.mark.parametrize("field", [field.name for field in fields(ResourceLimits)])
def test_every_limit_is_in_the_key(field):
    more = replace(LIMITS, **{field: getattr(LIMITS, field) + 1})
    assert sandbox_key(replace(PLAIN, limits=more)) != sandbox_key(PLAIN)


def claimed(spec: SessionSpec) -> ClaimedAttempt:
    return ClaimedAttempt(
        UUID(int=1), UUID(int=2), 1, 1, 1, 0, None, "fake", "run", None, 0, 0, None, UUID(int=3), UUID(int=4),
        "sandbox", spec.to_json(), None, 60.0, None, 0.0,
    )  # fmt: skip


def made(spec: SessionSpec) -> SandboxSpec:
    box = SecretBox("a secret of at least thirty-two characters")
    ids = {"node_id": UUID(int=5), "session_id": UUID(int=6)}
    return to_sandbox_spec(claimed(spec), spec, box=box, ready_seconds=7.0, owner="", **ids)


def test_a_member_for_jobs_is_made_as_a_job_that_says_the_same():
    member = SessionSpec("image", Resources(), job_workdir="/workspace")
    job = JobSpec(key="j", image="image", steps=())
    own = to_job_sandbox(
        "sm-x-1", job.image, job.resources, workdir=job.workdir, env={"TRIAL_INDEX": "3"}, labels={}
    )
    assert member_key(claimed(member)) == sandbox_key(made(member)) == sandbox_key(own)
    assert made(member).is_sealed
    assert not made(member).is_writable
    assert made(member).labels["sandmill.trial"] == str(UUID(int=2))
    assert made(member).ready_seconds == 7.0


@pytest.mark.parametrize(
    "spec",
    [
        SessionSpec("image", Resources()),
        SessionSpec("image", Resources(), job_workdir="/workspace", env={"SECRET": "somebody's"}),
    ],
    ids=["live", "with variables"],
)
def test_nothing_else_is_for_jobs(spec):
    assert member_key(claimed(spec)) is None


def test_a_live_sandbox_is_as_open_as_ever():
    assert not made(SessionSpec("image", Resources())).is_sealed
    assert made(SessionSpec("image", Resources())).is_writable
