"""Reading the body of `POST /command`. Strict: unknown fields and wrong types are refused by name."""

import binascii
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NoReturn

from execd.envs import is_reserved_name
from execd.errors import InvalidBodyError
from execd.fields import checked_text, printable

__all__ = [
    "CommandRequest",
    "FieldTable",
    "command_request",
    "parse_json",
    "parse_pty_request",
    "read_fields",
    "session_cwd",
    "session_run_request",
]

_MAX_TIMEOUT_MS: Final = 10**12
_MAX_ID: Final = 2**32 - 2  # 2**32 - 1 means "leave as it is" to the kernel
_MAX_ARGUMENTS: Final = 100_000
_MAX_VARIABLES: Final = 10_000


@dataclass(frozen=True, slots=True)
class CommandRequest:
    """A command as asked for. At most one of command and argv is set; text holds no NUL and no lone surrogate."""

    command: str | None = None
    argv: tuple[str, ...] | None = None
    cwd: str | None = None
    envs: dict[str, str] = field(default_factory=dict)
    timeout_ms: int | None = None
    uid: int | None = None
    gid: int | None = None
    background: bool = False
    merge_stderr: bool = False
    kill_leftovers: bool = False
    kept: bool = False
    stdin: bytes | None = None


def parse_json(body: bytes) -> Any:
    """Read a JSON document. Raises InvalidBodyError, also for NaN, bad UTF-8 and absurd nesting."""
    try:
        return json.loads(body.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise InvalidBodyError("the body is not UTF-8") from error
    except RecursionError as error:
        raise InvalidBodyError("the body is nested too deeply") from error
    except ValueError as error:
        raise InvalidBodyError(f"the body is not JSON: {error}") from error


def command_request(document: Any) -> CommandRequest:
    """Read and check a JSON document. Raises InvalidBodyError whose message begins with the field's name."""
    request = CommandRequest(**read_fields(document, _FIELDS))
    if (request.command is None) == (request.argv is None):
        raise InvalidBodyError("command: exactly one of command and argv is needed")
    if document.get("stdin") is not None and document.get("stdin_b64") is not None:
        raise InvalidBodyError("stdin_b64: at most one of stdin and stdin_b64 may be given")
    if request.kept and request.background:
        raise InvalidBodyError("kept: a command in the background needs no client anyway; leave it out")
    if request.gid is not None and request.uid is None:
        raise InvalidBodyError("gid: needs uid")
    # The protocol has one log for a command in the background.
    return replace(request, merge_stderr=True) if request.background else request


def session_cwd(document: Any) -> str | None:
    """Read and check the body of `POST /session`. Raises as `command_request`."""
    cwd: str | None = read_fields(document, {"cwd": _FIELDS["cwd"]}).get("cwd")
    return cwd


def session_run_request(document: Any) -> CommandRequest:
    """Read and check the body of `POST /session/{id}/run`. Raises as `command_request`."""
    values = read_fields(document, SESSION_RUN_FIELDS)
    if "command" not in values:
        raise InvalidBodyError("command: is missing")
    # Of a timeout of 0 the protocol says that it is none.
    return CommandRequest(**values | {"timeout_ms": values.get("timeout_ms") or None}, merge_stderr=True)


def read_fields(document: Any, fields: "FieldTable") -> dict[str, Any]:
    """Check an object field by field; those that are null are left out. Raises InvalidBodyError."""
    if not isinstance(document, dict):
        raise InvalidBodyError("the body is not an object")
    values: dict[str, Any] = {}
    for name, value in document.items():
        if name not in fields:
            raise InvalidBodyError(f"{printable(name)}: unknown field")
        if value is not None:
            target, check = fields[name]
            values[target] = check(name, value)
    return values


def parse_pty_request(body: bytes) -> CommandRequest:
    """Read and check the body of `POST /pty`, which may be empty. Raises as `command_request`."""
    values = read_fields(parse_json(body), _PTY_FIELDS) if body else {}
    return CommandRequest(**values, stdin=b"")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _input(name: str, value: Any) -> bytes:
    return checked_text(name, value).encode("utf-8")


def _base64(name: str, value: Any) -> bytes:
    try:
        return binascii.a2b_base64(checked_text(name, value).encode("utf-8"), strict_mode=True)
    except binascii.Error as error:
        raise InvalidBodyError(f"{name}: not base64: {error}") from error


def _argument(name: str, value: Any) -> str:
    text = checked_text(name, value)
    if "\0" in text:
        raise InvalidBodyError(f"{name}: holds a NUL character")
    return text


def _non_empty(name: str, value: Any) -> str:
    text = _argument(name, value)
    if not text.strip():
        raise InvalidBodyError(f"{name}: is empty")
    return text


def _argv(name: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise InvalidBodyError(f"{name}: not a list of at least one string")
    if len(value) > _MAX_ARGUMENTS:
        raise InvalidBodyError(f"{name}: more than {_MAX_ARGUMENTS} items")
    items = tuple(_argument(f"{name}[{index}]", item) for index, item in enumerate(value))
    if not items[0]:
        raise InvalidBodyError(f"{name}[0]: is empty")
    return items


def _envs(name: str, value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise InvalidBodyError(f"{name}: not an object")
    if len(value) > _MAX_VARIABLES:
        raise InvalidBodyError(f"{name}: more than {_MAX_VARIABLES} variables")
    checked = {}
    for key, item in value.items():
        field_name = f"{name}.{printable(key)}"
        if not _argument(field_name, key) or "=" in key:
            raise InvalidBodyError(f"{field_name}: not a variable name")
        if is_reserved_name(key):
            raise InvalidBodyError(f"{field_name}: reserved")
        checked[key] = _argument(field_name, item)
    return checked


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidBodyError(f"{name}: not a boolean")
    return value


def _integer(low: int, high: int) -> Callable[[str, Any], int]:
    def check(name: str, value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise InvalidBodyError(f"{name}: not an integer")
        if not low <= value <= high:
            raise InvalidBodyError(f"{name}: not between {low} and {high}")
        return value

    return check


FieldTable = Mapping[str, tuple[str, Callable[[str, Any], Any]]]
"""Wire name -> attribute and check."""

_FIELDS: FieldTable = {
    "command": ("command", _non_empty),
    "argv": ("argv", _argv),
    "cwd": ("cwd", _non_empty),
    "envs": ("envs", _envs),
    "timeout": ("timeout_ms", _integer(1, _MAX_TIMEOUT_MS)),
    "uid": ("uid", _integer(0, _MAX_ID)),
    "gid": ("gid", _integer(0, _MAX_ID)),
    "background": ("background", _flag),
    "merge_stderr": ("merge_stderr", _flag),
    "kill_leftovers": ("kill_leftovers", _flag),
    "kept": ("kept", _flag),
    "stdin": ("stdin", _input),
    "stdin_b64": ("stdin", _base64),
}
"""Wire name -> attribute and check. JSON null means absent for every field."""

SESSION_RUN_FIELDS: Final[FieldTable] = {
    "command": _FIELDS["command"],
    "cwd": _FIELDS["cwd"],
    "timeout": ("timeout_ms", _integer(0, _MAX_TIMEOUT_MS)),
}

_PTY_FIELDS: Final = {name: _FIELDS[name] for name in ("cwd", "command")}
