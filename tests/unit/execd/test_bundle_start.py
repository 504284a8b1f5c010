"""Modules from the archive of the bundle: found, late, and with what they would compile."""

import marshal
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest

from execd.bundle_archive import Part, archive
from execd.bundle_start import Start, read_parts

REPOSITORY = Path(__file__).resolve().parents[3]


def code(text: str) -> CodeType:
    return compile(text, "shown.py", "exec")


def part(
    modules: dict[str, str], texts: dict[tuple[str, str], CodeType] | None = None, patterns: Any = ()
) -> bytes:
    entries = tuple((name, (name == "sm_package", code(text))) for name, text in modules.items())
    return marshal.dumps((entries, (), tuple((texts or {}).items()), tuple(patterns)))


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of modules in files of their own; all that is loaded meanwhile is forgotten."""
    before = set(sys.modules)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("sm_"):
            del sys.modules[name]


def test_modules_come_from_the_archive_and_others_of_a_package_from_files(library: Path) -> None:
    start = Start(str(library), {})
    start.add(part({"sm_package": "", "sm_package.inner": "A = 1"}))
    sys.meta_path.insert(0, start)  # type: ignore[arg-type]
    (library / "sm_package").mkdir()
    (library / "sm_package" / "other.py").write_text("B = 2")
    assert __import__("sm_package.inner").inner.A == 1
    assert __import__("sm_package.other").other.B == 2


def test_a_part_is_taken_with_the_first_of_its_modules(library: Path) -> None:
    start = Start(str(library), {})
    start.add_later(["sm_one", "sm_two"], part({"sm_one": "import sm_two", "sm_two": "A = 1"}))
    sys.meta_path.insert(0, start)  # type: ignore[arg-type]
    assert start.find_spec("sm_three") is None
    assert __import__("sm_one").sm_two.A == 1
    with pytest.raises(ModuleNotFoundError):
        __import__("sm_three")


@pytest.mark.parametrize("place", ["file", "archive"])
def test_a_late_module_is_loaded_by_what_is_not_known_of_it(library: Path, place: str) -> None:
    text = "import sys; sys.sm_loaded = True; KNOWN = OTHER = 3\ndef run(x): return x + OTHER"
    start = Start(str(library), {"sm_late": (False, (("KNOWN", 3), ("run", ...)))})
    if place == "archive":
        start.add_later(["sm_late"], part({"sm_late": text}))
    else:
        (library / "sm_late.py").write_text(text)
    sys.meta_path.insert(0, start)  # type: ignore[arg-type]
    module: Any = __import__("sm_late")
    run = module.run
    assert module.KNOWN == 3
    assert not hasattr(sys, "sm_loaded")
    assert run(1) == 4
    assert run(2) == 5
    assert sys.sm_loaded  # type: ignore[attr-defined]
    del sys.sm_loaded  # type: ignore[attr-defined]
    assert module.OTHER == 3
    assert type(module) is ModuleType


def test_a_late_module_that_is_not_there_is_missing(library: Path) -> None:
    sys.meta_path.insert(0, Start(str(library), {"sm_gone": (False, ())}))  # type: ignore[arg-type]
    module = __import__("sm_gone")
    with pytest.raises(ModuleNotFoundError, match="sm_gone"):
        module.anything  # noqa: B018


def test_texts_of_the_archive_are_not_compiled_again_and_others_are(library: Path) -> None:
    start = Start(str(library), {})
    start.add(part({}, {("exec", "A = 1"): code("A = 'from the archive'")}))
    module = ModuleType("dataclasses")
    start.prepare(module)
    for text, value in (("A = 1", "from the archive"), ("A = 2", 2)):
        scope: dict[str, Any] = {}
        module.exec(text, {}, scope)
        assert scope == {"A": value}


def test_expressions_of_the_archive_are_not_compiled_again_and_others_are(library: Path) -> None:
    made: list[Any] = []
    needs = Part(
        {}, {}, [], [(("a(?P<n>b+)", re.IGNORECASE.value), recorded("a(?P<n>b+)", re.IGNORECASE.value))]
    )
    nothing = Part({}, {}, [], [])
    file = library / "start.bin"
    file.write_bytes(archive(needs, nothing, lambda *_: ""))
    _, first, _ = read_parts(str(file))
    start = Start(str(library), {})
    start.add(first)
    module: Any = ModuleType("re._compiler")
    module.compile = lambda pattern, flags=0: made.append(pattern) or re.compile(pattern, flags)
    start.complete(module)
    known = module.compile("a(?P<n>b+)", re.IGNORECASE)
    assert made == []
    assert known.fullmatch("ABB")["n"] == "BB"
    assert (known.pattern, known.flags) == ("a(?P<n>b+)", re.compile("a(?P<n>b+)", re.IGNORECASE).flags)
    assert module.compile("x*").fullmatch("xx")
    assert made == ["x*"]


SERVES = """
import gc, sys, types
sys.modules["execd.daemon"] = daemon = types.ModuleType("execd.daemon")
daemon.main = lambda arguments: (gc.isenabled(), gc.get_freeze_count() > 1000, gc.get_count()[0] < 100, arguments)
from execd.bundle_start import main
made = [[] for _ in range(5000)]
sys.argv = ["execd", "--flag"]
print(main(FOLDER + "/execd.pyc"))
"""


def test_no_collection_looks_through_what_the_start_has_loaded(tmp_path: Path) -> None:
    nothing = Part({}, {}, [], [])
    (tmp_path / "start.bin").write_bytes(archive(nothing, nothing, lambda *_: ""))
    script = SERVES.replace("FOLDER", repr(str(tmp_path)))
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert done.stdout == "(True, True, True, ['--flag'])\n"


LISTENS = """
import _socket, os, sys
file = sys.modules.pop("_socket").__file__
from execd.bundle_start import listening
library = os.path.dirname(os.path.dirname(file))
arguments = listening(sys.argv[1:], library)
import socket
print(arguments)
if arguments != sys.argv[1:]:
    with socket.socket(fileno=int(arguments[1])) as listener, socket.create_connection(listener.getsockname()):
        print(listener.proto == socket.IPPROTO_TCP, listener.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR))
        print(os.get_inheritable(listener.fileno()))
"""


def listens(*arguments: str) -> list[str]:
    """What it makes of arguments, and what it then listens at."""
    done = subprocess.run(
        [sys.executable, "-c", LISTENS, *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.splitlines()


def test_it_listens_before_anything_else_is_loaded() -> None:
    arguments, socket_facts, is_inheritable = listens("--host", "127.0.0.1", "--port", "0", "--sealed")
    assert re.fullmatch(r"\['--listen-fd', '\d+', '--sealed'\]", arguments)
    assert socket_facts == "True 1"
    assert is_inheritable == "False"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--sealed"],
        ["--host", "127.0.0.1"],
        ["--listen-fd", "7", "--port", "1"],
        ["--host", "127.0.0.1", "--port", "99999999"],
        ["--host", "127.0.0.1", "--port", "x"],
        ["--host", "192.0.2.1", "--port", "0"],
    ],
    ids=" ".join,
)
def test_what_it_cannot_listen_at_is_left_to_who_reads_all_arguments(arguments: list[str]) -> None:
    assert listens(*arguments) == [str(arguments)]


def recorded(pattern: str, flags: int) -> list[Any]:
    """What the compiler of regular expressions makes of one."""
    from re import _compiler, _parser  # type: ignore[attr-defined]  # noqa: PLC0415

    parsed = _parser.parse(pattern, flags)
    state = parsed.state
    indexes = [None] * state.groups
    for name, group in state.groupdict.items():
        indexes[group] = name
    numbers = [int(number) for number in _compiler._code(parsed, flags)]
    return [flags | state.flags, numbers, state.groups - 1, dict(state.groupdict), tuple(indexes)]
