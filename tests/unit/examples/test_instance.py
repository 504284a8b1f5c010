import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.swe_eval.errors import ExampleError
from examples.swe_eval.evaluation import TestLists
from examples.swe_eval.instance import find_test_ids, make_patch
from examples.swe_eval.sdist import read_files
from services.patches import FileContent, apply_patch

FOLDERS = ("more_itertools", "tests")


def apply(patch: bytes, files: dict[str, bytes]) -> dict[str, bytes]:
    """Apply with the service's own code, which is what will meet these patches."""

    def read(path: str) -> FileContent | None:
        return FileContent(files[path], 0o644) if path in files else None

    result = dict(files)
    for change in apply_patch(patch, read, strip=1).changes:
        if change.content is None:
            del result[change.path]
        else:
            result[change.path] = change.content.data
    return result


LINES = st.lists(st.sampled_from(["a", "b", "", " c", "-d", "+e", "\f", "\x85", "\u2028"]), max_size=12)
TEXTS = st.builds(lambda lines, end: "\n".join(lines) + end, LINES, st.sampled_from(["", "\n"]))
FILES = st.dictionaries(st.sampled_from(["p/a.py", "p/b.py", "q.txt"]), TEXTS.map(str.encode), max_size=3)


@given(FILES, FILES)
def test_patch_turns_the_old_tree_into_the_new_one(old: dict[str, bytes], new: dict[str, bytes]) -> None:
    # A diff has no way to say that an empty file is made or removed.
    old = {path: content for path, content in old.items() if content}
    new = {path: content for path, content in new.items() if content}
    assert apply(make_patch(old, new), old) == new


def test_equal_trees_give_an_empty_patch() -> None:
    assert make_patch({"a": b"x"}, {"a": b"x"}) == b""


def test_inherited_test_methods_are_found_once() -> None:
    source = b"""
class Shared:
    def test_shared(self): ...
    def test_both(self): ...
class One(Shared, unittest.TestCase):
    def test_both(self): ...
    def test_one(self): ...
    def helper(self): ...
"""
    ids = list(find_test_ids("tests/test_m.py", source))
    assert ids == [
        "tests.test_m.Shared.test_shared",
        "tests.test_m.Shared.test_both",
        "tests.test_m.One.test_shared",
        "tests.test_m.One.test_both",
        "tests.test_m.One.test_one",
    ]


def make_archive(path, members: dict[str, bytes]):
    with tarfile.open(path, "w:gz") as file:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
        link = tarfile.TarInfo("p-1/tests/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        file.addfile(link)
    return path


def test_only_regular_files_of_the_folders_are_read(tmp_path) -> None:
    members = {"p-1/tests/t.py": b"t", "p-1/setup.py": b"s", "p-1/more_itertools/m.py": b"m"}
    archive = make_archive(tmp_path / "p-1.tar.gz", members)
    assert read_files(archive, FOLDERS) == {"more_itertools/m.py": b"m", "tests/t.py": b"t"}


def test_broken_archive_is_told_in_one_line(tmp_path) -> None:
    path = tmp_path / "p-1.tar.gz"
    path.write_bytes(b"no archive")
    with pytest.raises(ExampleError, match=r"cannot read .*p-1\.tar\.gz"):
        read_files(path, FOLDERS)


@pytest.mark.parametrize(("fail_to_pass", "pass_to_pass"), [(0, 700), (9, 700), (41, 700), (18, 599)])
def test_implausible_lists_stop_the_run(fail_to_pass: int, pass_to_pass: int) -> None:
    with pytest.raises(ExampleError, match=f"{fail_to_pass} fail-to-pass and {pass_to_pass}"):
        TestLists(("f",) * fail_to_pass, ("p",) * pass_to_pass).check()


def test_plausible_lists_are_taken() -> None:
    TestLists(("f",) * 18, ("p",) * 629).check()
