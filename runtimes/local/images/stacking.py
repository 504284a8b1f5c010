"""What is at a path in a stack of layers, by the rules of overlay."""

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from runtimes.local.images.confined import FOLDER_FLAGS, PathParts

__all__ = ["OPAQUE_ATTRIBUTE", "find_in_layers"]

OPAQUE_ATTRIBUTE = "trusted.overlay.opaque"
"""Of a folder that hides what layers below have in it. Only root can set it, so it is never an image's own."""


def find_in_layers(layers: Sequence[Path], path: PathParts) -> os.stat_result | None:
    """Give what the topmost layer that has the path has there, not followed; None if nothing is there to be seen.

    layers: top first. Hidden paths are seen as such where they are marked for overlay.
    """
    for layer in layers:
        found, goes_on = _find_in(layer, path)
        if not goes_on:
            return found
    return None


def _find_in(layer: Path, path: PathParts) -> tuple[os.stat_result | None, bool]:
    """Look into one layer. Gives what is there, and whether the layers below have a say."""
    handle = os.open(layer, FOLDER_FLAGS)
    try:
        is_opaque = False
        for part in path[:-1]:
            below = os.open(part, FOLDER_FLAGS, dir_fd=handle)
            os.close(handle)
            handle = below
            is_opaque = is_opaque or OPAQUE_ATTRIBUTE in os.listxattr(handle)
        found = os.lstat(path[-1], dir_fd=handle) if path else os.fstat(handle)
    except FileNotFoundError:
        return None, not is_opaque
    except OSError:
        # Something else than a folder is on the way, a whiteout for one.
        return None, False
    finally:
        os.close(handle)
    return (None if stat.S_ISCHR(found.st_mode) else found), False
