import contextlib
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services import patch_hunks, patch_parsing, patches
from services.patch_hunks import SearchBudget, SearchBudgetError, apply_hunks
from services.patches import AppliedPatch, FileContent, PatchRejectedError, apply_patch
from tests.support.diffs import NUMBERS, diff

Files = dict[str, bytes]


def run(patch: bytes, files: Files, **options: object) -> AppliedPatch:
    return apply_patch(patch, lambda path: FileContent(files[path]) if path in files else None, **options)


def result(patch: bytes, files: Files, **options: object) -> dict[str, bytes | None]:
    changes = run(patch, files, **options).changes
    return {change.path: change.content and change.content.data for change in changes}


line_texts = st.lists(
    st.sampled_from([b"a", b"b", b"", b"a\r", b"\xff\xfe", b"-- x", b"++ y", b"\\ z", b"@@ -1 +1 @@"]),
    max_size=14,
)
file_texts = st.builds(lambda lines, end: b"\n".join(lines) + end, line_texts, st.sampled_from([b"", b"\n"]))


@settings(max_examples=150, deadline=None)
@given(file_texts, file_texts, st.integers(1, 4))
def test_applying_a_diff_gives_the_new_text_byte_for_byte(old: bytes, new: bytes, context: int) -> None:
    patch = diff(old, new, context=context)
    expected = {} if old == new else {"f.py": new}
    assert result(patch, {"f.py": old}) == expected


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=300), st.booleans())
def test_random_bytes_are_refused_by_the_declared_error_only(noise: bytes, as_hunk: bool) -> None:
    head = b"diff --git a/f.py b/f.py\n--- a/f.py\n+++ b/f.py\n@@ -1,2 +1,2 @@\n" if as_hunk else b""
    with contextlib.suppress(PatchRejectedError):
        run(head + noise, {"f.py": b"a\nb\n"})


ONE_CHANGE = diff(NUMBERS, NUMBERS.replace(b"line 15\n", b"fifteen\n"))


@pytest.mark.parametrize(
    "shift",
    [b"new\n" * 5, b"new\n" * 200, b""],
    ids=["few-lines-lower", "many-lines-lower", "in-place"],
)
def test_hunk_is_found_at_another_line(shift: bytes) -> None:
    assert result(ONE_CHANGE, {"f.py": shift + NUMBERS})["f.py"] == shift + NUMBERS.replace(
        b"line 15", b"fifteen"
    )


def test_hunk_is_found_above_its_line() -> None:
    shorter = NUMBERS.partition(b"line 10\n")[2]
    assert result(ONE_CHANGE, {"f.py": shorter})["f.py"] == shorter.replace(b"line 15", b"fifteen")


def test_nearest_of_two_places_is_taken() -> None:
    block = b"x\nx\nx\nold\ny\ny\ny\n"
    patch = diff(b"top\n" * 20 + block, b"top\n" * 20 + block.replace(b"old", b"new"))
    moved = b"top\n" * 10 + block + b"top\n" * 6 + block + b"top\n" * 40
    expected = b"top\n" * 10 + block + b"top\n" * 6 + block.replace(b"old", b"new") + b"top\n" * 40
    assert result(patch, {"f.py": moved})["f.py"] == expected


@pytest.mark.parametrize(("changed", "fits"), [(1, True), (2, True), (3, False)])
def test_up_to_two_outer_context_lines_may_differ(changed: int, fits: bool) -> None:
    text = NUMBERS
    for number in range(12, 12 + changed):
        text = text.replace(b"line %d\n" % number, b"other %d\n" % number)
    if fits:
        assert result(ONE_CHANGE, {"f.py": text})["f.py"] == text.replace(b"line 15", b"fifteen")
    else:
        with pytest.raises(PatchRejectedError, match=r"f\.py: hunk 1: the old lines are not in the file"):
            run(ONE_CHANGE, {"f.py": text})


def git(names: str, *headers: str, body: str = "") -> bytes:
    lines = [f"diff --git {names}", *headers]
    return ("\n".join(lines) + "\n" + body).encode()


EDIT = "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-old\n+new\n"


def edit(old: str, new: str) -> bytes:
    assert old in EDIT
    return EDIT.replace(old, new).encode()


@pytest.mark.parametrize(
    ("patch", "files", "expected"),
    [
        pytest.param(b"", {"x": b"old\n"}, {}, id="empty"),
        pytest.param(b" \n\n", {"x": b"old\n"}, {}, id="blank"),
        pytest.param(git("a/x b/x", "new file mode 100644", "index 0..e6"), {}, {"x": b""}, id="new-empty"),
        pytest.param(git("a/x b/x", "deleted file mode 100644"), {"x": b""}, {"x": None}, id="delete-empty"),
        pytest.param(git("a/x b/y", "similarity index 100%", "rename from x", "rename to y"),
                     {"x": b"1"}, {"x": None, "y": b"1"}, id="rename"),
        pytest.param(git("a/x b/y", "similarity index 100%", "copy from x", "copy to y"),
                     {"x": b"1"}, {"y": b"1"}, id="copy"),
        pytest.param(
            git("a/x b/y", "rename from x", "rename to y") + git("a/y b/x", "rename from y", "rename to x"),
            {"x": b"1", "y": b"2"},
            {"x": b"2", "y": b"1"},
            id="swap",
        ),
        pytest.param(
            git("a/x b/x", "new file mode 100644") + git("a/x b/y", "rename from x", "rename to y"),
            {"x": b"1"},
            {"x": b"", "y": b"1"},
            id="new-file-where-one-was-moved-away",
        ),
        pytest.param(b"--- /dev/null\n+++ b/d/x\n@@ -0,0 +1,2 @@\n+1\n+2\n\\ No newline at end of file\n",
                     {}, {"d/x": b"1\n2"}, id="create"),
        pytest.param(b"--- a/x\n+++ /dev/null\n@@ -1 +0,0 @@\n-1\n", {"x": b"1\n"}, {"x": None}, id="delete"),
        pytest.param(b"--- a/x\t2024-01-01 10:00:00.0 +0000\n+++ b/x\t1970-01-01 00:00:00.0 +0000\n"
                     b"@@ -1 +0,0 @@\n-1\n", {"x": b"1\n"}, {"x": None}, id="delete-by-epoch"),
        pytest.param(b"--- a/x\n+++ b/x\n@@ -1 +0,0 @@\n-1\n", {"x": b"1\n"}, {"x": b""}, id="emptied"),
        pytest.param(b"--- a/x\n+++ b/x\n@@ -2,0 +3,1 @@\n+mid\n",
                     {"x": b"1\n2\n3\n"}, {"x": b"1\n2\nmid\n3\n"}, id="no-context"),
        pytest.param(b"--- a/x\n+++ b/x\n@@ -1,0 +2,1 @@\n+2\n", {"x": b"1"}, {"x": b"1\n2\n"}, id="after-open-line"),
        pytest.param(b"--- a/x.orig\n+++ b/x.new\n@@ -1 +1 @@\n-1\n+2\n",
                     {"x.orig": b"1\n"}, {"x.orig": b"2\n"}, id="backup-name"),
        pytest.param(b"Subject: x\n--- \n+++ text\n" + EDIT.encode() + b"-- \n2.39\n",
                     {"x": b"old\n"}, {"x": b"new\n"}, id="mail"),
        pytest.param(EDIT.encode() + b"--- a/x\n+++ b/x\n@@ -1 +1 @@\n-new\n+3\n",
                     {"x": b"old\n"}, {"x": b"3\n"}, id="same-file-twice"),
        pytest.param(edit("\n", "\r\n"), {"x": b"old\n"}, {"x": b"new\n"}, id="dos-patch-unix-file"),
        pytest.param(edit("\n", "\r\n"), {"x": b"old\r\n"}, {"x": b"new\r\n"}, id="dos-patch-dos-file"),
        pytest.param(b"--- a/x\n+++ b/x\n@@ -1,3 +1,3 @@\n-old\n+new\n\n \n",
                     {"x": b"old\n\n\n"}, {"x": b"new\n\n\n"}, id="stripped-blank-context"),
        pytest.param(b"--- a/x\n+++ b/x\n@@ -1,3 +1,3 @@\n-old\n+new\n",
                     {"x": b"old\n\n\n"}, {"x": b"new\n\n\n"}, id="chopped-blank-context"),
        pytest.param(edit("b/x", '"b/\\"\\303\\251\\t"').replace(b"a/x", b'"a/\\"\\303\\251\\t"'),
                     {'"\u00e9\t': b"old\n"}, {'"\u00e9\t': b"new\n"}, id="quoted-name"),
    ],
)  # fmt: skip
def test_form_of_diff_is_understood(patch: bytes, files: Files, expected: dict[str, bytes | None]) -> None:
    assert result(patch, files) == expected


@pytest.mark.parametrize(
    ("patch", "files", "reason"),
    [
        (b"hello\n", {}, "no unified diff"),
        (b"@@ -1 +1 @@\n-1\n+2\n", {}, "line 1 .*without the name"),
        (EDIT.encode(), {}, "x: the file does not exist"),
        (EDIT.encode(), {"x": b"other\n"}, "x: hunk 1: the old lines are not"),
        (EDIT.encode(), {"x": b"old\r\n"}, "x: hunk 1: the line endings differ"),
        (EDIT.encode(), {"x": b"old"}, "x: hunk 1"),
        (b"--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+1\n", {"x": b"1\n"}, "exists already"),
        (b"--- a/x\n+++ /dev/null\n@@ -1 +0,0 @@\n-1\n", {"x": b"1\n2\n"}, "hunk 1|holds more"),
        (b"--- a/x\n+++ b/x\n@@ -9,0 +9,1 @@\n+1\n", {"x": b"1\n2\n"}, "hunk 1"),
        (git("a/x b/x", "deleted file mode 100644"), {"x": b"1"}, "holds more"),
        (git("a/x b/y", "rename from x", "rename to y"), {"x": b"1", "y": b"2"}, "exists already"),
        (git("a/x b/y", "rename from x", "rename to y"), {}, "x: the file to rename does not exist"),
        (EDIT.encode() + git("a/x b/y", "rename from x", "rename to y"), {"x": b"old\n"}, "not a series"),
        (git("a/x b/x", "index 1..2", body="GIT binary patch\nliteral 3\nKcmZ\n"), {"x": b""}, "binary"),
        (b"Binary files a/x and b/x differ\n", {"x": b""}, "binary"),
        (git("a/x b/x", "new file mode 120000", body=EDIT), {}, "symbolic links"),
        (git("a/x b/x", "new file mode 160000"), {}, "submodules"),
        (git("a/x b/y"), {}, "names no file"),
        (edit("a/x", "/etc/x"), {}, "absolute"),
        (edit("b/x", "b/../../x"), {}, r"'\.\.'"),
        (edit("b/x", "b/./x"), {}, r"'\.'"),
        (edit("b/x", "x"), {}, "no more than 1 part"),
        (edit("b/x", '"b/\\000"'), {}, "NUL"),
        (edit("b/x", '"b/\\377"'), {}, "not UTF-8"),
        (edit("b/x", "b/" + "y" * 300), {}, "too long"),
        (git("a/x b/../y", "rename from x", "rename to ../y"), {"x": b""}, r"'\.\.'"),
        (edit("-1 +1", "-1,3 +1,9"), {"x": b"old\n"}, "shorter"),
        (edit("-old\n", "*old\n"), {"x": b"old\n"}, "line 4 .*none of"),
        (edit("-old\n", "-old\n-old\n"), {"x": b"old\n"}, "longer"),
        (edit("@@\n", "@@\n\\ No newline\n"), {"x": b"old\n"}, "follows no line"),
        (edit("+1 @@", "+1,99999999999 @@"), {"x": b"old\n"}, "no unified diff"),
        (b"diff --git a/" + b"x" * 9999 + b"\n", {}, "header line is too long"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_patch_is_refused_with_its_reason(patch: bytes, files: Files, reason: str) -> None:
    with pytest.raises(PatchRejectedError, match=reason):
        run(patch, files)


def test_nothing_is_given_when_one_of_two_files_does_not_apply() -> None:
    with pytest.raises(PatchRejectedError) as caught:
        run(EDIT.encode() + edit("/x", "/y"), {"x": b"old\n", "y": b"other\n"})
    assert (caught.value.file, caught.value.hunk) == ("y", 1)


def test_continue_applies_what_it_can_and_lists_the_rest() -> None:
    broken = NUMBERS.replace(b"line 3\n", b"three\n" * 9)
    two = diff(NUMBERS, NUMBERS.replace(b"line 3\n", b"3\n").replace(b"line 25\n", b"25\n"))
    applied = run(two + EDIT.encode(), {"f.py": broken}, on_reject="continue")
    assert [change.path for change in applied.changes] == ["f.py"]
    assert applied.changes[0].content == FileContent(broken.replace(b"line 25\n", b"25\n"))
    assert [(reject.file, reject.hunk) for reject in applied.rejects] == [("f.py", 1), ("x", None)]


def test_mode_of_an_existing_file_is_kept_and_that_of_git_is_taken() -> None:
    kept = apply_patch(EDIT.encode(), lambda _: FileContent(b"old\n", 0o640))
    assert kept.changes[0].content == FileContent(b"new\n", 0o640)
    patch = git("a/x b/x", "old mode 100644", "new mode 100755")
    changed = apply_patch(patch, lambda _: FileContent(b"old\n", 0o644))
    assert changed.changes[0].content == FileContent(b"old\n", 0o755)


@pytest.mark.parametrize(("strip", "path"), [(0, "a/b/x"), (1, "b/x"), (2, "x")])
def test_strip_takes_leading_parts_off(strip: int, path: str) -> None:
    patch = b"--- a/b/x\n+++ a/b/x\n@@ -1 +1 @@\n-1\n+2\n"
    assert result(patch, {path: b"1\n"}, strip=strip) == {path: b"2\n"}


def test_deletions_come_first_so_that_a_folder_can_take_the_name_of_a_file() -> None:
    patch = b"--- /dev/null\n+++ b/x/y\n@@ -0,0 +1 @@\n+1\n--- a/x\n+++ /dev/null\n@@ -1 +0,0 @@\n-1\n"
    assert [change.path for change in run(patch, {"x": b"1\n"}).changes] == ["x", "x/y"]


@pytest.mark.parametrize(
    ("limit", "value"), [("MAX_PATCH_BYTES", 10), ("MAX_FILE_BYTES", 3), ("MAX_TOTAL_BYTES", 7)]
)
def test_size_limits_hold(monkeypatch: pytest.MonkeyPatch, limit: str, value: int) -> None:
    monkeypatch.setattr(patches, limit, value)
    with pytest.raises(PatchRejectedError, match=r"larger than|too many bytes"):
        run(EDIT.encode(), {"x": b"old\n"})


@pytest.mark.parametrize(("limit", "value"), [("MAX_FILES", 1), ("MAX_PATCH_LINES", 6)])
def test_counts_of_files_and_lines_are_limited(
    monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(patch_parsing, limit, value)
    with pytest.raises(PatchRejectedError, match=r"more than 1 files|too many lines"):
        run(EDIT.encode() + edit("/x", "/y"), {"x": b"old\n", "y": b"old\n"})


def test_search_for_hunks_is_bounded() -> None:
    text = b"x\n" * 50_000
    hunk = patch_parsing.Hunk(1, 3, ((b" ", b"x\n"), (b"-", b"y\n"), (b" ", b"x\n")))
    with pytest.raises(SearchBudgetError):
        apply_hunks(text, [hunk] * 50, SearchBudget(1_000_000))


def test_longest_files_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patch_hunks, "MAX_FILE_LINES", 2)
    with pytest.raises(PatchRejectedError, match="too long to be searched"):
        run(EDIT.encode(), {"x": b"old\n1\n2\n"})


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(b"diff --git " + b"://" * 1300 + b" " * 1300 + b"\n", id="git-header"),
        pytest.param(b"Binary files a" + b" and x" * 100_000 + b"\n", id="binary"),
        pytest.param(b"--- " * 100_000 + b"\n", id="name"),
        pytest.param(b"@@ -1 +1 " * 100_000 + b"\n", id="hunk-header"),
        pytest.param(b"\n" * 100_000 + b"x", id="blank-lines"),
        pytest.param(b"--- a/x\n+++ b/x\n@@ -1 +1 @@\n" * 20_000, id="empty-hunks"),
    ],
)
def test_hostile_lines_are_read_in_linear_time(line: bytes) -> None:
    started = time.process_time()
    with pytest.raises(PatchRejectedError):
        run(line, {})
    assert time.process_time() - started < 1.0
