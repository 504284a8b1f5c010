"""Having together in memory what every forked daemon writes to, so that it writes to fewer pages.

Code is written to when it runs: Python counts in it, and references to it. A daemon runs one function in fifteen of
those in memory, and these lie among all others; so a fork would copy, page by page, mostly what nobody needs. Objects
that a daemon makes go where others were freed, which is all over the memory as well.
"""

import ctypes
import gc
from collections.abc import Iterable
from types import CellType, CodeType, FunctionType
from typing import Final

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


def gather_code(running: Iterable[CodeType]) -> int:
    """Have all functions with this code, which is what a daemon runs, and the code itself anew in one piece of memory.

    Gives the number of functions.
    """
    gc.unfreeze()
    functions = [value for value in gc.get_objects() if type(value) is FunctionType]
    known = {id(code): code for function in functions for code in _with_inner(function.__code__)}
    wanted = {id(code) for code in running} & known.keys()
    fill_gaps()
    renewed: dict[int, CodeType] = {}
    for number in sorted(wanted):
        _renew(known[number], wanted, renewed)
    gathered = [function for function in functions if id(function.__code__) in renewed]
    for function in gathered:
        function.__code__ = renewed[id(function.__code__)]
    count = len(gathered)
    del functions, known
    _replace({id(function): (function, _copy(function)) for function in gathered})
    return count


def fill_gaps() -> None:
    """Occupy for good what was freed between things that stay: what is made from here on is in new memory, together."""
    _fill_heap()
    _PYTHON.PyObject_Malloc.restype = ctypes.c_void_p
    for size in _SMALL_SIZES:
        _fill_pools(size)


def _fill_pools(size: int) -> None:
    """Do it for blocks of a size, until all of their pools are full."""
    blocks_of_a_pool = _POOL_BYTES // size
    found: dict[int, int] = {}
    new = None
    for _ in range(_MAX_BLOCKS):
        block = _PYTHON.PyObject_Malloc(ctypes.c_size_t(size)) or 0
        pool = block // _POOL_BYTES
        if new is not None and pool != new:
            _PYTHON.PyObject_Free(ctypes.c_void_p(block))
            break
        found[pool] = found.get(pool, 0) + 1
        if found[pool] >= _ALMOST_ALL * blocks_of_a_pool:
            new = pool


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


def _with_inner(code: CodeType) -> Iterable[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)


def _copy(function: FunctionType) -> FunctionType:
    copied = FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copied.__kwdefaults__ = function.__kwdefaults__
    copied.__annotations__ = function.__annotations__
    copied.__qualname__ = function.__qualname__
    copied.__module__ = function.__module__
    copied.__doc__ = function.__doc__
    copied.__dict__.update(function.__dict__)
    return copied


def _replace(copies: dict[int, tuple[FunctionType, FunctionType]]) -> None:
    """Put copies of functions in the places of the originals in modules, classes and closures.

    copies: by identity of the original, both. Who else has an original keeps it: it does the same.
    """
    holders = gc.get_referrers(*(original for original, _ in copies.values()))
    for holder in holders:
        # What is looked up by identity has to stay.
        if isinstance(holder, dict | set | frozenset):
            for key in holder:
                copies.pop(id(key), None)
    # First, since they are among the holders as mere dictionaries.
    _replace_methods(copies)
    for holder in holders:
        if isinstance(holder, CellType) and id(holder.cell_contents) in copies:
            holder.cell_contents = copies[id(holder.cell_contents)][1]
        elif isinstance(holder, dict):
            for name, value in holder.items():
                if id(value) in copies:
                    holder[name] = copies[id(value)][1]


def _replace_methods(copies: dict[int, tuple[FunctionType, FunctionType]]) -> None:
    """Do it in all classes, by the one way that the interpreter hears of: it remembers what it has found in them."""
    for owner in [value for value in gc.get_objects() if isinstance(value, type)]:
        for name, value in list(vars(owner).items()):
            if id(value) in copies:
                type.__setattr__(owner, name, copies[id(value)][1])


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
