"""The seccomp filter of the sandboxes in the form that container engines take: one list for both runtimes.

The same, as files for an engine's own settings or for another orchestrator: `runtimes/seccomp/MACHINE.json`, written by
`python -m runtimes.seccomp_profile`.
"""

import errno
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from runtimes.local.seccomp import (
    ANY_BUT_INIT,
    CLONE_NEW,
    IOPRIO_WHO_PROCESS,
    ONLY_ONESELF,
    PERSONALITIES,
    PRIO_PROCESS,
    SOCKET_FAMILIES,
    TERMINAL_REQUESTS,
)
from runtimes.local.syscalls import AARCH64, X86_64, SyscallTable

__all__ = ["CONDITIONAL", "PROFILE_FOLDER", "profile_text", "seccomp_profile"]

PROFILE_FOLDER = Path(__file__).parent / "seccomp"

CONDITIONAL = {
    "clone", "ioctl", "socket", "personality", "setpriority", "ioprio_set", *ONLY_ONESELF, *ANY_BUT_INIT,
}  # fmt: skip
"""Calls of the list whose arguments decide."""

_ALLOW = "SCMP_ACT_ALLOW"
_LOW_HALF = 0xFFFFFFFF

_REQUEST_BITS = 32
"""The kernel takes the low half of ioctl's second argument."""

_PROCESS_NUMBER_BITS = 22
"""Linux gives no process a number of 2^22 or more."""


def seccomp_profile(table: SyscallTable) -> str:
    """Give the rules of the local sandboxes' filter as the JSON text of a profile.

    Two differences are the engine's: a number no kernel knows may be EPERM, and a call of a foreign architecture ends
    the process.
    """
    return json.dumps(_profile(table))


def profile_text(table: SyscallTable) -> str:
    """Give the same to be read by people, with a newline at its end."""
    return json.dumps(_profile(table), indent=1) + "\n"


def _profile(table: SyscallTable) -> dict[str, Any]:
    rules: list[dict[str, Any]] = [
        {"names": sorted(set(table.allowed) - CONDITIONAL), "action": _ALLOW},
        {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": errno.ENOSYS},
    ]
    rules += [
        {"names": list(names), "action": _ALLOW, "args": arguments} for names, arguments in _conditions()
    ]
    architecture = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}[table.machine]
    return {"defaultAction": "SCMP_ACT_ERRNO", "architectures": [architecture], "syscalls": rules}


def _conditions() -> Iterator[tuple[Sequence[str], list[dict[str, Any]]]]:
    """Give what calls may be called with: names, and conditions that hold together. Any one entry is enough.

    See `runtimes.local.seccomp` for the reasons. A profile cannot say "none of these" of half an argument, so that is
    said as many times "has this beginning, in which all of these differ".
    """
    yield ["clone"], [_masked(0, CLONE_NEW, 0)]
    for name, values in (("socket", SOCKET_FAMILIES), ("personality", PERSONALITIES)):
        for value in values:
            yield [name], [{"index": 0, "value": value, "op": "SCMP_CMP_EQ"}]
    for mask, value in _all_but(TERMINAL_REQUESTS, _REQUEST_BITS):
        yield ["ioctl"], [_masked(1, mask, value)]
    yield ONLY_ONESELF, [_masked(0, _LOW_HALF, 0)]
    yield ["ioprio_set"], [_masked(0, _LOW_HALF, IOPRIO_WHO_PROCESS), _masked(1, _LOW_HALF, 0)]
    for mask, value in _all_but((1,), _PROCESS_NUMBER_BITS):
        yield ANY_BUT_INIT, [_masked(0, mask, value)]
        yield ["setpriority"], [_masked(0, _LOW_HALF, PRIO_PROCESS), _masked(1, mask, value)]


def _all_but(
    values: Sequence[int], bits: int, mask: int = 0, beginning: int = 0
) -> Iterator[tuple[int, int]]:
    """Give (mask, value) pairs, one of which holds for each number of so many bits but these, and none for these."""
    inside = [value for value in values if value & mask == beginning]
    if not inside:
        yield mask, beginning
    elif bits:
        bit = 1 << (bits - 1)
        yield from _all_but(inside, bits - 1, mask | bit, beginning)
        yield from _all_but(inside, bits - 1, mask | bit, beginning | bit)


def _masked(index: int, mask: int, value: int) -> dict[str, Any]:
    """Give the condition that an argument has this value under the mask."""
    return {"index": index, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}


def _main() -> None:
    PROFILE_FOLDER.mkdir(exist_ok=True)
    for table in (X86_64, AARCH64):
        (PROFILE_FOLDER / f"{table.machine}.json").write_text(profile_text(table))


if __name__ == "__main__":
    _main()
