"""The program that a live sandbox is for: whether it began well, how it ended, and the end of what it wrote."""

import signal
from contextlib import closing, suppress

from core.errors import EntrypointFailedError, NotFoundError
from runtimes.base import ENTRYPOINT_KEY, BackgroundRun, Command, Runtime, SandboxHandle

__all__ = ["OUTPUT_BYTES", "check_entrypoint", "describe_end", "read_entrypoint"]

OUTPUT_BYTES = 64 << 10
"""Kept of an entrypoint's output, from its end."""

_GRACE_SECONDS = 0.2
"""A program that is not there, or lacks a module or a file, says so in this time. Longer would hold up good ones."""

_SAID_CHARACTERS = 1000
_SAID_LINES = 20


def read_entrypoint(
    runtime: Runtime,
    handle: SandboxHandle,
    argv: tuple[str, ...],
    *,
    tail_bytes: int,
    wait_seconds: float = 0.0,
) -> BackgroundRun | None:
    """Say how the entrypoint is; waits so long for it to end. None: it was never started, or is forgotten.

    Raises ExecdUnreachableError if the sandbox is gone or stands still.
    """
    with closing(runtime.executions(handle)) as client, suppress(NotFoundError):
        return client.background_run(
            Command(argv=argv), key=ENTRYPOINT_KEY, tail_bytes=tail_bytes, wait_seconds=wait_seconds
        )
    return None


def check_entrypoint(runtime: Runtime, handle: SandboxHandle, argv: tuple[str, ...]) -> None:
    """Return once the entrypoint has run for a moment, or has ended well. Raises EntrypointFailedError."""
    run = read_entrypoint(runtime, handle, argv, tail_bytes=OUTPUT_BYTES, wait_seconds=_GRACE_SECONDS)
    if run is None or run.is_running or run.exit_code == 0:
        return
    said = _last_lines(run.output)
    message = f"the entrypoint {argv[0]!r} {describe_end(run)} at once"
    raise EntrypointFailedError(
        f"{message}; it wrote at last: {said}" if said else f"{message}, without a word",
        output=run.output,
        total_bytes=run.total_bytes,
        ended=describe_end(run),
    )


def describe_end(run: BackgroundRun) -> str:
    """Say how one that does not run any more ended, as in "exited with code 3"."""
    if run.signal is not None:
        name = signal.Signals(run.signal).name if run.signal in set(signal.Signals) else str(run.signal)
        text = f"was ended by the signal {name}"
    elif run.exit_code is not None:
        text = f"exited with code {run.exit_code}"
    else:
        text = "ended"
    return f"{text} (the sandbox ran out of memory)" if run.oom_killed else text


def _last_lines(output: bytes) -> str:
    lines = output[-4 * _SAID_CHARACTERS :].decode("utf-8", "replace").strip().splitlines()
    return "\n".join(lines[-_SAID_LINES:])[-_SAID_CHARACTERS:]
