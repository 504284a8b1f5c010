"""Compiled modules of the bundle: the same bytes again, whatever this interpreter did meanwhile."""

import marshal
import sys
import uuid
from pathlib import Path
from types import CodeType

import pytest

from execd.bundle_code import NoCodeError, compiled_module

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
