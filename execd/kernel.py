"""Settings of this process that only the kernel knows: adopting orphans, and secrecy of its memory."""

import errno
import functools
import importlib
import os
import re
from collections.abc import Set as AbstractSet
from typing import Any, Final

__all__ = [
    "adopt_orphans",
    "close_other_descriptors",
    "hide_memory",
    "open_descriptors",
    "overwrite_arguments",
    "rename_exclusively",
    "set_process_name",
    "wipe_secret",
]

_PR_SET_DUMPABLE: Final = 4
_PR_SET_NAME: Final = 15
_PR_SET_CHILD_SUBREAPER: Final = 36
_AT_FDCWD: Final = -100
_RENAME_NOREPLACE: Final = 1


def adopt_orphans() -> bool:
    """Become the parent of orphaned descendants. False where the kernel refuses; pid 1 is it already."""
    return os.getpid() == 1 or _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def hide_memory() -> bool:
    """Keep other processes of this user from reading this one's memory and environment."""
    return _prctl(_PR_SET_DUMPABLE, 0)


def wipe_secret(secret: str) -> bool:
    """Overwrite a secret in the argument and environment areas that `ps` and /proc show. False if not possible."""
    needle = secret.encode("utf-8", "surrogateescape")
    try:
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            start, end = _argument_area()
            memory.seek(start)
            area = memory.read(end - start)
            for match in re.finditer(re.escape(needle), area):
                memory.seek(start + match.start())
                memory.write(b"*" * len(needle))
    except (OSError, ValueError, OverflowError):
        return False
    return True


def overwrite_arguments(name: bytes) -> bool:
    """Show this name as the whole command line, here and in all this process forks; False if not possible.

    The environment area is cleared. /proc/PID/cmdline is there for everyone to read, in a sandbox too.
    """
    try:
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            start, end = _argument_area()
            memory.seek(start)
            memory.write(name[: end - start].ljust(end - start, b"\0"))
    except (OSError, ValueError, OverflowError):
        return False
    return True


def _argument_area() -> tuple[int, int]:
    """Give where the kernel put arguments and environment, which follow each other, in this process's memory."""
    with open("/proc/self/stat", "rb") as file:
        stat = file.read()
    fields = [int(field) for field in stat[stat.rfind(b")") + 4 :].split()]
    # Counted from the fourth field of proc(5): arg_start, arg_end, env_start, env_end are fields 48 to 51.
    arg_start, _, _, env_end = fields[44:48]
    return arg_start, env_end


def set_process_name(name: str) -> None:
    """Give `ps` a name; the kernel's own would be that of the loader."""
    try:
        file = os.open("/proc/self/comm", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(file, name.encode())
        finally:
            os.close(file)
    except OSError:
        # gVisor has no such file, and neither has a sandbox without /proc.
        _prctl(_PR_SET_NAME, name.encode())


def open_descriptors() -> set[int]:
    """Give the numbers of all, without /proc those below 256."""
    return {number for number in _listed_descriptors() if _is_open(number)}


def close_other_descriptors(keep: AbstractSet[int]) -> None:
    """Close everything inherited beyond standard streams and `keep`."""
    for fd in _listed_descriptors() - keep - {0, 1, 2}:
        try:
            os.close(fd)
        except OSError:
            continue  # the listing's own, for one; some file systems tell here what could not be written


def _listed_descriptors() -> set[int]:
    """Give the numbers of all that may be open."""
    try:
        return set(map(int, os.listdir("/proc/self/fd")))
    except OSError:
        return set(range(256))


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False  # the listing's own, for one
    return True


def rename_exclusively(source: str, target: str) -> None:
    """Rename unless something is at the target. Raises OSError, with EEXIST for that."""
    try:
        ctypes = importlib.import_module("ctypes")
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (ImportError, AttributeError):
        failure = errno.ENOSYS
    else:
        if rename(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), _RENAME_NOREPLACE) == 0:
            return
        failure = ctypes.get_errno()
    if failure not in (errno.ENOSYS, errno.EINVAL):
        raise OSError(failure, os.strerror(failure))
    # Not every kernel and file system knows the flag; the look before is all that is left then.
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    os.rename(source, target)


def _prctl(option: int, value: int | bytes) -> bool:
    try:
        if isinstance(value, int):
            # What `ctypes` stands on; the rest of that takes a twentieth of a start, and is not needed for numbers.
            native = importlib.import_module("_ctypes")
            address = native.dlsym(native.dlopen(None, 0), "prctl")
            return bool(native.call_function(address, (option, value, 0, 0, 0)) == 0)
        ctypes, libc = _c_library()
    except (ImportError, AttributeError):
        return False
    return bool(libc.prctl(option, ctypes.c_char_p(value), 0, 0, 0) == 0)


@functools.cache
def _c_library() -> tuple[Any, Any]:
    """Give the module and the library: once, since each time would make a class of its own. Raises ImportError."""
    ctypes = importlib.import_module("ctypes")
    return ctypes, ctypes.CDLL(None)
