"""Having together in memory what every forked daemon writes to, so that it writes to fewer pages.

Code is written to when it runs: Python counts in it, and references to it. A daemon runs one function in fifteen of
those in memory, and these lie among all others; so a fork would copy, page by page, mostly what nobody needs. Objects
that a daemon makes go where others were freed, which is all over the memory as well.
"""

import ctypes
import gc
import os
import struct
import sys
from collections.abc import Callable, Iterable
from types import CodeType, FrameType, FunctionType
from typing import Any, Final

__all__ = ["fill_gaps", "gather_code"]

_SMALL_SIZES: Final = range(16, 513, 16)
"""Of the blocks that Python has an allocator of its own for."""

_POOL_BYTES: Final = 16 << 10
"""What it gets for blocks of one size at a time, on a boundary of that size."""

_ALMOST_ALL: Final = 0.9
_MAX_BLOCKS: Final = 20_000
"""Of one size: more than that are no gaps."""

_LARGE_SIZES: Final = range(64 << 10, 512 - 16, -16)
"""Of what the C library is asked for; larger ones are hardly ever freed."""

_PYTHON: Final = ctypes.pythonapi
_LIBC: Final = ctypes.CDLL(None)


class _MallocInfo(ctypes.Structure):
    """struct mallinfo2 of glibc 2.33."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
        )
    )  # fmt: skip


def gather_code(work: Callable[[], None], always: Iterable[str]) -> int:
    """Give all functions that the work runs, and those of modules of these names, new code in one piece of memory.

    work: runs in a fork of this process. Gives the number of functions.
    """
    functions = [value for value in gc.get_objects() if type(value) is FunctionType]
    modules = set(always)
    known: dict[int, CodeType] = {}
    wanted: set[int] = set()
    for function in functions:
        found = list(_with_inner(function.__code__))
        known.update((id(code), code) for code in found)
        if function.__module__ in modules:
            wanted.update(id(code) for code in found)
    wanted |= known.keys() & _run(work)
    fill_gaps()
    renewed: dict[int, CodeType] = {}
    for number in sorted(wanted):
        _renew(known[number], wanted, renewed)
    count = 0
    for function in functions:
        code = renewed.get(id(function.__code__))
        if code is not None:
            function.__code__ = code
            count += 1
    return count


def fill_gaps() -> None:
    """Occupy for good what was freed between things that stay: what is made from here on is in new memory, together."""
    _fill_heap()
    _PYTHON.PyObject_Malloc.restype = ctypes.c_void_p
    for size in _SMALL_SIZES:
        blocks_of_a_pool = _POOL_BYTES // size
        found: dict[int, int] = {}
        for _ in range(_MAX_BLOCKS):
            pool = (_PYTHON.PyObject_Malloc(ctypes.c_size_t(size)) or 0) // _POOL_BYTES
            found[pool] = found.get(pool, 0) + 1
            if found[pool] >= _ALMOST_ALL * blocks_of_a_pool:
                break


def _fill_heap() -> None:
    """Do it for the C library's; nothing where that is another than glibc."""
    try:
        ask, end_of_heap = _LIBC.mallinfo2, _LIBC.sbrk
    except AttributeError:
        return
    ask.restype = _MallocInfo
    for function in (end_of_heap, _LIBC.malloc):
        function.restype = ctypes.c_void_p
    top = (end_of_heap(ctypes.c_long(0)) or 0) - ask().keepcost
    for size in _LARGE_SIZES:
        for _ in range(_MAX_BLOCKS):
            block = _LIBC.malloc(ctypes.c_size_t(size)) or top
            if block >= top:  # no gap is left that is as large
                _LIBC.free(ctypes.c_void_p(block))
                break


def _run(work: Callable[[], None]) -> set[int]:
    """Give the identities of all code that the work runs."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read_end)
            seen: set[int] = set()

            def note(frame: FrameType, event: str, _: Any) -> None:
                if event == "call":
                    seen.add(id(frame.f_code))

            sys.setprofile(note)
            work()
            sys.setprofile(None)
            with open(write_end, "wb") as answer:
                answer.write(struct.pack(f"={len(seen)}Q", *seen))
        finally:
            os._exit(0)
    os.close(write_end)
    with open(read_end, "rb") as answers:
        data = answers.read()
    os.waitpid(pid, 0)
    return {number for (number,) in struct.iter_unpack("=Q", data[: len(data) // 8 * 8])}


def _with_inner(code: CodeType) -> Iterable[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)


def _renew(code: CodeType, wanted: set[int], renewed: dict[int, CodeType]) -> CodeType:
    """Copy code, and the code of what is defined within it, if it is wanted."""
    if id(code) not in wanted:
        return code
    if id(code) not in renewed:
        constants = tuple(
            _renew(constant, wanted, renewed) if isinstance(constant, CodeType) else constant
            for constant in code.co_consts
        )
        renewed[id(code)] = code.replace(co_consts=constants)
    return renewed[id(code)]
