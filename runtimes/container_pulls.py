"""Fetching images through the engine: one pull per image at a time, which all who wait for it share."""

import hashlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from core.errors import CreateTimeoutError
from runtimes.base import ImageAuth, OnProgress
from runtimes.deadline import Deadline

__all__ = ["PullProgress", "Pulls"]

_TELL_SECONDS = 0.25
_REPEAT_SECONDS = 1.0
"""Who is told may have had no time for the last news; where the registry is stuck after it, no other would follow."""
_MB = 1_000_000

Fetch = Callable[[str, ImageAuth | None, "PullProgress", Callable[[], bool]], None]
"""Pulls an image; asks the last argument, now and then, whether nobody waits for it any more."""


@dataclass(slots=True)
class PullProgress:
    """How far a pull has come, from the engine's lines about it. layers: by id, whether each is all there."""

    image: str
    layers: dict[str, bool] = field(default_factory=dict)
    _bytes: dict[str, tuple[int, int]] = field(default_factory=dict)

    def take(self, line: Mapping[str, Any]) -> None:
        """Read one line."""
        layer, status = line.get("id"), line.get("status")
        if not isinstance(layer, str) or not isinstance(status, str):
            return
        if status in ("Pulling fs layer", "Waiting"):
            self.layers.setdefault(layer, False)
        elif status in ("Already exists", "Pull complete"):
            self.layers[layer] = True
        detail = line.get("progressDetail")
        if status == "Downloading" and isinstance(detail, Mapping) and detail.get("total"):
            self._bytes[layer] = (int(detail.get("current", 0)), int(detail["total"]))
        elif status in ("Download complete", "Verifying Checksum", "Extracting", "Pull complete"):
            total = self._bytes.get(layer, (0, 0))[1]
            self._bytes[layer] = (total, total)

    def __str__(self) -> str:
        """In words: `pulling IMAGE: 3 of 7 layers, 40 MB of 120 MB`."""
        if not self.layers:
            return f"pulling {self.image}"
        done = sum(self.layers.values())
        text = f"pulling {self.image}: {done} of {len(self.layers)} layers"
        here, total = (
            (sum(column) for column in zip(*self._bytes.values(), strict=True)) if self._bytes else (0, 0)
        )
        return f"{text}, {here / _MB:.0f} MB of {total / _MB:.0f} MB" if total >= _MB else text


@dataclass(slots=True)
class _Pull:
    """One under way. ends: when the last of those who wait for it gives up, on the monotonic clock."""

    progress: PullProgress
    ends: float
    is_over: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None
    waiting: int = 0


class Pulls:
    """The pulls of one engine. Who waits gives up at its own deadline; the pull goes on while anybody waits."""

    def __init__(self, fetch: Fetch) -> None:
        """fetch: does it; raises what becomes the error of all who wait."""
        self._fetch = fetch
        self._lock = threading.Lock()
        self._running: dict[tuple[str, str], _Pull] = {}

    def pull(self, image: str, auth: ImageAuth | None, deadline: Deadline, say: OnProgress) -> None:
        """Fetch an image. Raises CreateTimeoutError, and the errors of fetch."""
        # Others' credentials are another pull: who has none, or wrong ones, must not get it through somebody else's.
        key = (image, _fingerprint(auth))
        with self._lock:
            pull = self._running.get(key)
            if pull is None or pull.is_over.is_set():
                pull = self._running[key] = _Pull(PullProgress(image), 0.0)
                arguments = (key, pull, image, auth)
                threading.Thread(target=self._run, args=arguments, name="pull", daemon=True).start()
            pull.waiting += 1
            pull.ends = max(pull.ends, time.monotonic() + deadline.remaining())
        try:
            self._wait(pull, image, deadline, say)
        finally:
            with self._lock:
                pull.waiting -= 1

    def waiting(self, image: str) -> int:
        """Say how many wait for pulls of an image."""
        with self._lock:
            return sum(pull.waiting for (name, _), pull in self._running.items() if name == image)

    def _wait(self, pull: _Pull, image: str, deadline: Deadline, say: OnProgress) -> None:
        said, next_repeat = "", 0.0
        while not pull.is_over.wait(min(_TELL_SECONDS, deadline.remaining())):
            text = str(pull.progress)
            if text != said or time.monotonic() >= next_repeat:
                say(text)
                said, next_repeat = text, time.monotonic() + _REPEAT_SECONDS
            if deadline.is_over:
                message = f"image {image!r} was not pulled within {deadline.seconds:g} s ({text})"
                raise CreateTimeoutError(message)
        if pull.error is not None:
            raise pull.error

    def _run(self, key: tuple[str, str], pull: _Pull, image: str, auth: ImageAuth | None) -> None:
        def is_left() -> bool:
            with self._lock:
                return not pull.waiting or time.monotonic() > pull.ends

        try:
            self._fetch(image, auth, pull.progress, is_left)
        except BaseException as error:  # noqa: BLE001 -- those who wait raise it
            pull.error = error
        finally:
            with self._lock:
                if self._running.get(key) is pull:
                    del self._running[key]
            pull.is_over.set()


def _fingerprint(auth: ImageAuth | None) -> str:
    if auth is None:
        return ""
    return hashlib.sha256(f"{auth.username}\0{auth.password}".encode()).hexdigest()
