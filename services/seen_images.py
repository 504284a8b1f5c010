import threading
from collections import OrderedDict

__all__ = ["SeenImages"]


class SeenImages:
    """The images that the last sandboxes of this node were made from, for the scheduler to place by. Thread-safe."""

    def __init__(self, *, most: int = 64) -> None:
        """most: how many are remembered."""
        self._most = most
        self._images: OrderedDict[str, None] = OrderedDict()
        self._told: frozenset[str] = frozenset()
        self._lock = threading.Lock()

    def note(self, image: str) -> None:
        """A sandbox was made from it."""
        with self._lock:
            self._images[image] = None
            self._images.move_to_end(image)
            if len(self._images) > self._most:
                self._images.popitem(last=False)

    def untold(self) -> list[str] | None:
        """Give all of them if they are others than were told last; `told` says that they were."""
        with self._lock:
            return None if self._told == self._images.keys() else sorted(self._images)

    def told(self, images: list[str]) -> None:
        """Remember what the scheduler knows."""
        with self._lock:
            self._told = frozenset(images)
