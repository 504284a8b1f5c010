"""The environment of commands: execd's own without its secrets, then the EXECD_ENVS file, then the request."""

import os
import re
from collections.abc import Mapping
from typing import Final

from execd.readfile import read_small_file

__all__ = [
    "EXECUTION_ID_NAME",
    "ORIGINAL_PREFIX",
    "CommandEnvironment",
    "expand_directory",
    "initial_environment",
    "is_reserved_name",
    "parse_env_file",
]

DEFAULT_ENV_FILE: Final = "/opt/opensandbox/.env"
FALLBACK_ENV_FILE: Final = "/tmp/.opensandbox/.env"  # noqa: S108  # of the sandbox
"""Where the default can neither be read nor made: who is not root, or has a root that is read-only, may set none."""

DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MAX_ENV_FILE_BYTES: Final = 1024 * 1024

EXECUTION_ID_NAME: Final = "SANDMILL_EXECUTION_ID"
"""Set in every command; it tells whose a process is after its parents are gone."""

OWN_PREFIX: Final = "EXECD_"
"""Settings of the daemon. Commands see EXECD_ENVS of them, and that only where the file is read."""

ORIGINAL_PREFIX: Final = "SANDMILL_ORIG_"
"""SANDMILL_ORIG_LD_PRELOAD=x in execd's environment is LD_PRELOAD=x for commands and nothing for execd."""

_REFERENCE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
_ENTRY = re.compile(r"[ \t]*(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_]*)=")
_ESCAPES: Final = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "$": "$"}


class CommandEnvironment:
    """Composes the environment of each command."""

    def __init__(self, own: Mapping[str, str], *, reads_file: bool = True) -> None:
        """own: the environment execd was started with. reads_file: whether the file that EXECD_ENVS names counts."""
        self._base = _without_own_names(own)
        self.env_file = (own.get("EXECD_ENVS") or _usual_env_file()) if reads_file else None
        if self.env_file is not None:
            self._base["EXECD_ENVS"] = self.env_file
        self._base.setdefault("PATH", DEFAULT_PATH)

    def compose(self, requested: Mapping[str, str], *, execution_id: str) -> dict[str, str]:
        """Give the environment for one command; the file is read anew each time."""
        env = dict(self._base)
        if self.env_file is not None:
            text = read_small_file(self.env_file, max_bytes=MAX_ENV_FILE_BYTES)
            if text is not None:
                entries = parse_env_file(text.decode("utf-8", "surrogateescape"), env)
                env.update({name: value for name, value in entries.items() if not is_reserved_name(name)})
        env.update(requested)
        env[EXECUTION_ID_NAME] = execution_id
        return env


def _usual_env_file() -> str:
    if os.path.exists(DEFAULT_ENV_FILE):
        return DEFAULT_ENV_FILE
    folder = os.path.dirname(DEFAULT_ENV_FILE)
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    return DEFAULT_ENV_FILE if os.access(folder, os.W_OK | os.X_OK) else FALLBACK_ENV_FILE


def is_reserved_name(name: str) -> bool:
    """Say whether only execd, or who starts it, may set this variable."""
    return name == EXECUTION_ID_NAME or name.startswith((OWN_PREFIX, ORIGINAL_PREFIX))


def parse_env_file(text: str, known: Mapping[str, str]) -> dict[str, str]:
    r"""Read KEY=VALUE entries. The last entry of a name wins; lines that are no entry are skipped.

    'literal' may hold newlines and is taken as it is. "text" knows the escapes \n \r \t \\ \" \$ and
    expands $NAME, as unquoted text does. known: variables that $NAME finds besides earlier entries; a name
    found nowhere becomes empty.
    """
    found: dict[str, str] = {}
    scope = dict(known)
    position = 0
    while position < len(text):
        entry = _ENTRY.match(text, position)
        if entry is None:
            position = _line_end(text, position) + 1
            continue
        value, position = _read_value(text, entry.end(), scope)
        if "\0" not in value:  # such a value could never be passed on
            found[entry[1]] = scope[entry[1]] = value
    return found


def expand_directory(cwd: str, env: Mapping[str, str], *, home: str) -> str:
    """Expand a leading ~ and every $NAME. Raises KeyError with the name that is not set."""
    if cwd == "~" or cwd.startswith("~/"):
        cwd = env.get("HOME", home) + cwd[1:]
    return _REFERENCE.sub(lambda match: env[match[1] or match[2]], cwd)


def initial_environment() -> dict[str, str]:
    """The environment this process was started with.

    The interpreter adds LC_CTYPE to its own under the C locale; the kernel's record shows what was really given.
    """
    env = dict(os.environ)
    try:
        with open("/proc/self/environ", "rb") as file:
            record = file.read()
    except OSError:
        return env
    if b"LC_CTYPE=" not in record:
        env.pop("LC_CTYPE", None)
    return env


def _without_own_names(own: Mapping[str, str]) -> dict[str, str]:
    originals = {
        name.removeprefix(ORIGINAL_PREFIX): value
        for name, value in own.items()
        if name.startswith(ORIGINAL_PREFIX)
    }
    # The runtime blanks loader variables for us; a blank one was made by it, not by the image.
    kept = {
        name: value
        for name, value in own.items()
        if not is_reserved_name(name) and not (name.startswith("LD_") and not value)
    }
    return kept | originals


def _line_end(text: str, position: int) -> int:
    end = text.find("\n", position)
    return len(text) if end < 0 else end


def _read_value(text: str, start: int, known: Mapping[str, str]) -> tuple[str, int]:
    """Give the value that begins at start, and where the next line begins."""
    quote = text[start : start + 1]
    if quote == "'":
        end = text.find("'", start + 1)
        if end >= 0 and _rest_is_blank(text, end + 1):
            return text[start + 1 : end], _line_end(text, end) + 1
    elif quote == '"':
        quoted = _read_double_quoted(text, start + 1, known)
        if quoted is not None and _rest_is_blank(text, quoted[1]):
            return quoted[0], _line_end(text, quoted[1]) + 1
    end = _line_end(text, start)
    return _expand(text[start:end].removesuffix("\r"), known), end + 1


def _rest_is_blank(text: str, position: int) -> bool:
    return not text[position : _line_end(text, position)].strip(" \t\r")


def _read_double_quoted(text: str, start: int, known: Mapping[str, str]) -> tuple[str, int] | None:
    """Give the value and the position behind the closing quote; None if it is not closed."""
    parts: list[str] = []
    plain = position = start
    while position < len(text) and text[position] != '"':
        if text[position] != "\\":
            position += 1
            continue
        follower = text[position + 1 : position + 2]
        parts.append(_expand(text[plain:position], known))
        parts.append(_ESCAPES.get(follower, "\\" + follower))
        plain = position = position + 2
    if position >= len(text):
        return None
    parts.append(_expand(text[plain:position], known))
    return "".join(parts), position + 1


def _expand(text: str, known: Mapping[str, str]) -> str:
    return _REFERENCE.sub(lambda match: known.get(match[1] or match[2], ""), text)
