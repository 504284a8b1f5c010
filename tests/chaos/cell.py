"""One cell of the crash matrix: what is broken, where, how, under which work."""

from dataclasses import dataclass

__all__ = ["Cell"]

_PROGRAMS = {
    "api": "api",
    "dispatch": "scheduler",
    "fanout": "scheduler",
    "progress": "scheduler",
    "reap": "scheduler",
    "sweep": "scheduler",
    "webhook": "scheduler",
}
_NTH = {
    "heartbeat.before": 4,
    "heartbeat.after": 4,
    "dispatch.mid_send": 3,
    "sweep.before_commit": 3,
    "sweep.after_commit": 3,
}
"""Calls to let pass, where the first comes before there is anything to break."""


@dataclass(frozen=True)
class Cell:
    """point: of core.failpoints. action: with its seconds. runtime: of the jobs. schedulers: 1 or 2."""

    point: str
    action: str
    runtime: str
    schedulers: int

    @property
    def program(self) -> str:
        """Which kind of program is broken."""
        return _PROGRAMS.get(self.point.partition(".")[0], "worker")

    @property
    def failpoint(self) -> str:
        """The value of SANDMILL_FAILPOINTS."""
        return f"{self.point}:{self.action}:{_NTH.get(self.point, 1)}"

    def __str__(self) -> str:
        """A name by which it can be repeated."""
        return f"{self.point}/{self.action}/{self.runtime}/{self.schedulers}"
