"""Reads unified diffs, plain and git's, as bytes: no decoding, so any encoding and line ending survives.

Written for hostile text: one pass over the lines, no regular expression with a choice to go back on. (The `unidiff`
package was tried first: one header line of 13 kB kept its patterns busy for 18 s, and time grows with the cube.)
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

__all__ = ["FilePatch", "Hunk", "MalformedPatchError", "parse_patch"]

MAX_PATCH_LINES = 1_000_000
MAX_FILES = 5_000
MAX_HEADER_BYTES = 9_000
"""Two paths of 4,096 bytes and their keyword."""

_HUNK = re.compile(rb"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@")
_MODE = re.compile(rb"(old mode|new mode|deleted file mode|new file mode) ([0-7]{6})$")
_EPOCH = re.compile(rb"(1970-01-01|1969-12-31) ")
_ESCAPES = {b"a": 7, b"b": 8, b"t": 9, b"n": 10, b"v": 11, b"f": 12, b"r": 13, b'"': 34, b"\\": 92}
_GIT_NOISE = (b"similarity index ", b"dissimilarity index ", b"index ")
_MAX_CHOPPED_LINES = 3


class MalformedPatchError(ValueError):
    """The text breaks the rules of unified diffs; the message names the line, from 1."""

    def __init__(self, line: int, reason: str) -> None:
        """line: where reading stopped."""
        super().__init__(f"line {line} of the patch: {reason}")


@dataclass(frozen=True, slots=True)
class Hunk:
    """One block of changes. lines: (b" ", b"-" or b"+", line with its terminator, if it has one).

    old_start: number of the first old line, from 1; with no old lines, the line after which to insert.
    """

    old_start: int
    old_count: int
    lines: tuple[tuple[bytes, bytes], ...]


@dataclass(slots=True)
class FilePatch:
    """The changes to one file. Names are raw, with their prefixes; None stands for `/dev/null`.

    moved: "rename" or "copy"; old and new name then come without prefix. old_mode, new_mode: git's, such as 0o100755.
    maybe_deleted: the new name has a time stamp at the epoch, as `diff -N` writes it for an absent file.
    """

    old: bytes | None = None
    new: bytes | None = None
    hunks: list[Hunk] = field(default_factory=list)
    old_mode: int | None = None
    new_mode: int | None = None
    moved: str = ""
    is_binary: bool = False
    is_created: bool = False
    is_deleted: bool = False
    maybe_deleted: bool = False
    has_dos_headers: bool = False


def parse_patch(patch: bytes) -> list[FilePatch]:
    """Read all file sections in order; text around them (commit messages, `Index:` lines) is passed over.

    Raises MalformedPatchError, also for more than MAX_PATCH_LINES lines or MAX_FILES sections.
    """
    if patch.count(b"\n") > MAX_PATCH_LINES:
        raise MalformedPatchError(MAX_PATCH_LINES, "the patch has too many lines")
    lines = patch.splitlines(keepends=True) if b"\r" not in patch else _split(patch)
    return list(_Parser(lines).files())


def _split(patch: bytes) -> list[bytes]:
    # splitlines would also end a line at a lone carriage return
    parts = patch.split(b"\n")
    lines = [part + b"\n" for part in parts[:-1]]
    return [*lines, parts[-1]] if parts[-1] else lines


class _Parser:
    def __init__(self, lines: list[bytes]) -> None:
        self._lines = lines
        self._at = 0
        self._count = 0

    def files(self) -> Iterator[FilePatch]:
        while self._at < len(self._lines):
            line = self._lines[self._at]
            if line.startswith(b"diff --git "):
                yield self._counted(self._git_section())
            elif self._is_name_pair():
                section = FilePatch()
                self._names(section)
                self._hunks(section)
                yield self._counted(section)
            elif line.startswith(b"Binary files ") and line.rstrip().endswith(b" differ"):
                self._at += 1
                yield self._counted(FilePatch(old=b"(binary)", new=b"(binary)", is_binary=True))
            elif _HUNK.match(line):
                raise self._error("a hunk without the name of its file")
            else:
                self._at += 1

    def _counted(self, section: FilePatch) -> FilePatch:
        self._count += 1
        if self._count > MAX_FILES:
            raise self._error(f"the patch changes more than {MAX_FILES} files")
        return section

    def _error(self, reason: str) -> MalformedPatchError:
        return MalformedPatchError(self._at + 1, reason)

    def _is_name_pair(self) -> bool:
        """Tell `--- a`, `+++ b`, `@@` from such lines in a commit message."""
        three = self._lines[self._at : self._at + 3]
        return (
            len(three) == 3
            and three[0].startswith(b"--- ")
            and three[1].startswith(b"+++ ")
            and _HUNK.match(three[2]) is not None
        )

    def _header(self) -> bytes:
        line = self._lines[self._at]
        if len(line) > MAX_HEADER_BYTES:
            raise self._error("a header line is too long")
        return line.rstrip(b"\r\n")

    def _git_section(self) -> FilePatch:
        section = FilePatch()
        section.old, section.new = _names_of_git_header(self._header()[len(b"diff --git ") :])
        self._at += 1
        while self._at < len(self._lines) and self._git_line(section, self._header_or_nothing()):
            self._at += 1
        if self._at < len(self._lines):
            line = self._lines[self._at]
            if line.startswith((b"GIT binary patch", b"Binary files ")):
                section.is_binary = True
                self._at += 1
            elif self._is_name_pair():
                self._names(section)
                self._hunks(section)
        if section.old is None and section.new is None:
            raise self._error("the section before names no file")
        return section

    def _header_or_nothing(self) -> bytes:
        # What follows the extended headers may be any text, of any length.
        line = self._lines[self._at]
        return b"" if len(line) > MAX_HEADER_BYTES else line.rstrip(b"\r\n")

    def _git_line(self, section: FilePatch, line: bytes) -> bool:
        """Take one extended header line; False when it is none."""
        mode = _MODE.match(line)
        if mode is not None:
            word, value = mode[1], int(mode[2], 8)
            if word in {b"old mode", b"deleted file mode"}:
                section.old_mode = value
            else:
                section.new_mode = value
            section.is_created |= word == b"new file mode"
            section.is_deleted |= word == b"deleted file mode"
            return True
        for kind in ("rename", "copy"):
            for end in ("from", "to"):
                keyword = f"{kind} {end} ".encode()
                if line.startswith(keyword):
                    name = _unquoted(line[len(keyword) :])
                    section.moved = kind
                    if end == "from":
                        section.old = name
                    else:
                        section.new = name
                    return True
        return line.startswith(_GIT_NOISE)

    def _names(self, section: FilePatch) -> None:
        section.has_dos_headers = self._lines[self._at].endswith(b"\r\n")
        old, _ = _name_and_stamp(self._header()[4:])
        self._at += 1
        new, new_is_epoch = _name_and_stamp(self._header()[4:])
        self._at += 1
        if not section.moved:  # the names of renames were read already, without prefix
            section.old, section.new = old, new
        section.is_created |= old is None
        section.is_deleted |= new is None
        section.maybe_deleted = new_is_epoch

    def _hunks(self, section: FilePatch) -> None:
        while self._at < len(self._lines):
            match = _HUNK.match(self._lines[self._at])
            if match is None:
                return
            self._at += 1
            counts = [1 if group is None else int(group) for group in match.groups()]
            section.hunks.append(Hunk(counts[0], counts[1], self._body(counts[1], counts[3])))

    def _body(self, old_left: int, new_left: int) -> tuple[tuple[bytes, bytes], ...]:
        body: list[tuple[bytes, bytes]] = []
        while old_left > 0 or new_left > 0:
            if self._at >= len(self._lines):
                if old_left == new_left <= _MAX_CHOPPED_LINES:
                    # Blank context lines at the very end get lost in mails and answers of models.
                    body += [(b" ", b"\n")] * old_left
                    break
                raise self._error("the last hunk is shorter than its header says")
            line = self._lines[self._at]
            kind, text = line[:1], line[1:]
            if kind == b"\\":
                self._end_without_newline(body)
                continue
            if line in {b"\n", b"\r\n"}:  # a blank context line whose blank was stripped
                kind, text = b" ", line
            if kind not in {b" ", b"-", b"+"}:
                raise self._error("a hunk line starts with none of ' ', '-', '+'")
            old_left -= kind != b"+"
            new_left -= kind != b"-"
            if old_left < 0 or new_left < 0:
                raise self._error("a hunk is longer than its header says")
            body.append((kind, text if text.endswith(b"\n") else text + b"\n"))
            self._at += 1
        if self._at < len(self._lines) and self._lines[self._at].startswith(b"\\"):
            self._end_without_newline(body)
        return tuple(body)

    def _end_without_newline(self, body: list[tuple[bytes, bytes]]) -> None:
        if not body or not body[-1][1].endswith(b"\n"):
            raise self._error("'\\ No newline' follows no line")
        body[-1] = (body[-1][0], body[-1][1][:-1])
        self._at += 1


def _name_and_stamp(text: bytes) -> tuple[bytes | None, bool]:
    """Split `name<TAB>time stamp`. Gives (name, or None for /dev/null; whether the stamp is the epoch)."""
    name, _, stamp = text.partition(b"\t")
    name = _unquoted(name)
    return (None if name == b"/dev/null" else name), _EPOCH.match(stamp) is not None


def _names_of_git_header(text: bytes) -> tuple[bytes | None, bytes | None]:
    """Find the two names in `a/x b/x`. They differ only in renames, where later lines give them, so equal ones do."""
    if text.startswith(b'"'):
        end = text.find(b'" ', 1)
        return (_unquoted(text[: end + 1]), _unquoted(text[end + 2 :])) if end > 0 else (None, None)
    middle = len(text) // 2
    old, new = text[:middle], text[middle + 1 :]
    if text[middle : middle + 1] == b" " and old.partition(b"/")[2] == new.partition(b"/")[2]:
        return old, new
    return None, None


def _unquoted(name: bytes) -> bytes:
    """Undo git's C-style quoting of names with special bytes."""
    if len(name) < 2 or not (name.startswith(b'"') and name.endswith(b'"')):
        return name
    out = bytearray()
    at, inner = 0, name[1:-1]
    while at < len(inner):
        byte = inner[at : at + 1]
        if byte != b"\\":
            out += byte
            at += 1
            continue
        octal = inner[at + 1 : at + 4]
        if len(octal) == 3 and octal.isdigit() and octal <= b"377" and not set(octal) & set(b"89"):
            out.append(int(octal, 8))
            at += 4
        else:
            out.append(_ESCAPES.get(inner[at + 1 : at + 2], 92))
            at += 2
    return bytes(out)
