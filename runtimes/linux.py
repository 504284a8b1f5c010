"""System calls that Python's library does not have, by number: mounts, namespaces, and what a process gives up.

Nothing of this project is imported here, and little of the library: the zygote and its children use it. All raise
OSError. Numbers from 424 on are the same on every architecture; older ones are found by machine.
"""

import ctypes
import errno
import mmap
import os
import signal
import struct
from collections.abc import Callable, Mapping
from typing import Final

__all__ = [
    "AT_RECURSIVE",
    "CLONE_NEWCGROUP",
    "CLONE_NEWIPC",
    "CLONE_NEWNET",
    "CLONE_NEWNS",
    "CLONE_NEWPID",
    "CLONE_NEWUSER",
    "CLONE_NEWUTS",
    "MOUNT_ATTR_NODEV",
    "MOUNT_ATTR_NOEXEC",
    "MOUNT_ATTR_NOSUID",
    "MOUNT_ATTR_RDONLY",
    "MS_NODEV",
    "MS_NOEXEC",
    "MS_NOSUID",
    "attach",
    "become_user",
    "change_mount",
    "clone_mount",
    "detach_root",
    "die_with_parent",
    "drop_bounding_set",
    "drop_capabilities",
    "enter_namespace",
    "fork_idle",
    "fork_into",
    "install_seccomp",
    "make_private",
    "mount",
    "new_mount",
    "open_below",
    "reconfigure",
    "run_in_this_memory",
    "unmount",
    "unshare",
]

_CLONE_VM, _CLONE_VFORK, _CLONE_PARENT, _CLONE_PARENT_SETTID = 0x00000100, 0x00004000, 0x00008000, 0x00100000
CLONE_NEWNS: Final = 0x00020000
CLONE_NEWCGROUP: Final = 0x02000000
CLONE_NEWUTS: Final = 0x04000000
CLONE_NEWIPC: Final = 0x08000000
CLONE_NEWUSER: Final = 0x10000000
CLONE_NEWPID: Final = 0x20000000
CLONE_NEWNET: Final = 0x40000000

MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND = 0x2, 0x4, 0x8, 0x1000
_MS_REC, _MS_PRIVATE, _MS_SLAVE = 0x4000, 0x40000, 0x80000
_MNT_DETACH: Final = 2

MOUNT_ATTR_RDONLY: Final = 0x1
MOUNT_ATTR_NOSUID: Final = 0x2
MOUNT_ATTR_NODEV: Final = 0x4
MOUNT_ATTR_NOEXEC: Final = 0x8
_MOUNT_ATTR_IDMAP: Final = 0x00100000

AT_RECURSIVE: Final = 0x8000
_AT_FDCWD, _AT_EMPTY_PATH = -100, 0x1000

_OPEN_TREE, _MOVE_MOUNT, _FSOPEN, _FSCONFIG, _FSMOUNT, _FSPICK, _CLONE3, _OPENAT2, _MOUNT_SETATTR = (
    428, 429, 430, 431, 432, 433, 435, 437, 442,
)  # fmt: skip
_RESOLVE_NO_MAGICLINKS, _RESOLVE_NO_SYMLINKS, _RESOLVE_BENEATH, _RESOLVE_IN_ROOT = 0x02, 0x04, 0x08, 0x10
_MACHINE: Final = os.uname().machine
_PIVOT_ROOT: Final = {"x86_64": 155, "aarch64": 41}
_SECCOMP: Final = {"x86_64": 317, "aarch64": 277}

_OPEN_TREE_CLONE, _OPEN_TREE_CLOEXEC, _FS_CLOEXEC = 1, 0o2000000, 1
_MOVE_MOUNT_F_EMPTY_PATH, _MOVE_MOUNT_T_SYMLINKS = 0x4, 0x10
_FSCONFIG_SET_FLAG, _FSCONFIG_SET_STRING, _FSCONFIG_CMD_CREATE, _FSCONFIG_CMD_RECONFIGURE = 0, 1, 6, 7

_CLONE_PIDFD, _CLONE_CHILD_CLEARTID, _CLONE_CHILD_SETTID = 0x1000, 0x00200000, 0x01000000
_CLONE_INTO_CGROUP: Final = 0x200000000

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_GET_TID_ADDRESS = (
    1,
    4,
    24,
    38,
    40,
)
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_SECCOMP_SET_MODE_FILTER: Final = 1
_CAPABILITY_VERSION: Final = 0x20080522
_MAX_CAPABILITIES: Final = 64

_LIBC = ctypes.CDLL(None, use_errno=True)
_HOLDING_THE_LOCK = ctypes.PyDLL(None, use_errno=True)
"""The same functions, called without letting another thread run: for the one that returns twice."""


_IDLE_STACK_BYTES: Final = 16 << 10
_IDLE_STACK = ctypes.create_string_buffer(_IDLE_STACK_BYTES)
"""Of all idle processes: each does the same there, once."""


_BORROWER_STACK_BYTES: Final = 1 << 20
_Borrower: Final = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class _FilterProgram(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """Put a file system, or with MS_... flags another view of one, to the target."""
    _check(
        _LIBC.mount(
            os.fsencode(source),
            os.fsencode(target),
            kind.encode(),
            ctypes.c_ulong(flags),
            os.fsencode(options),
        ),
        target,
    )


def make_private(path: str, *, receives: bool) -> None:
    """Stop mounts below path from spreading to other namespaces. receives: those of the others still show here."""
    mount("none", path, "", _MS_REC | (_MS_SLAVE if receives else _MS_PRIVATE))


def unshare(flags: int) -> None:
    """Give the calling thread namespaces of its own."""
    _check(_LIBC.unshare(ctypes.c_int(flags)))


def enter_namespace(descriptor: int, kind: int) -> None:
    """Put the calling thread into a namespace; kind: CLONE_NEW..., as a check."""
    _check(_LIBC.setns(ctypes.c_int(descriptor), ctypes.c_int(kind)))


def new_mount(kind: str, options: Mapping[str, str | None], attributes: int) -> int:
    """Make a file system and give a descriptor of its mount, which is nowhere yet. None: an option without value."""
    context = _syscall(kind, _FSOPEN, kind.encode(), _FS_CLOEXEC)
    try:
        for name, value in options.items():
            if value is None:
                _syscall(kind, _FSCONFIG, context, _FSCONFIG_SET_FLAG, name.encode(), None, 0)
            else:
                _syscall(kind, _FSCONFIG, context, _FSCONFIG_SET_STRING, name.encode(), os.fsencode(value), 0)
        _syscall(kind, _FSCONFIG, context, _FSCONFIG_CMD_CREATE, None, None, 0)
        return _syscall(kind, _FSMOUNT, context, _FS_CLOEXEC, attributes)
    finally:
        os.close(context)


def clone_mount(path: str, *, recursive: bool = True) -> int:
    """Give a descriptor of a copy of the mount at path, which is nowhere yet."""
    flags = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | (AT_RECURSIVE if recursive else 0)
    return _syscall(path, _OPEN_TREE, _AT_FDCWD, os.fsencode(path), flags)


def change_mount(
    where: int | str, attributes: int, *, recursive: bool = False, ids: int | None = None
) -> None:
    """Add attributes to a mount, given by descriptor or path.

    ids: descriptor of the user namespace that maps the owners of its files.
    """
    flags = AT_RECURSIVE if recursive else 0
    descriptor, name = (_AT_FDCWD, os.fsencode(where)) if isinstance(where, str) else (where, b"")
    if not isinstance(where, str):
        flags |= _AT_EMPTY_PATH
    if ids is not None:
        attributes |= _MOUNT_ATTR_IDMAP
    data = struct.pack("=QQQQ", attributes, 0, 0, ids or 0)
    _syscall(str(where), _MOUNT_SETATTR, descriptor, name, flags, data, len(data))


def attach(descriptor: int, path: str) -> None:
    """Put a mount that is nowhere yet to a path, and close the descriptor."""
    try:
        _syscall(
            path,
            _MOVE_MOUNT,
            descriptor,
            b"",
            _AT_FDCWD,
            os.fsencode(path),
            _MOVE_MOUNT_F_EMPTY_PATH | _MOVE_MOUNT_T_SYMLINKS,
        )
    finally:
        os.close(descriptor)


def reconfigure(path: str, option: str, value: str) -> None:
    """Change one option of the file system whose root is mounted at path, leaving the others as they are."""
    context = _syscall(path, _FSPICK, _AT_FDCWD, os.fsencode(path), _FS_CLOEXEC)
    try:
        _syscall(path, _FSCONFIG, context, _FSCONFIG_SET_STRING, option.encode(), value.encode(), 0)
        _syscall(path, _FSCONFIG, context, _FSCONFIG_CMD_RECONFIGURE, None, None, 0)
    finally:
        os.close(context)


def unmount(path: str) -> None:
    """Take a mount off; what still uses it keeps it alive."""
    _check(_LIBC.umount2(os.fsencode(path), _MNT_DETACH), path)


def detach_root() -> None:
    """Make the working directory, a mount of its own, the root, and let go of everything outside."""
    # The old root is stacked on the new one and taken off again: no folder for it is needed.
    _syscall(".", _PIVOT_ROOT[_MACHINE], b".", b".")
    _check(_LIBC.umount2(b".", _MNT_DETACH), ".")
    os.chdir("/")


def fork_into(flags: int, *, cgroup: int | None = None, is_sibling: bool = False) -> tuple[int, int]:
    """Fork into new namespaces and a version 2 control group (its folder's descriptor).

    Gives (process id, pidfd), (0, -1) in the child. For processes of one thread only, which holds no lock: those of
    other threads would stay locked in the child. So there is nothing to put right after the fork, and what `os.fork`
    does for that is left out: it would write to half a megabyte of the child's memory. Functions that modules have
    registered for forks do not run either. is_sibling: it is a child of this process's parent, which hears of its end.
    """
    own_thread_id = ctypes.c_void_p()
    _check(_LIBC.prctl(_PR_GET_TID_ADDRESS, ctypes.byref(own_thread_id), 0, 0, 0))
    pidfd = ctypes.c_int(-1)
    flags |= _CLONE_PIDFD | _CLONE_CHILD_SETTID | _CLONE_CHILD_CLEARTID
    if is_sibling:
        flags |= _CLONE_PARENT
    if cgroup is not None:
        flags |= _CLONE_INTO_CGROUP
    # struct clone_args: flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid,
    # set_tid_size, cgroup. The C library keeps the thread's number where child_tid points, and relies on it.
    arguments = struct.pack(
        "=11Q",
        flags,
        ctypes.addressof(pidfd),
        own_thread_id.value or 0,
        0,
        0 if is_sibling else signal.SIGCHLD,
        0,
        0,
        0,
        0,
        0,
        cgroup or 0,
    )
    pid: int = _HOLDING_THE_LOCK.syscall(ctypes.c_long(_CLONE3), arguments, ctypes.c_size_t(len(arguments)))
    if pid == 0:
        return 0, -1
    _check(pid)
    return pid, pidfd.value


def run_in_this_memory(work: Callable[[int], int], flags: int) -> int:
    """Have another process, in new namespaces, do the work in the memory of this one, which waits for its end.

    What the work leaves behind in Python is there afterwards; descriptors, signal handling, working directory, rights
    and all else that the kernel keeps for a process is the other's own. work: is given the number of its process;
    returns the status to exit with, and has to return: ended in its midst, it would leave this process's Python in a
    state to which there is no stack. Gives the wait status. For processes of one thread only.
    """
    number = ctypes.c_int(0)
    caught: list[BaseException] = []

    def borrow(_: int | None) -> int:
        try:
            return work(number.value)
        except BaseException as error:  # noqa: BLE001 -- raised below, where there is somebody to catch it
            caught.append(error)
            return 1

    flags |= _CLONE_VM | _CLONE_VFORK | _CLONE_PARENT_SETTID | signal.SIGCHLD
    borrower = _Borrower(borrow)
    with mmap.mmap(-1, _BORROWER_STACK_BYTES) as stack:
        bottom = ctypes.c_char.from_buffer(stack)
        top = ctypes.addressof(bottom) + _BORROWER_STACK_BYTES
        pid: int = _LIBC.clone(
            borrower, ctypes.c_void_p(top), ctypes.c_int(flags), None, ctypes.byref(number), None, None
        )
        failure = ctypes.get_errno()
        del bottom
    if pid < 0:
        raise OSError(failure, os.strerror(failure))
    _, status = os.waitpid(pid, 0)
    # It belongs to the memory, and a change of user or a wish for secrecy takes it away.
    _check(_LIBC.prctl(_PR_SET_DUMPABLE, ctypes.c_ulong(1), 0, 0, 0))
    if caught:
        raise caught[0]
    return status


def fork_idle(flags: int) -> tuple[int, int]:
    """Start a process in new namespaces whose only purpose is to be in them: it waits, until it is killed, for nothing.

    Gives (process id, pidfd); the caller kills it and waits for it. It shares this process's memory, so that nothing
    has to be copied, but never gets to run any Python: it waits within the C library, on a stack of its own.
    """
    pidfd = ctypes.c_int(-1)
    flags |= _CLONE_VM | _CLONE_PIDFD | signal.SIGCHLD
    stack = ctypes.addressof(_IDLE_STACK) + _IDLE_STACK_BYTES // 16 * 16
    pid: int = _LIBC.clone(
        _LIBC.pause, ctypes.c_void_p(stack), ctypes.c_int(flags), None, ctypes.byref(pidfd), None, None
    )
    _check(pid)
    return pid, pidfd.value


def open_below(folder: int, path: str, flags: int, *, as_root: bool = False, links: bool = True) -> int:
    """Open a path without ever leaving a folder: what leads out of it is EXDEV, and a link, if none may be, ELOOP.

    as_root: the folder is the root of the path instead, as after chroot(2).
    """
    resolve = _RESOLVE_NO_MAGICLINKS | (_RESOLVE_IN_ROOT if as_root else _RESOLVE_BENEATH)
    if not links:
        resolve |= _RESOLVE_NO_SYMLINKS
    how = struct.pack("=QQQ", flags | os.O_CLOEXEC, 0, resolve)
    return _syscall(path, _OPENAT2, folder, os.fsencode(path), how, len(how))


def die_with_parent() -> None:
    """Be killed when the parent ends. Has to be called anew after each change of user."""
    _check(_LIBC.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0))


def become_user(uid: int, gid: int) -> None:
    """Become another user, in no other group, for good: running a program gives no rights back."""
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    _check(_LIBC.prctl(_PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), 0, 0, 0))


def drop_bounding_set() -> None:
    """Let no program ever have a capability; needs CAP_SETPCAP."""
    for number in range(_MAX_CAPABILITIES):
        if _LIBC.prctl(_PR_CAPBSET_DROP, ctypes.c_ulong(number), 0, 0, 0):
            if ctypes.get_errno() == errno.EINVAL:  # past the last one this kernel knows
                break
            _check(-1)
    _check(_LIBC.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0))


def drop_capabilities() -> None:
    """Give up every capability this process has."""
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    _check(_LIBC.capset(header, bytes(24)))


def install_seccomp(program: bytes) -> None:
    """Filter all further system calls of this process and its children by a classic BPF program."""
    code = ctypes.create_string_buffer(program, len(program))
    filters = _FilterProgram(len(program) // 8, ctypes.addressof(code))
    number = _SECCOMP[_MACHINE]
    _check(
        _LIBC.syscall(
            ctypes.c_long(number),
            ctypes.c_long(_SECCOMP_SET_MODE_FILTER),
            ctypes.c_long(0),
            ctypes.byref(filters),
        )
    )


def _syscall(subject: str, number: int, *arguments: int | bytes | None) -> int:
    words = [ctypes.c_long(word) if isinstance(word, int) else word for word in arguments]
    return _check(_LIBC.syscall(ctypes.c_long(number), *words), subject)


def _check(result: int, subject: str | None = None) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), subject)
    return result
