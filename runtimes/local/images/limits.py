"""How much an image may take of this machine: its author is not trusted."""

from dataclasses import dataclass

__all__ = ["DEFAULT_LIMITS", "MAX_ID", "ImageLimits"]

MAX_ID = 65_535
"""Sandboxes map this many user and group ids: a file of a higher one would belong to nobody there."""


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """Caps on one image. All are set; none means unlimited.

    max_layer_bytes, max_image_bytes: unpacked. max_entries: of one layer; each costs an inode. max_ratio: unpacked to
    packed bytes, looked at from ratio_floor_bytes on, since small files of zeros are no attack. max_layers: what
    overlay takes in one mount. max_json_bytes: of a manifest or config, read whole. reserve_bytes: stays free on disk.
    """

    max_layer_bytes: int = 32 << 30
    max_image_bytes: int = 64 << 30
    max_entries: int = 1_000_000
    max_ratio: int = 250
    ratio_floor_bytes: int = 1 << 30
    max_depth: int = 128
    max_layers: int = 127
    max_json_bytes: int = 4 << 20
    reserve_bytes: int = 1 << 30


DEFAULT_LIMITS = ImageLimits()
