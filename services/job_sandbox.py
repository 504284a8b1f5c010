"""The sandbox of a job's attempt: what is made, and when another one that runs already is the same thing."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from runtimes.base import SandboxSpec
from services.jobspec import Resources
from services.sandbox_handling import to_limits

__all__ = ["form_key", "sandbox_key", "to_job_sandbox"]

_NOT_IN_KEY = ("name", "labels", "env", "ready_seconds")
"""What two sandboxes need not share. Variables: steps get all of a job's with each command, over the sandbox's own.

ready_seconds: says something of the start alone.
"""


_ANY_NAME = "sm-any"


def to_job_sandbox(
    name: str,
    image: str,
    resources: Resources,
    *,
    workdir: str,
    env: Mapping[str, str],
    labels: Mapping[str, str],
) -> SandboxSpec:
    """Say what is made for an attempt, and for members of pools that are for jobs: sealed, and nothing is started."""
    return SandboxSpec(
        name=name,
        image=image,
        limits=to_limits(resources),
        env=env,
        workdir=workdir,
        labels=labels,
    )


def form_key(image: str, resources: Resources, workdir: str) -> str:
    """Give the `sandbox_key` of what is made for these, without making up a whole attempt."""
    return sandbox_key(to_job_sandbox(_ANY_NAME, image, resources, workdir=workdir, env={}, labels={}))


def sandbox_key(spec: SandboxSpec) -> str:
    """Give a digest of all that cannot be changed once the sandbox runs. The same on both sides: see `to_job_sandbox`.

    A field that SandboxSpec gets later is in it, unless somebody says otherwise here.
    """
    facts: dict[str, Any] = asdict(spec)
    for name in _NOT_IN_KEY:
        del facts[name]
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()
