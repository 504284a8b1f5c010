"""Names in a layer that hide what lower layers have, and the form in which overlay reads them.

In archives `.wh.NAME` hides NAME, and `.wh..wh..opq` hides all that is below its folder. To overlay a device 0:0 and
an attribute of the folder say so; the attribute is the one of root, since an image can carry neither.
"""

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from core.errors import BadImageError
from runtimes.local.images.confined import ConfinedFolder, PathParts
from runtimes.local.images.stacking import OPAQUE_ATTRIBUTE, find_in_layers

__all__ = ["Whiteouts"]

_PREFIX = b".wh."
_META = b".wh..wh."
_OPAQUE = b".wh..wh..opq"


class Whiteouts:
    """What one layer hides. All of it lies in lower layers: what the layer itself has at such a path stays."""

    def __init__(self) -> None:
        """Nothing yet."""
        self.hidden: set[PathParts] = set()
        self.opaque: set[PathParts] = set()

    def take(self, path: PathParts) -> bool:
        """Note an entry if it is a whiteout; False if it is none. Raises BadImageError for one of nothing."""
        if not path or not path[-1].startswith(_PREFIX):
            return False
        if path[-1] == _OPAQUE:
            self.opaque.add(path[:-1])
        elif not path[-1].startswith(_META):
            # The others that begin like this are the book-keeping of an old file system, not part of the image.
            name = path[-1].removeprefix(_PREFIX)
            if name in (b"", b".", b".."):
                raise BadImageError("a whiteout of no name")
            self.hidden.add((*path[:-1], name))
        return True

    @property
    def hides_all(self) -> bool:
        """True if nothing of the layers below is left."""
        return () in self.opaque

    def settle(self, folder: ConfinedFolder) -> None:
        """Reduce to what is left to do once the layer is unpacked.

        A hidden path at which the layer has a folder of its own is an opaque one; one at which it has something else
        needs no word; what is below a path that is gone is gone with it.
        """
        gone: set[PathParts] = set()
        for path in sorted(self.hidden):
            if _has_ancestor(path, gone):
                continue
            found = folder.stat(path)
            if found is None:
                gone.add(path)
            elif stat.S_ISDIR(found.st_mode):
                self.opaque.add(path)
        self.hidden = gone
        self.opaque = {path for path in self.opaque if path not in gone and not _has_ancestor(path, gone)}
        for path in sorted(self.opaque):
            # There may be nothing of the layer's own in it, yet it is the folder that hides.
            folder.open(path)

    def write_for_overlay(self, folder: ConfinedFolder, lowers: Sequence[Path]) -> None:
        """Put what is hidden into a settled layer, as overlay reads it. lowers: topmost first. Needs root.

        Only where there is something to hide: in folders that it does not merge with one below, overlay lists marks
        by their names.
        """
        for path in sorted(self.hidden):
            if self.hides_all or _has_ancestor(path, self.opaque) or find_in_layers(lowers, path) is None:
                continue
            os.mknod(path[-1], stat.S_IFCHR, os.makedev(0, 0), dir_fd=folder.open(path[:-1]))
        for path in sorted(self.opaque):
            os.setxattr(folder.open(path), OPAQUE_ATTRIBUTE, b"y")


def _has_ancestor(path: PathParts, among: set[PathParts]) -> bool:
    return any(path[:depth] in among for depth in range(1, len(path)))
