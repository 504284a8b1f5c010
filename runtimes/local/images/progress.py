"""How far a pull is."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

__all__ = ["ProgressListener", "PullProgress"]


@dataclass(frozen=True, slots=True)
class PullProgress:
    """How far a pull is. layer: from 1, the lowest; of so many layers. Bytes: packed, of this layer."""

    stage: Literal["download", "unpack"]
    layer: int
    layers: int
    done_bytes: int
    total_bytes: int


ProgressListener = Callable[[PullProgress], None]
