"""Command line and environment of the daemon."""

import logging
import resource
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from execd.accounting import ACCOUNT_NAMES, LIMIT_NAMES

__all__ = ["USAGE", "Options", "OptionsError", "parse_options"]

DEFAULT_PORT: Final = 44772

USAGE: Final = """\
usage: execd [options]

  --host ADDRESS                     IPv4 address to listen on (default 0.0.0.0)
  --port PORT                        TCP port (default 44772)
  --listen-fd N                      serve on this inherited socket, bound and listening, instead of a port
  --access-token TOKEN               demand it in X-EXECD-ACCESS-TOKEN; better given as EXECD_ACCESS_TOKEN
  --rlimit NAME=VALUE                hard and soft limit for execd and all commands, e.g. nofile=1024; repeatable;
                                     VALUE is a number or "unlimited"
  --account NAME=N                   inherited descriptor of the control group file that counts what the sandbox
                                     uses; NAME: memory_usage, memory_events, cpu_usage; repeatable
  --limit NAME=VALUE                 what the sandbox may use; NAME: cpu_millicores, memory_bytes; repeatable
  --sealed                           nothing inside steers execd: commands take no variables from the file that
                                     EXECD_ENVS names, and process 1 ends by SIGKILL from outside only
  --graceful-shutdown-timeout TIME   for running requests after SIGTERM: 500ms, 1s, 2 (default 1s)
  --log-level LEVEL                  debug, info, warning, error, or 0 (silent) to 7 (debug) (default warning)
  --jupyter-host URL                 kernel server of the image; also JUPYTER_HOST
  --jupyter-token TOKEN              of that server; better given as JUPYTER_TOKEN
  --jupyter-idle-poll-interval TIME  between looks at a kernel (default 100ms); also EXECD_JUPYTER_IDLE_POLL_INTERVAL
  --help

environment:
  EXECD_ACCESS_TOKEN, EXECD_API_GRACE_SHUTDOWN   as --access-token and --graceful-shutdown-timeout
  EXECD_LOG_FILE                     append the log to this file; without effect with --sealed
  EXECD_ALLOWED_ORIGINS              origins, with commas between, whose pages may open terminals; * for all
"""

_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


class OptionsError(ValueError):
    """The command line is wrong; the text says how."""


@dataclass(slots=True)
class Options:
    """What the daemon was told. rlimits: resource number to value. accounts, limits: see `execd.accounting`.

    log_file: append the log there instead of standard error. allowed_origins: whose pages may open terminals.
    jupyter_…: the kernel server of the image, for the routes that run code.
    """

    host: str = "0.0.0.0"  # noqa: S104  # the sandbox's own namespace; the protocol fixes it
    port: int = DEFAULT_PORT
    listen_fd: int | None = None
    access_token: str | None = None
    rlimits: dict[int, int] = field(default_factory=dict)
    accounts: dict[str, int] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=dict)
    grace_seconds: float = 1.0
    log_level: int = logging.WARNING
    log_file: str | None = None
    allowed_origins: frozenset[str] = frozenset()
    jupyter_host: str | None = None
    jupyter_token: str | None = None
    jupyter_idle_poll_seconds: float = 0.1
    is_sealed: bool = False
    is_help: bool = False


def parse_options(arguments: Sequence[str], environment: Mapping[str, str]) -> Options:
    """Read flags (`--name value` or `--name=value`); they override the environment. Raises OptionsError."""
    options = Options()
    for name, take in _VARIABLES.items():
        if environment.get(name):
            take(options, name, environment[name])
    # By hand: argparse would add a tenth to the start of every sandbox.
    rest = list(arguments)
    while rest:
        name, has_value, value = rest.pop(0).partition("=")
        if name in ("-h", "--help"):
            options.is_help = True
            continue
        if name == "--sealed" and not has_value:
            options.is_sealed = True
            continue
        if name not in _FLAGS:
            raise OptionsError(f"unknown option {name}")
        if not has_value:
            if not rest:
                raise OptionsError(f"{name} needs a value")
            value = rest.pop(0)
        _FLAGS[name](options, name, value)
    return options


def _set_host(options: Options, name: str, value: str) -> None:
    if not value:
        raise OptionsError(f"{name} is empty")
    options.host = value


def _set_port(options: Options, name: str, value: str) -> None:
    options.port = _number(name, value, 65535)


def _set_listen_fd(options: Options, name: str, value: str) -> None:
    options.listen_fd = _number(name, value, 1 << 20)


def _set_access_token(options: Options, _name: str, value: str) -> None:
    options.access_token = value or None


def _set_rlimit(options: Options, name: str, value: str) -> None:
    limit, _, amount = value.partition("=")
    number = getattr(resource, f"RLIMIT_{limit.upper()}", None)
    if not isinstance(number, int):
        raise OptionsError(f"{name}: unknown limit {limit}")
    unlimited = amount == "unlimited"
    options.rlimits[number] = resource.RLIM_INFINITY if unlimited else _number(name, amount, 1 << 62)


def _set_account(options: Options, name: str, value: str) -> None:
    account, _, descriptor = value.partition("=")
    if account not in ACCOUNT_NAMES:
        raise OptionsError(f"{name}: unknown account {account!r}; there are {', '.join(ACCOUNT_NAMES)}")
    options.accounts[account] = _number(name, descriptor, 1 << 20)


def _set_limit(options: Options, name: str, value: str) -> None:
    limit, _, amount = value.partition("=")
    if limit not in LIMIT_NAMES:
        raise OptionsError(f"{name}: unknown limit {limit!r}; there are {', '.join(LIMIT_NAMES)}")
    options.limits[limit] = _number(name, amount, 1 << 62, minimum=1)


def _set_grace(options: Options, name: str, value: str) -> None:
    options.grace_seconds = _duration(name, value)


def _set_log_file(options: Options, _name: str, value: str) -> None:
    options.log_file = value


def _set_allowed_origins(options: Options, _name: str, value: str) -> None:
    options.allowed_origins = frozenset(origin.strip() for origin in value.split(",") if origin.strip())


def _set_jupyter_host(options: Options, _name: str, value: str) -> None:
    options.jupyter_host = value or None


def _set_jupyter_token(options: Options, _name: str, value: str) -> None:
    options.jupyter_token = value or None


def _set_jupyter_idle_poll(options: Options, name: str, value: str) -> None:
    options.jupyter_idle_poll_seconds = _duration(name, value)


def _set_log_level(options: Options, name: str, value: str) -> None:
    if value in _LEVELS:
        options.log_level = _LEVELS[value]
    else:
        number = _number(name, value, 7)
        options.log_level = {0: logging.CRITICAL + 1, 1: logging.CRITICAL, 2: logging.CRITICAL}.get(
            number,
            [0, 0, 0, logging.ERROR, logging.WARNING, logging.WARNING, logging.INFO, logging.DEBUG][number],
        )


_FLAGS = {
    "--host": _set_host,
    "--port": _set_port,
    "--listen-fd": _set_listen_fd,
    "--access-token": _set_access_token,
    "--rlimit": _set_rlimit,
    "--account": _set_account,
    "--limit": _set_limit,
    "--graceful-shutdown-timeout": _set_grace,
    "--log-level": _set_log_level,
    "--jupyter-host": _set_jupyter_host,
    "--jupyter-token": _set_jupyter_token,
    "--jupyter-idle-poll-interval": _set_jupyter_idle_poll,
}

_VARIABLES = {
    "EXECD_ACCESS_TOKEN": _set_access_token,
    "EXECD_ALLOWED_ORIGINS": _set_allowed_origins,
    "EXECD_API_GRACE_SHUTDOWN": _set_grace,
    "EXECD_JUPYTER_IDLE_POLL_INTERVAL": _set_jupyter_idle_poll,
    "EXECD_LOG_FILE": _set_log_file,
    "JUPYTER_HOST": _set_jupyter_host,
    "JUPYTER_TOKEN": _set_jupyter_token,
}


def _number(name: str, value: str, maximum: int, *, minimum: int = 0) -> int:
    if not (value.isascii() and value.isdecimal() and len(value) < 20 and minimum <= int(value) <= maximum):
        raise OptionsError(f"{name}: {value!r} is not a number from {minimum} to {maximum}")
    return int(value)


def _duration(name: str, value: str) -> float:
    text, factor = (value[:-2], 0.001) if value.endswith("ms") else (value.removesuffix("s"), 1.0)
    try:
        seconds = float(text) * factor
    except ValueError as error:
        raise OptionsError(f"{name}: {value!r} is not a time like 500ms or 1s") from error
    if not 0 <= seconds <= 3600:
        raise OptionsError(f"{name}: {value!r} is not between 0 and an hour")
    return seconds
