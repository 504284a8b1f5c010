"""Applies a unified diff to files, outside the sandbox and on bytes: the image needs neither patch(1) nor git.

Nothing here touches a file system: the caller gives a function that reads, and writes what comes back. Accepted are
plain and git diffs with new, deleted, renamed and copied files and the mode of executables. Refused, with the reason:
binary patches, symbolic links, submodules, and paths that are absolute, climb by `..` or are not UTF-8.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from services.patch_hunks import SearchBudget, SearchBudgetError, apply_hunks
from services.patch_parsing import FilePatch, Hunk, MalformedPatchError, parse_patch

__all__ = ["AppliedPatch", "FileChange", "FileContent", "PatchRejectedError", "apply_patch"]

MAX_PATCH_BYTES = 16 << 20
MAX_FILE_BYTES = 16 << 20
MAX_TOTAL_BYTES = 128 << 20
"""Old and new content of all files together; bounds the worker's memory."""

_NEW_FILE_MODE = 0o644
_GIT_FILE_MODES = {0o100644: 0o644, 0o100755: 0o755, 0o100664: 0o664}


@dataclass(frozen=True, slots=True)
class FileContent:
    """A regular file. mode: permission bits."""

    data: bytes
    mode: int = _NEW_FILE_MODE


@dataclass(frozen=True, slots=True)
class FileChange:
    """One file to write, or to delete when content is None. path: relative, as the patch names it after stripping."""

    path: str
    content: FileContent | None


class PatchRejectedError(Exception):
    """The patch, or one file or hunk of it, does not apply. hunk: its number in the file, from 1; None: the file.

    file is empty when the patch as a whole is refused.
    """

    def __init__(self, file: str, hunk: int | None, reason: str) -> None:
        """Build the one line a person reads."""
        where = f"{file}: " if file else ""
        super().__init__(f"{where}{'' if hunk is None else f'hunk {hunk}: '}{reason}")
        self.file = file
        self.hunk = hunk
        self.reason = reason


@dataclass(frozen=True, slots=True)
class AppliedPatch:
    """changes: one for each file that differs, deletions first. rejects: what was left out; empty unless "continue"."""

    changes: list[FileChange]
    rejects: list[PatchRejectedError]


def apply_patch(
    patch: bytes,
    read: Callable[[str], FileContent | None],
    *,
    strip: int = 1,
    on_reject: Literal["fail", "continue"] = "fail",
) -> AppliedPatch:
    """Work out what the patch changes.

    read: relative path to the file as it is, None if there is none; called once per path. strip: leading parts taken
    off each name, as `patch -p`. Raises PatchRejectedError for a patch that is too large or not a unified diff, and,
    under "fail", for the first file or hunk that does not apply: then nothing is to be written. Under "continue" all
    that applies is given, and the rest listed. A patch of nothing but white space changes nothing.
    """
    if not patch.strip():
        return AppliedPatch([], [])
    if len(patch) > MAX_PATCH_BYTES:
        raise PatchRejectedError("", None, f"the patch is larger than {MAX_PATCH_BYTES} bytes")
    try:
        sections = parse_patch(patch)
    except MalformedPatchError as error:
        raise PatchRejectedError("", None, str(error)) from error
    if not sections:
        raise PatchRejectedError("", None, "there is no unified diff in the patch")
    tree = _Tree(read)
    tree.leaving = {name for section in sections for name in _leaving(section, strip)}
    applier = _Applier(tree, strip, keep_going=on_reject == "continue")
    for section in sections:
        applier.apply(section)
    return AppliedPatch(tree.changes(), applier.rejects)


@dataclass(slots=True)
class _Tree:
    """The files as the patch leaves them, over the files as they were."""

    read: Callable[[str], FileContent | None]
    before: dict[str, FileContent | None] = field(default_factory=dict)
    after: dict[str, FileContent | None] = field(default_factory=dict)
    leaving: set[str] = field(default_factory=set)  # names that some section moves away or deletes
    arrived: set[str] = field(default_factory=set)  # names that a section moved a file to, or created
    total_bytes: int = 0

    def original(self, path: str) -> FileContent | None:
        if path not in self.before:
            content = self.read(path)
            self._charge(path, content)
            self.before[path] = content
        return self.before[path]

    def current(self, path: str) -> FileContent | None:
        return self.after[path] if path in self.after else self.original(path)

    def put(self, path: str, content: FileContent | None) -> None:
        self._charge(path, content)
        self.after[path] = content

    def changes(self) -> list[FileChange]:
        changed = [
            FileChange(path, content)
            for path, content in self.after.items()
            if content != self.before.get(path)
        ]
        # A file may have to make room for a folder of the same name.
        return sorted(changed, key=lambda change: change.content is not None)

    def _charge(self, path: str, content: FileContent | None) -> None:
        if content is None:
            return
        self.total_bytes += len(content.data)
        if len(content.data) > MAX_FILE_BYTES or self.total_bytes > MAX_TOTAL_BYTES:
            raise PatchRejectedError(path, None, "too many bytes to be patched")


@dataclass(slots=True)
class _Applier:
    tree: _Tree
    strip: int
    keep_going: bool
    rejects: list[PatchRejectedError] = field(default_factory=list)
    budget: SearchBudget = field(default_factory=SearchBudget)

    def apply(self, section: FilePatch) -> None:
        try:
            self._apply(section)
        except PatchRejectedError as reject:
            if not self.keep_going:
                raise
            self.rejects.append(reject)

    def _apply(self, section: FilePatch) -> None:
        source, target = _paths(section, self.strip)
        if section.is_binary:
            raise PatchRejectedError(target, None, "binary patches are not supported")
        mode = _permissions(section, target)
        if section.moved:
            old = self._moved(section, source, target)
        else:
            source = target = self._existing(source, target)
            old = self._in_place(section, target)
        data = self._patched(section, target, old.data)
        if section.is_deleted or (section.maybe_deleted and not data):
            if data:
                raise PatchRejectedError(target, None, "the file to delete holds more than the patch removes")
            self.tree.put(target, None)
            return
        if section.moved == "rename" and source not in self.tree.arrived:
            self.tree.put(source, None)
        if section.moved or section.is_created:
            self.tree.arrived.add(target)
        self.tree.put(target, FileContent(data, old.mode if mode is None else mode))

    def _existing(self, source: str, target: str) -> str:
        """Plain diffs may name a backup (`a.py.orig`) on either side: take the side that is there."""
        if target != source and self.tree.current(target) is None and self.tree.current(source) is not None:
            return source
        return target

    def _moved(self, section: FilePatch, source: str, target: str) -> FileContent:
        # As git does: renames and copies start from the files as they were before the patch, so names can be swapped.
        old = self.tree.original(source)
        if old is None:
            raise PatchRejectedError(source, None, f"the file to {section.moved} does not exist")
        is_changed = source in self.tree.after and source not in self.tree.arrived
        if section.moved == "rename" and is_changed:
            raise PatchRejectedError(
                source, None, "the file is changed and then renamed: send one diff, not a series"
            )
        if target != source and target not in self.tree.leaving and self.tree.current(target) is not None:
            raise PatchRejectedError(target, None, f"the file to {section.moved} to exists already")
        return old

    def _in_place(self, section: FilePatch, target: str) -> FileContent:
        old = self.tree.current(target)
        if section.is_created and target in self.tree.leaving and target not in self.tree.after:
            old = None  # a later section takes the present file away
        first = section.hunks[0] if section.hunks else None
        starts_empty = section.is_created or (first is not None and first.old_start == first.old_count == 0)
        if old is None and not starts_empty:
            raise PatchRejectedError(target, None, "the file does not exist")
        if old is not None and old.data and starts_empty:
            raise PatchRejectedError(target, None, "the file to create exists already")
        return old or FileContent(b"")

    def _patched(self, section: FilePatch, target: str, data: bytes) -> bytes:
        try:
            result, rejected = apply_hunks(data, section.hunks, self.budget)
            if rejected and section.has_dos_headers:
                # The whole patch went through a system that ends lines by CR LF; the files did not.
                plain = [_without_cr(hunk) for hunk in section.hunks]
                retried, still_rejected = apply_hunks(data, plain, self.budget)
                if len(still_rejected) < len(rejected):
                    result, rejected = retried, still_rejected
            if rejected:
                self._reject(section, target, data, rejected)
        except SearchBudgetError as error:
            raise PatchRejectedError(
                target, None, "the file is too long to be searched for the hunks"
            ) from error
        return result

    def _reject(self, section: FilePatch, target: str, data: bytes, numbers: list[int]) -> None:
        plain = [_without_cr(section.hunks[number - 1]) for number in numbers]
        _, still_rejected = apply_hunks(data.replace(b"\r\n", b"\n"), plain, self.budget)
        reason = "the old lines are not in the file" if still_rejected else "the line endings differ"
        found = [PatchRejectedError(target, number, reason) for number in numbers]
        if not self.keep_going:
            raise found[0]
        self.rejects += found


def _without_cr(hunk: Hunk) -> Hunk:
    lines = ((kind, line[:-2] + b"\n" if line.endswith(b"\r\n") else line) for kind, line in hunk.lines)
    return replace(hunk, lines=tuple(lines))


def _permissions(section: FilePatch, target: str) -> int | None:
    """Translate git's mode; None leaves it as it is."""
    for mode in (section.old_mode, section.new_mode):
        if mode is not None and mode not in _GIT_FILE_MODES:
            kind = {0o120000: "symbolic links", 0o160000: "submodules"}.get(mode, f"files of mode {mode:o}")
            raise PatchRejectedError(target, None, f"{kind} are not supported")
    return None if section.new_mode is None else _GIT_FILE_MODES[section.new_mode]


def _leaving(section: FilePatch, strip: int) -> list[str]:
    """Name the file that the section moves away or deletes, so that another one may take its place."""
    if section.moved != "rename" and not section.is_deleted:
        return []
    try:
        return [_paths(section, strip)[0]]
    except PatchRejectedError:
        return []  # told when the section is applied


def _paths(section: FilePatch, strip: int) -> tuple[str, str]:
    """Give old and new path; of created and deleted files the one there is, twice."""
    # git's rename and copy lines leave the prefix out that all other names have
    parts = max(strip - 1, 0) if section.moved else strip
    old, new = section.old or section.new, section.new or section.old
    return _safe_path(old or b"", parts), _safe_path(new or b"", parts)


def _safe_path(raw: bytes, strip: int) -> str:
    shown = raw.decode("utf-8", "backslashreplace")
    try:
        name = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise PatchRejectedError(shown, None, "the path is not UTF-8") from None
    parts = name.split("/")[strip:]
    if name.startswith("/"):
        raise PatchRejectedError(shown, None, "absolute paths are not allowed")
    if not parts:
        raise PatchRejectedError(shown, None, f"the path has no more than {strip} parts to strip")
    if any(part in {"", ".", ".."} for part in parts) or "\x00" in name:
        raise PatchRejectedError(shown, None, "the path has an empty part, '.', '..' or NUL in it")
    if len(name.encode()) > 4096 or any(len(part.encode()) > 255 for part in parts):
        raise PatchRejectedError(shown[:100] + "…", None, "the path is too long")
    return "/".join(parts)
