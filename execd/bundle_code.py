"""Compiled modules for the bundle: the same bytes whenever and wherever the same source is compiled."""

import ast
import importlib.util
import marshal
import sys
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any, Final

__all__ = ["NoCodeError", "compiled_module", "marshalled", "module_code", "module_code_without_docstrings"]

_UNCHECKED_HASH: Final = (1).to_bytes(4, "little") + bytes(8)
"""The interpreter looks for no source beside such a file."""

_PLAIN_FORM: Final = 2
"""The last version of the marshal format that says nothing about which objects are shared."""

_WIDE: Final = "\u0100"
"""The first character of which the interpreter keeps no single copy."""


class NoCodeError(Exception):
    """There is no code in the file."""


def compiled_module(name: str, source: Path, shown: str) -> bytes:
    """Give the content of a .pyc file, which never looks for its source. Raises NoCodeError.

    Compiled from the source, or taken from the interpreter's cache. shown: the file name in tracebacks.
    """
    return importlib.util.MAGIC_NUMBER + _UNCHECKED_HASH + marshalled(module_code(name, source, shown))


def module_code(name: str, source: Path, shown: str) -> CodeType:
    """Give the code of a module; see `compiled_module`."""
    code = SourceFileLoader(name, str(source)).get_code(name)
    if code is None:
        raise NoCodeError(f"no code in {source}")
    return _with_file_name(code, shown)


def module_code_without_docstrings(source: Path, shown: str) -> CodeType:
    """Give the code of a module, in which nothing has a docstring: nobody reads them, and each takes time to load.

    All else is as it is in the source, asserts too. shown: the file name in tracebacks.
    """
    tree = ast.parse(source.read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            _drop_docstring(node)
    code: CodeType = compile(tree, shown, "exec", dont_inherit=True)
    return code


def _drop_docstring(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> None:
    if ast.get_docstring(node, clean=False) is None:
        return
    following = node.body[1] if len(node.body) > 1 else None
    if isinstance(node, ast.Module) and not isinstance(following, ast.Expr):
        # A statement in its place would stand before imports from `__future__`.
        del node.body[0]
    else:
        # In its place, or a text that follows would become one.
        node.body[0] = ast.copy_location(ast.Pass(), node.body[0])


def marshalled(code: Any) -> bytes:
    """Write code, or a tuple of such things and constants, in the newest form, which loads fastest.

    That form also tells shared objects, by their reference counts, and interned texts: both depend on what else this
    interpreter has done. So the code is first rid of all sharing. Then every text is held once more, here, and those
    of one character, which all code shares anyway, are interned.
    """
    plain = marshal.loads(marshal.dumps(code, _PLAIN_FORM))  # noqa: S302 -- our own bytes
    held = [sys.intern(text) if len(text) == 1 and text < _WIDE else text for text in _texts_in(plain)]
    content = marshal.dumps(plain)
    del held
    return content


def _texts_in(value: object) -> Iterator[str]:
    """Give all names and other texts of some code."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple | frozenset):
        for item in value:
            yield from _texts_in(item)
    elif isinstance(value, CodeType):
        yield from (value.co_name, value.co_qualname, value.co_filename)
        for items in (
            value.co_names,
            value.co_varnames,
            value.co_cellvars,
            value.co_freevars,
            value.co_consts,
        ):
            yield from _texts_in(items)


def _with_file_name(code: CodeType, shown: str) -> CodeType:
    constants = tuple(
        _with_file_name(item, shown) if isinstance(item, CodeType) else item for item in code.co_consts
    )
    return code.replace(co_filename=shown, co_consts=constants)
