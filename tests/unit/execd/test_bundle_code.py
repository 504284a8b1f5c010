"""Compiled modules of the bundle: the same bytes again, whatever this interpreter did meanwhile."""

import inspect
import marshal
import sys
import uuid
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from execd.bundle_code import NoCodeError, compiled_module, module_code_without_docstrings

SOURCE = '''"""Text."""
def {name}({argument}, *, b=(1, 2, "{word}")):
    if {argument} in {{"x{word}", "y{word}", "z{word}"}}:
        return [{argument}.{word} for {word} in b]
    return lambda: ({argument}, "{word}", "{word} with blanks", 1.5, b"bytes", ...)
'''


def test_names_known_elsewhere_change_nothing(tmp_path: Path) -> None:
    """Interned in the second round only by code that lives on."""
    word = f"w{uuid.uuid4().hex}"
    source = tmp_path / "module.py"
    source.write_text(SOURCE.format(name="f" + word, argument="a" + word, word=word))
    first = compiled_module("module", source, "shown.py")
    held = [sys.intern(text + word) for text in ("", "f", "a", "x")]
    namespace: dict[str, object] = {}
    exec(source.read_text(), namespace)
    assert compiled_module("module", source, "shown.py") == first
    assert held


def test_module_works_and_shows_the_given_name_only(tmp_path: Path) -> None:
    source = tmp_path / "module.py"
    source.write_text("def f(x):\n    return x in {'a', 'b'}, [y for y in x]\n")
    content = compiled_module("module", source, "shown.py")
    assert str(tmp_path).encode() not in content
    code = marshal.loads(content[16:])
    assert isinstance(code, CodeType)
    namespace: dict[str, object] = {}
    exec(code, namespace)
    function = namespace["f"]
    assert callable(function)
    assert function("a") == (True, ["a"])


def test_file_without_code_is_refused() -> None:
    with pytest.raises((NoCodeError, OSError)):
        compiled_module("module", Path("/nowhere/module.py"), "shown.py")


DOCUMENTED = '''"""Of the module."""
from __future__ import annotations

"""Of nothing."""

def only() -> int:
    """All there is."""

def two():
    """The first."""
    """The second."""
    return "kept"

async def later():
    """Of a coroutine."""

class Thing:
    """Of the class."""
    """Of nothing."""
    note = "kept"

    def method(self):
        """Of the method."""
        def inner():
            """Of the inner one."""
        return inner

def fails():
    """On the line of its number."""
    assert 1 == 2
'''


@pytest.mark.parametrize("text", [DOCUMENTED, DOCUMENTED.replace("from __future__ import annotations", "")])
def test_code_without_docstrings_is_else_the_same(tmp_path: Path, text: str) -> None:
    source = tmp_path / "documented.py"
    source.write_text(text)
    names: dict[str, Any] = {"__name__": "documented"}
    exec(module_code_without_docstrings(source, "shown.py"), names)
    thing = names["Thing"]()
    described = (names["only"], names["two"], names["later"], thing, thing.method, thing.method())
    assert [each.__doc__ for each in described] == [None] * 6
    assert names.get("__doc__") is None
    assert (names["only"](), names["two"](), thing.note) == (None, "kept", "kept")
    assert inspect.iscoroutinefunction(names["later"])
    with pytest.raises(AssertionError) as caught:
        names["fails"]()
    frame = inspect.getinnerframes(caught.tb)[-1]
    assert (frame.filename, text.splitlines()[frame.lineno - 1]) == ("shown.py", "    assert 1 == 2")
