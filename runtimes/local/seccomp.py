"""The seccomp filter of a sandbox, as classic BPF, built without libseccomp.

Default deny: a call that is not in `syscalls.py` fails with EPERM, a number no kernel knows with ENOSYS (so that a libc
newer than this list falls back), and calls of a foreign architecture (32-bit, x32) with ENOSYS. Nothing is killed: a
program sees an error it can report. Some calls depend on their arguments; see `_argument_rules`.
"""

import errno
import struct
from dataclasses import dataclass

from runtimes.local.syscalls import SyscallTable

__all__ = [
    "ALLOW",
    "ANY_BUT_INIT",
    "CLONE_NEW",
    "IOPRIO_WHO_PROCESS",
    "ONLY_ONESELF",
    "PERSONALITIES",
    "PRIO_PROCESS",
    "SOCKET_FAMILIES",
    "TERMINAL_REQUESTS",
    "Instruction",
    "build_filter",
    "encode",
    "errno_action",
]

ALLOW = 0x7FFF0000
"""SECCOMP_RET_ALLOW."""

# Offsets in struct seccomp_data. Arguments are 64 bits wide, little-endian on both architectures, and the kernel
# itself looks at the low half of those used here: comparing the whole would let a caller pass by setting a high bit.
_NUMBER, _ARCH = 0, 4
_ARGUMENT = (16, 24)

# BPF: load word, jump if equal / greater or equal / any bit set, jump always, return.
_LD, _JEQ, _JGE, _JSET, _JA, _RET = 0x20, 0x15, 0x35, 0x45, 0x05, 0x06

CLONE_NEW = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET. (NEWTIME overlaps the exit signal of clone.)"""

TERMINAL_REQUESTS = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX: typing into, or pasting into, a terminal."""

SOCKET_FAMILIES = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6, AF_NETLINK."""

PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)

# Process 1 is execd, and runs as the same user as the code it watches. What steers another process of one's own user
# must not reach it: without open files or processor time it could not end what it started.

ONLY_ONESELF = ("prlimit64", "sched_setattr", "sched_setparam")
"""Calls whose first argument is a process or thread, and must be 0, the caller."""

ANY_BUT_INIT = ("sched_setaffinity", "sched_setscheduler")
"""Calls whose first argument is a thread, and must not be 1: thread libraries name threads by number."""

PRIO_PROCESS, IOPRIO_WHO_PROCESS = 0, 1
"""First arguments of setpriority and ioprio_set that make the second a process. Others make it a group, or a user's
processes, execd included. For setpriority it must not be 1, for ioprio_set, which is rarely used, it must be 0."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One sock_filter. Jumps are counted from the next instruction."""

    code: int
    value: int
    if_true: int = 0
    if_false: int = 0


def errno_action(number: int) -> int:
    """SECCOMP_RET_ERRNO with this error number."""
    return 0x00050000 | number


def build_filter(table: SyscallTable) -> list[Instruction]:
    """Build the program for one architecture."""
    unknown = Instruction(_RET, errno_action(errno.ENOSYS))
    program = [Instruction(_LD, _ARCH), Instruction(_JEQ, table.audit_arch, 1, 0), unknown]
    program.append(Instruction(_LD, _NUMBER))
    for number, body in _argument_rules(table):
        program += [Instruction(_JEQ, number, 0, len(body)), *body]
    return program + _search(_segments(table))


def encode(program: list[Instruction]) -> bytes:
    """Bytes as `bwrap --seccomp` and the kernel read them."""
    return b"".join(struct.pack("=HBBI", i.code, i.if_true, i.if_false, i.value) for i in program)


def _argument_rules(table: SyscallTable) -> list[tuple[int, list[Instruction]]]:
    """Calls whose arguments decide. Each body always returns.

    clone: no new namespaces. clone3: passes flags by pointer, which a filter cannot read, so it does not exist and libc
    falls back to clone. ioctl: no typing into a terminal. socket: AF_VSOCK reaches the hypervisor whatever the network
    namespace, and the rest are attack surface nobody needs. personality: no READ_IMPLIES_EXEC and the like.
    """
    allow, eperm = Instruction(_RET, ALLOW), Instruction(_RET, errno_action(errno.EPERM))
    family = Instruction(_RET, errno_action(errno.EAFNOSUPPORT))
    load_first, load_second = Instruction(_LD, _ARGUMENT[0]), Instruction(_LD, _ARGUMENT[1])
    bodies = {
        "clone": [load_first, Instruction(_JSET, CLONE_NEW, 1, 0), allow, eperm],
        "ioctl": [load_second, *_none_of(TERMINAL_REQUESTS, eperm)],
        "socket": [load_first, *_one_of(SOCKET_FAMILIES, family)],
        "personality": [load_first, *_one_of(PERSONALITIES, eperm)],
    }
    bodies |= {name: [load_first, *_one_of((0,), eperm)] for name in ONLY_ONESELF}
    bodies |= {name: [load_first, *_none_of((1,), eperm)] for name in ANY_BUT_INIT}
    for name, kind, rule in (
        ("setpriority", PRIO_PROCESS, _none_of((1,), eperm)),
        ("ioprio_set", IOPRIO_WHO_PROCESS, _one_of((0,), eperm)),
    ):
        bodies[name] = [load_first, Instruction(_JEQ, kind, 1, 0), eperm, load_second, *rule]
    return [(table.allowed[name], body) for name, body in bodies.items()] + [
        (_CLONE3, [Instruction(_RET, errno_action(errno.ENOSYS))])
    ]


_CLONE3 = 435
"""The same number on every architecture; not in the table, since it must not be allowed."""


def _one_of(values: tuple[int, ...], otherwise: Instruction) -> list[Instruction]:
    """Allow if the loaded word is one of the values."""
    tests = [Instruction(_JEQ, value, len(values) - index, 0) for index, value in enumerate(values)]
    return [*tests, otherwise, Instruction(_RET, ALLOW)]


def _none_of(values: tuple[int, ...], otherwise: Instruction) -> list[Instruction]:
    """Allow unless the loaded word is one of the values."""
    tests = [Instruction(_JEQ, value, len(values) - index, 0) for index, value in enumerate(values)]
    return [*tests, Instruction(_RET, ALLOW), otherwise]


def _segments(table: SyscallTable) -> list[tuple[int, int]]:
    """Cut all numbers into runs with one action: (first number, action), ascending, starting at 0."""
    allowed = set(table.allowed.values())
    known = {number for first, last in table.assigned for number in range(first, last + 1)}
    segments: list[tuple[int, int]] = []
    for number in range(max(known) + 2):
        action = errno_action(errno.EPERM) if number in known else errno_action(errno.ENOSYS)
        if number in allowed:
            action = ALLOW
        if not segments or segments[-1][1] != action:
            segments.append((number, action))
    return segments


def _search(segments: list[tuple[int, int]]) -> list[Instruction]:
    """Binary search over the runs: about seven comparisons instead of three hundred."""
    if len(segments) == 1:
        return [Instruction(_RET, segments[0][1])]
    middle = len(segments) // 2
    lower, upper = _search(segments[:middle]), _search(segments[middle:])
    boundary = segments[middle][0]
    if len(lower) <= 0xFF:
        return [Instruction(_JGE, boundary, len(lower), 0), *lower, *upper]
    # Conditional jumps reach 255 instructions, unconditional ones any distance.
    return [Instruction(_JGE, boundary, 0, 1), Instruction(_JA, len(lower)), *lower, *upper]
