"""How far an attempt has come, so that another worker can go on with it. Kept with the writes there are anyway."""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from core.jsonb import to_jsonb
from services.jobspec import StepRole
from services.outcomes import StepResult

__all__ = ["Progress", "boot_seconds"]


def boot_seconds() -> float:
    """Seconds since the machine was started, also while it slept: the one clock that its processes share."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Progress:
    """Which step runs, or is about to. step: its place; behind the last: files are being collected.

    timeouts: seconds that the commands of this step and of those before it were given, by which they are found again.
    since: see `boot_seconds`. oom_kills: the sandbox's counter before it; None: there is none. results: of all steps
    before.
    """

    step: int
    timeouts: tuple[float, ...]
    since: float
    oom_kills: int | None
    results: tuple[StepResult, ...]

    @property
    def timeout_seconds(self) -> float:
        """What the command of the step was given."""
        return self.timeouts[self.step]

    @property
    def elapsed_seconds(self) -> float:
        """For how long the step has been running."""
        return max(0.0, boot_seconds() - self.since)

    def to_json(self) -> str:
        """Give JSON text."""
        results = [asdict(result) for result in self.results]
        facts = {"step": self.step, "timeouts": self.timeouts, "since": self.since}
        return to_jsonb({**facts, "oom_kills": self.oom_kills, "results": results})

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Progress":
        """Read what `to_json` wrote. Raises KeyError, TypeError or ValueError on anything else."""
        results = [StepResult(**{**result, "role": StepRole(result["role"])}) for result in value["results"]]
        return cls(**{**value, "timeouts": tuple(value["timeouts"]), "results": tuple(results)})
