import errno
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimes.local.seccomp import ALLOW, ANY_BUT_INIT, ONLY_ONESELF, build_filter, encode, errno_action
from runtimes.local.syscalls import AARCH64, X86_64, native_table
from tests.support.bpf import decide

EPERM, ENOSYS = errno_action(errno.EPERM), errno_action(errno.ENOSYS)
BOTH = pytest.mark.parametrize("table", [X86_64, AARCH64], ids=lambda table: table.machine)
PROGRAMS = {table.machine: build_filter(table) for table in (X86_64, AARCH64)}
CONDITIONAL = (
    "clone", "ioctl", "socket", "personality", "setpriority", "ioprio_set", *ONLY_ONESELF, *ANY_BUT_INIT,
)  # fmt: skip


def ask(table, name_or_number, *arguments):
    number = table.allowed[name_or_number] if isinstance(name_or_number, str) else name_or_number
    return decide(PROGRAMS[table.machine], table.audit_arch, number, *arguments)


@BOTH
def test_every_listed_call_is_allowed(table):
    names = set(table.allowed) - set(CONDITIONAL)
    assert [name for name in names if ask(table, name) != ALLOW] == []


@BOTH
def test_every_other_number_is_refused(table):
    known = {number for first, last in table.assigned for number in range(first, last + 1)}
    others = set(range(1000)) - set(table.allowed.values()) - {435}
    wrong = [n for n in others if ask(table, n) != (EPERM if n in known else ENOSYS)]
    assert wrong == []


@given(number=st.integers(470, (1 << 32) - 1))
def test_numbers_beyond_the_list_do_not_exist(number):
    for table in (X86_64, AARCH64):
        assert ask(table, number) == ENOSYS


@pytest.mark.parametrize("architecture", [0x40000003, 0x40000028, 0, 0xC000003E ^ 1], ids=hex)
@BOTH
def test_foreign_architecture_gets_no_call(table, architecture):
    assert decide(PROGRAMS[table.machine], architecture, table.allowed["read"]) == ENOSYS


@BOTH
def test_clone3_does_not_exist_so_that_libc_uses_clone(table):
    assert ask(table, 435) == ENOSYS


@BOTH
@pytest.mark.parametrize(
    "flag", [0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000], ids=hex
)
def test_clone_makes_no_namespace(table, flag):
    assert ask(table, "clone", flag | 17) == EPERM
    assert ask(table, "clone", 17) == ALLOW
    assert ask(table, "clone", 0x3D0F00) == ALLOW  # a thread


@BOTH
@pytest.mark.parametrize("high", [0, 1 << 32, 1 << 63], ids=hex)
def test_ioctl_types_into_no_terminal_whatever_the_high_half(table, high):
    assert ask(table, "ioctl", 0, 0x5412 | high) == EPERM
    assert ask(table, "ioctl", 0, 0x541C | high) == EPERM
    assert ask(table, "ioctl", 0, 0x5413 | high) == ALLOW


@BOTH
def test_sockets_are_local_internet_or_netlink(table):
    allowed = [family for family in range(50) if ask(table, "socket", family) == ALLOW]
    assert allowed == [1, 2, 10, 16]
    assert ask(table, "socket", 40) == errno_action(errno.EAFNOSUPPORT)


@BOTH
def test_personality_does_not_weaken_memory_protection(table):
    assert [ask(table, "personality", value) for value in (0, 8, 0xFFFFFFFF)] == [ALLOW] * 3
    assert [ask(table, "personality", value) for value in (0x400000, 0x40000)] == [EPERM] * 2


@BOTH
@pytest.mark.parametrize("high", [0, 1 << 32, 1 << 63], ids=hex)
def test_no_call_steers_process_1_whatever_the_high_half(table, high):
    for name in (*ONLY_ONESELF, *ANY_BUT_INIT):
        assert ask(table, name, 1 | high) == EPERM
        assert ask(table, name, 0 | high) == ALLOW
    # setpriority: process, group, user. ioprio_set counts from one.
    assert [ask(table, "setpriority", kind | high, 1 | high) for kind in (0, 1, 2)] == [EPERM] * 3
    assert [ask(table, "setpriority", kind | high, 0) for kind in (0, 1, 2)] == [ALLOW, EPERM, EPERM]
    assert [ask(table, "ioprio_set", kind | high, 1 | high) for kind in (1, 2, 3)] == [EPERM] * 3
    assert [ask(table, "ioprio_set", kind | high, 0) for kind in (1, 2, 3)] == [ALLOW, EPERM, EPERM]


@BOTH
@given(number=st.integers(2, (1 << 22) - 1))
def test_own_threads_and_children_are_scheduled_by_number(table, number):
    assert {ask(table, name, number) for name in ANY_BUT_INIT} == {ALLOW}
    assert ask(table, "setpriority", 0, number) == ALLOW
    assert {ask(table, name, number) for name in ONLY_ONESELF} == {EPERM}
    assert ask(table, "ioprio_set", 1, number) == EPERM


@pytest.mark.parametrize(
    "name",
    [
        "mount", "unshare", "setns", "bpf", "ptrace", "keyctl", "add_key", "io_uring_setup", "perf_event_open",
        "userfaultfd", "init_module", "kexec_load", "clock_settime", "open_by_handle_at", "name_to_handle_at",
        "process_vm_readv", "pidfd_getfd", "chroot", "reboot", "syslog", "mbind", "fanotify_init", "acct",
        "kcmp", "migrate_pages", "move_pages", "process_madvise", "process_vm_writev",
    ],
)  # fmt: skip
def test_dangerous_call_is_not_in_the_list(name):
    assert name not in X86_64.allowed
    assert name not in AARCH64.allowed


def test_no_number_is_listed_twice():
    for table in (X86_64, AARCH64):
        assert len(set(table.allowed.values())) == len(table.allowed)


def test_encoding_is_eight_bytes_per_instruction_and_short_enough_for_the_kernel():
    program = PROGRAMS["x86_64"]
    data = encode(program)
    assert len(data) == 8 * len(program)
    assert len(program) < 4096
    assert struct.unpack_from("=HBBI", data) == (0x20, 0, 0, 4)


def test_unknown_machine_has_no_table():
    assert native_table("x86_64") is X86_64
    assert native_table("riscv64") is None
