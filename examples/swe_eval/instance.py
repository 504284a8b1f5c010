"""Makes the instance: the old release, the patch that made the new one, its tests, and four predictions."""

import ast
import difflib
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from examples.swe_eval.errors import ExampleError
from examples.swe_eval.sdist import read_files

__all__ = ["Instance", "Prediction", "build_instance", "find_test_ids", "make_patch"]

SOURCE = "more_itertools"
TESTS = "tests"

_OFF_BY_ONE = (
    b"return chain.from_iterable(repeat(tuple(iterable), n))",
    b"return chain.from_iterable(repeat(tuple(iterable), n + 1))",
)

_OUT_OF_PLACE = b"""\
--- a/more_itertools/more.py
+++ b/more_itertools/more.py
@@ -10,5 +10,5 @@
 def every_item_twice(iterable):
     '''A function that this release does not have.'''
-    return repeat_each_item(iterable, times=1)
+    return repeat_each_item(iterable, times=2)
\x20
\x20
"""


@dataclass(frozen=True, slots=True)
class Prediction:
    """A patch somebody offers as the solution. expected: the outcome that a sound evaluation gives it."""

    name: str
    patch: bytes
    expected: str


@dataclass(frozen=True, slots=True)
class Instance:
    """One SWE-bench style task. Paths are relative to the checkout.

    files: the old release, tests included. test_patch: from the old tests to the new ones. test_modules: dotted names
    of the modules with tests. candidates: ids of all tests that the new test files define.
    """

    name: str
    files: Mapping[str, bytes]
    test_patch: bytes
    test_modules: tuple[str, ...]
    candidates: tuple[str, ...]
    gold: bytes
    predictions: tuple[Prediction, ...]

    @property
    def digest(self) -> str:
        """SHA-256 over all that decides which tests pass, in hex."""
        found = hashlib.sha256()
        parts = [*self.files.items(), ("gold", self.gold), ("tests", self.test_patch)]
        for name, content in parts:
            found.update(f"{name}\0{len(content)}\0".encode() + content)
        return found.hexdigest()


def build_instance(old_archive: Path, new_archive: Path) -> Instance:
    """Make the instance of two adjacent releases. Raises ExampleError when they are not what they were."""
    old = read_files(old_archive, (SOURCE, TESTS))
    new = read_files(new_archive, (SOURCE, TESTS))
    old_source, new_source = _below(old, SOURCE), _below(new, SOURCE)
    gold = make_patch(old_source, new_source)
    new_tests = _below(new, TESTS)
    modules = [path for path in new_tests if Path(path).name.startswith("test_") and path.endswith(".py")]
    return Instance(
        name=new_archive.name.removesuffix(".tar.gz"),
        files=old,
        test_patch=make_patch(_below(old, TESTS), new_tests),
        test_modules=tuple(_module_name(path) for path in modules),
        candidates=tuple(test_id for path in modules for test_id in find_test_ids(path, new_tests[path])),
        gold=gold,
        predictions=(
            Prediction("gold", gold, "passed"),
            Prediction("empty", b"", "failed"),
            Prediction("does-not-apply", _OUT_OF_PLACE, "failed"),
            Prediction("breaks-a-test", make_patch(old_source, _break(new_source)), "failed"),
        ),
    )


def make_patch(old: Mapping[str, bytes], new: Mapping[str, bytes]) -> bytes:
    """Write the unified diff between two trees, as git does; empty when they are equal."""
    parts: list[str] = []
    for path in sorted({*old, *new}):
        if old.get(path) == new.get(path):
            continue
        before = f"a/{path}" if path in old else "/dev/null"
        after = f"b/{path}" if path in new else "/dev/null"
        lines = difflib.unified_diff(_lines(old.get(path, b"")), _lines(new.get(path, b"")), before, after)
        parts += [
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
        ]
    return "".join(parts).encode("utf-8", "surrogateescape")


def find_test_ids(path: str, source: bytes) -> Iterator[str]:
    """Give `module.Class.method` for the test methods in a file, inherited ones of the same file included.

    Doctests are left out: they lie in the code under evaluation, which a submission may change.
    """
    tree = ast.parse(source)
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    for name in classes:
        for method in _test_methods(name, classes):
            yield f"{_module_name(path)}.{name}.{method}"


def _test_methods(name: str, classes: Mapping[str, ast.ClassDef]) -> dict[str, None]:
    node = classes.get(name)
    if node is None:
        return {}
    found: dict[str, None] = {}
    for base in node.bases:
        if isinstance(base, ast.Name):
            found |= _test_methods(base.id, classes)
    own = [item.name for item in node.body if isinstance(item, ast.FunctionDef)]
    return found | dict.fromkeys(name for name in own if name.startswith("test"))


def _module_name(path: str) -> str:
    return path.removesuffix(".py").replace("/", ".")


def _below(files: Mapping[str, bytes], folder: str) -> dict[str, bytes]:
    return {path: content for path, content in files.items() if path.startswith(f"{folder}/")}


def _lines(content: bytes) -> list[str]:
    # splitlines() would also split at form feeds and other characters that are no line ends to a patch.
    lines = content.decode("utf-8", "surrogateescape").split("\n")
    return [f"{line}\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def _break(source: Mapping[str, bytes]) -> dict[str, bytes]:
    """Let one function of the new release repeat once too often, as a careless edit does."""
    right, wrong = _OFF_BY_ONE
    changed = {path: content.replace(right, wrong) for path, content in source.items()}
    if changed == source:
        raise ExampleError(f"the new release has no line {right.decode()!r} to break")
    return changed
