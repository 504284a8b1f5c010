"""Building the daemon from its options, and its life from start to signal."""

import asyncio
import gc
import logging
import os
import resource
import signal
import socket
import stat
import sys
from collections.abc import Coroutine, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import closing
from typing import Any

from execd import kernel
from execd.ahead import Ahead
from execd.envs import initial_environment
from execd.limits import Limits
from execd.options import USAGE, Options, OptionsError, parse_options
from execd.reaper import Reaper
from execd.server import Server
from execd.service import Service

__all__ = ["main", "open_listener", "prepare_once", "run"]

log = logging.getLogger("execd")

_BACKLOG = 512
_OWN_DESCRIPTORS = 64

PREPARE_AFTER_SECONDS = 0.005
"""By then whoever waits for the first sign of life has it, and goes on without us for a moment."""


def main(arguments: Sequence[str]) -> int:
    """Run with the environment this process was started with; see `run`."""
    return run(arguments, initial_environment())


def prepare_once() -> None:
    """Do what a process may do once for all the daemons that it forks."""
    # The level comes with the options.
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    # Python's own SIGPIPE and SIGXFSZ are put back in every child; what else is ignored came from our parent.
    for number in range(1, signal.NSIG):
        if signal.getsignal(number) is signal.SIG_IGN and number not in (signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)


def run(arguments: Sequence[str], environment: Mapping[str, str], ahead: Ahead | None = None) -> int:
    """Run until SIGTERM or SIGINT; sealed, until SIGKILL.

    environment: what commands inherit, and the daemon's own EXECD_ settings. ahead: this process's own, where there was
    time for it; `prepare_once` was called. Returns the exit code: 0, 2 for a wrong command line, 1 if it cannot listen.
    """
    try:
        options = parse_options(arguments, environment)
    except OptionsError as error:
        sys.stderr.write(f"execd: {error}\n{USAGE}")
        return 2
    if options.is_help:
        sys.stdout.write(USAGE)
        return 0
    try:
        # Looked at first: the loop's own descriptors may have the numbers of those that are not there.
        kept = _keep_accounts(options)
        # A fork of a process that has loaded everything has hardly anything to prepare.
        prepares_commands = ahead is None
        if ahead is None:
            prepare_once()
            ahead = Ahead()
    except OSError as error:
        sys.stderr.write(f"execd: {error}\n")
        return 1
    with closing(ahead.loop) as loop:
        # To set it makes every logger forget, and write anew, what it has found out.
        if logging.getLogger().level != options.log_level:
            logging.getLogger().setLevel(options.log_level)
        try:
            _prepare_process(options, kept | ahead.descriptors)
            listener = open_listener(options)
        except OSError as error:
            sys.stderr.write(f"execd: {error}\n")
            return 1
        except ValueError as error:
            sys.stderr.write(f"execd: --rlimit: {error}\n")
            return 1
        if options.log_file is not None and not options.is_sealed:
            _log_to(options.log_file)
        gc.freeze()
        _run_to_the_end(loop, _serve(options, environment, listener, prepares_commands=prepares_commands))
    return 0


def _run_to_the_end(loop: asyncio.AbstractEventLoop, main: Coroutine[Any, Any, None]) -> None:
    """Run it, then end what it has left behind.

    As `asyncio.Runner` does, which begins with more: with contexts, and with a handler for interrupts.
    """
    try:
        loop.run_until_complete(main)
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())


def _log_to(path: str) -> None:
    """Append the log to a regular file from now on; where that cannot be, it stays on standard error."""
    try:
        # Without waiting: a pipe there would hold up the start until someone reads it.
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOCTTY, 0o600)
    except OSError as error:
        log.warning("log_file_not_opened error=%s", error)
        return
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        log.warning("log_file_not_regular path=%s", path)
        return
    stream = os.fdopen(fd, "w", buffering=1, encoding="utf-8", errors="backslashreplace")
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(stream)


def _prepare_process(options: Options, kept: AbstractSet[int]) -> None:
    """Bring limits, signals, descriptors and kernel settings to what children shall inherit.

    kept: descriptors to leave open, besides the listener.
    """
    kernel.set_process_name("execd")
    # Python's handler. Signals left at their default never reach process 1 from inside its own namespace. Unsealed, our
    # own takes this one's place later; from asyncio's it would do so with a long description of that, never shown.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if options.is_sealed and os.getpid() != 1:
        log.warning("sealed_but_not_process_1")
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    listener = set() if options.listen_fd is None else {options.listen_fd}
    kernel.close_other_descriptors(keep=kept | listener)
    for number, value in options.rlimits.items():
        resource.setrlimit(number, (value, value))
    if not kernel.adopt_orphans():
        log.warning("orphans_not_adopted")
    if options.access_token and not kernel.wipe_secret(options.access_token):
        log.warning("access_token_not_wiped")
    # Commands run as the same user: one that writes to our memory could forge the results of all later ones.
    if not kernel.hide_memory():
        log.warning("memory_not_hidden")


def _keep_accounts(options: Options) -> set[int]:
    """Take over the descriptors of `--account`. Raises OSError naming the flag."""
    for name, fd in options.accounts.items():
        try:
            os.set_inheritable(fd, False)
        except OSError as error:
            raise OSError(f"--account: {name}={fd}: {error.strerror}") from error
    return set(options.accounts.values())


def open_listener(options: Options) -> socket.socket:
    """Give the socket to serve on, bound and listening. Raises OSError."""
    if options.listen_fd is not None:
        listener = socket.socket(fileno=options.listen_fd)
        listener.set_inheritable(False)
    else:
        # With the protocol named, or asyncio does not know it for TCP and lets Nagle's algorithm wait for delayed
        # acknowledgements: 40 ms for each command.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((options.host, options.port))
        listener.listen(_BACKLOG)
    listener.setblocking(False)
    return listener


async def _serve(
    options: Options, environment: Mapping[str, str], listener: socket.socket, *, prepares_commands: bool
) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in () if options.is_sealed else (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    reaper = Reaper()
    reaper.start()
    # A command holds up to five descriptors while it starts and three after; they must not run out.
    descriptors = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 4096) - _OWN_DESCRIPTORS
    limits = Limits(connections=max(8, min(256, descriptors // 6)))
    service = Service(options, environment, limits, reaper)
    server = Server(service.routes.handle, limits)
    await server.start(listener)
    if prepares_commands:
        loop.call_later(PREPARE_AFTER_SECONDS, service.prepare)
    log.info("execd_started pid=%d", os.getpid())
    await stop.wait()
    await server.stop(grace_seconds=options.grace_seconds)
    await service.close()
