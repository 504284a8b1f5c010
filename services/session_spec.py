"""What a live sandbox is made from: immutable, stored as `jobs.spec` of a job of kind `session`."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from services.jobspec import Resources, RetryBudget, Timeouts

__all__ = ["IDLE_ENTRYPOINT", "IDLE_ENTRYPOINTS", "KIND", "SessionSpec", "Volume"]

KIND = "session"

IDLE_ENTRYPOINT = ("tail", "-f", "/dev/null")
"""What clients send to keep a container alive. execd does that already, so it is not started."""

IDLE_ENTRYPOINTS = frozenset({IDLE_ENTRYPOINT, ("sleep", "infinity")})
"""All spellings of that."""


_TIMEOUTS = Timeouts(queue=60.0, start=300.0)
_RETRY = RetryBudget(infra_max=2, task_max=0)


@dataclass(frozen=True, slots=True)
class Volume:
    """A folder of the node in the sandbox: exactly one of host_path and claim.

    claim: a named volume, made if is_made_if_missing, and removed with the sandbox if is_removed_with_sandbox.
    """

    name: str
    mount_path: str
    is_read_only: bool = False
    sub_path: str | None = None
    host_path: str | None = None
    claim: str | None = None
    is_made_if_missing: bool = True
    is_removed_with_sandbox: bool = False


@dataclass(frozen=True, slots=True)
class SessionSpec:
    """A live sandbox. image: as its runtime knows it, `snapshot:NAME` included. open_files: per process.

    entrypoint: started in the background once execd answers; empty: nothing is. platform: as in `linux/amd64`.
    timeouts: only queue and start count. job_workdir: None, but for a member of a pool whose members are for jobs: it
    has the form of a job's sandbox, with this workdir, and is never anybody's live sandbox.
    """

    image: str
    resources: Resources
    open_files: int = 65_536
    entrypoint: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    volumes: tuple[Volume, ...] = ()
    oci_runtime: str | None = None
    platform: str | None = None
    timeouts: Timeouts = _TIMEOUTS
    # For losses before it ran. What has run has a state that nobody can make again, so it is not run anew.
    retry: RetryBudget = _RETRY
    job_workdir: str | None = None

    @property
    def digest(self) -> str:
        """`sha256:<hex>` over the canonical JSON."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return "sha256:" + hashlib.sha256(text.encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Give plain JSON values, as stored in `jobs.spec`."""
        value = {"kind": KIND, **asdict(self)}
        if self.job_workdir is None:
            # As it was before there was the field: the keys of pools that are there stay what they are.
            del value["job_workdir"]
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "SessionSpec":
        """Read what `to_json` wrote. Raises KeyError or TypeError on anything else."""
        rest = dict(value)
        rest.pop("kind")
        return cls(
            resources=Resources(**rest.pop("resources")),
            entrypoint=tuple(rest.pop("entrypoint")),
            volumes=tuple(Volume(**volume) for volume in rest.pop("volumes")),
            timeouts=Timeouts(**rest.pop("timeouts")),
            retry=RetryBudget.from_json(rest.pop("retry")),
            **rest,
        )
