"""The programs of the stack as the nursery runs them: the real ones, with unreliable bells and clocks where asked."""

import random
import signal
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

__all__ = ["JUMP_SIGNAL", "PROGRAMS"]

JUMP_SIGNAL = signal.SIGUSR2

OURS = ("api.", "core.", "repositories.", "runtimes.", "scheduler.", "services.", "workers.")


def run_api(chaos: dict[str, Any]) -> None:
    """chaos: port, skew_seconds, jump_seconds."""
    shift_clock(chaos.get("skew_seconds", 0.0), jump_seconds=chaos.get("jump_seconds"))
    uvicorn.run(
        "api.app:create_app",
        factory=True,
        host="127.0.0.1",
        port=chaos["port"],
        log_level="warning",
        loop="asyncio",
        http="api.http_protocol:StrictHttpProtocol",
    )


def run_scheduler(chaos: dict[str, Any]) -> None:
    """chaos: dropped_bells, doubled_bells (shares from 0 to 1), skew_seconds, jump_seconds."""
    shift_clock(chaos.get("skew_seconds", 0.0), jump_seconds=chaos.get("jump_seconds"))
    dropped, doubled = chaos.get("dropped_bells", 0.0), chaos.get("doubled_bells", 0.0)

    class UnreliableRinger(CeleryBellRinger):
        def ring(self, bells: Sequence[Bell], *, again: bool = False) -> None:
            kept = [bell for bell in bells if random.random() >= dropped]
            super().ring([*kept, *(bell for bell in kept if random.random() < doubled)], again=again)

    scheduler.process.CeleryBellRinger = UnreliableRinger  # type: ignore[misc]
    scheduler.__main__.main()


def run_worker(chaos: dict[str, Any]) -> None:
    """chaos: exec_log (file), orphan_seconds, skew_seconds, jump_seconds."""
    shift_clock(chaos.get("skew_seconds", 0.0), jump_seconds=chaos.get("jump_seconds"))
    build = workers.process.node_runtimes

    def node_runtimes(settings: Settings) -> dict[str, Runtime]:
        runtimes = build(settings)
        if "fake" in runtimes:
            runtimes["fake"] = ExecLogRuntime(chaos["exec_log"], orphan_seconds=chaos["orphan_seconds"])
        return runtimes

    workers.process.node_runtimes = node_runtimes
    workers.__main__.main()


def shift_clock(seconds: float, *, jump_seconds: float | None = None) -> None:
    """Let this process believe in another time of day, as on a host whose clock is wrong. Monotonic time is right.

    jump_seconds: what the shift becomes with JUMP_SIGNAL, as on a host whose clock somebody sets.
    """
    if not seconds and jump_seconds is None:
        return
    shift = [seconds]
    if jump_seconds is not None:
        signal.signal(JUMP_SIGNAL, lambda *_: shift.__setitem__(0, jump_seconds))
    real_time, real_time_ns = time.time, time.time_ns
    time.time = lambda: real_time() + shift[0]
    time.time_ns = lambda: real_time_ns() + int(shift[0] * 1e9)

    class ShiftedDatetime(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + timedelta(seconds=shift[0])

    for name, module in list(sys.modules.items()):
        if name.startswith(OURS) and getattr(module, "datetime", None) is datetime:
            module.datetime = ShiftedDatetime  # type: ignore[attr-defined]


PROGRAMS: dict[str, Callable[[dict[str, Any]], None]] = {
    "api": run_api,
    "scheduler": run_scheduler,
    "worker": run_worker,
}
