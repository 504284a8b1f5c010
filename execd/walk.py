"""Walking trees of any size and depth in order, with bounded memory, never through a link."""

import os
from collections.abc import Iterator
from typing import Final

__all__ = ["walk"]

_ENTRIES_AT_ONCE: Final = 50_000
_ENTRIES_PER_READ: Final = 2_000
_ENTRIES_PER_STEP: Final = 100

Entry = tuple[str, bool]
"""Name, and whether it is a directory."""


def walk(root: str, *, depth: int | None = None) -> Iterator[tuple[str, bool] | None]:
    """Give the paths of all below `root`, and whether each is a directory, by name, each directory before its content.

    depth: 1 for direct children only. None comes now and then, as a place to pause. Raises OSError if root cannot be
    read; other directories that cannot are as good as empty.
    """
    if depth == 0:
        return
    levels = [(root, _entries_in_order(root, _ENTRIES_AT_ONCE, flags=0))]
    given = 0
    while levels:
        directory, entries = levels[-1]
        try:
            entry = next(entries, None)
        except OSError:
            if len(levels) == 1:
                raise
            entry = None
        if entry is None:
            levels.pop()
            yield None
        elif not entry[0]:
            yield None
        else:
            path = os.path.join(directory, entry[0])
            yield path, entry[1]
            given += 1
            if given % _ENTRIES_PER_STEP == 0:
                yield None
            if entry[1] and (depth is None or len(levels) < depth):
                # All levels hold entries at the same time: the deeper ones hold fewer.
                levels.append((path, _entries_in_order(path, _ENTRIES_AT_ONCE // (len(levels) + 1))))


def _entries_in_order(directory: str, at_once: int, *, flags: int = os.O_NOFOLLOW) -> Iterator[Entry]:
    """Give a directory's entries by name; an entry without a name is a place to pause.

    Never holds more than 2 * at_once of them: a directory with more is read several times.
    """
    place = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | flags)
    try:
        yield from _windows(place, max(at_once, 100))
    finally:
        os.close(place)


def _windows(place: int, at_once: int) -> Iterator[Entry]:
    last = ""
    is_complete = False
    while not is_complete:
        found: list[Entry] = []
        bound = None
        with os.scandir(place) as entries:
            for number, entry in enumerate(entries, 1):
                if number % _ENTRIES_PER_READ == 0:
                    yield "", False
                if entry.name > last and (bound is None or entry.name < bound):
                    found.append((entry.name, _is_directory(entry)))
                if len(found) >= 2 * at_once:
                    found.sort()
                    bound = found[at_once][0]
                    del found[at_once:]
        found.sort()
        is_complete = bound is None
        yield from found
        last = found[-1][0] if found else last


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False
