"""The programs of the stack as the nursery runs them: the real ones, with unreliable bells and clocks where asked."""

import random
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, tzinfo
from typing import Any

import uvicorn

import scheduler.__main__
import scheduler.process
import workers.__main__
import workers.process
from core.config import Settings
from repositories.dispatch import Bell
from runtimes.base import Runtime
from scheduler.bells import CeleryBellRinger
from tests.chaos.execlog import ExecLogRuntime

__all__ = ["PROGRAMS"]

OURS = ("api.", "core.", "repositories.", "runtimes.", "scheduler.", "services.", "workers.")


def run_api(chaos: dict[str, Any]) -> None:
    """chaos: port, skew_seconds."""
    shift_clock(chaos.get("skew_seconds", 0.0))
    uvicorn.run(
        "api.app:create_app",
        factory=True,
        host="127.0.0.1",
        port=chaos["port"],
        log_level="warning",
        loop="asyncio",
    )


def run_scheduler(chaos: dict[str, Any]) -> None:
    """chaos: dropped_bells, doubled_bells (shares from 0 to 1), skew_seconds."""
    shift_clock(chaos.get("skew_seconds", 0.0))
    dropped, doubled = chaos.get("dropped_bells", 0.0), chaos.get("doubled_bells", 0.0)

    class UnreliableRinger(CeleryBellRinger):
        def ring(self, bells: Sequence[Bell], *, again: bool = False) -> None:
            kept = [bell for bell in bells if random.random() >= dropped]
            super().ring([*kept, *(bell for bell in kept if random.random() < doubled)], again=again)

    scheduler.process.CeleryBellRinger = UnreliableRinger  # type: ignore[misc]
    scheduler.__main__.main()


def run_worker(chaos: dict[str, Any]) -> None:
    """chaos: exec_log (file), orphan_seconds, skew_seconds."""
    shift_clock(chaos.get("skew_seconds", 0.0))
    build = workers.process.node_runtimes

    def node_runtimes(settings: Settings) -> dict[str, Runtime]:
        runtimes = build(settings)
        if "fake" in runtimes:
            runtimes["fake"] = ExecLogRuntime(chaos["exec_log"], orphan_seconds=chaos["orphan_seconds"])
        return runtimes

    workers.process.node_runtimes = node_runtimes
    workers.__main__.main()


def shift_clock(seconds: float) -> None:
    """Let this process believe in another time of day, as on a host whose clock is wrong. Monotonic time is right."""
    if not seconds:
        return
    real_time, real_time_ns = time.time, time.time_ns
    time.time = lambda: real_time() + seconds
    time.time_ns = lambda: real_time_ns() + int(seconds * 1e9)

    class ShiftedDatetime(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + timedelta(seconds=seconds)

    for name, module in list(sys.modules.items()):
        if name.startswith(OURS) and getattr(module, "datetime", None) is datetime:
            module.datetime = ShiftedDatetime  # type: ignore[attr-defined]


PROGRAMS: dict[str, Callable[[dict[str, Any]], None]] = {
    "api": run_api,
    "scheduler": run_scheduler,
    "worker": run_worker,
}
