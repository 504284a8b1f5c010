"""Follows a batch: what its trials do, and what they print, while they do it."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from sandmill import BatchInfo, Client, LogChunk, SandmillError, TrialInfo

__all__ = ["BatchFollower", "LineSplitter", "TrialView"]

_JOIN_SECONDS = 5.0
_MAX_LINE_BYTES = 4096


@dataclass
class TrialView:
    """What is known of one trial. step: the last one that printed something. tests: results seen in its log so far."""

    name: str
    info: TrialInfo
    step: str = ""
    tests: int = 0
    last_line: str = ""
    attempts_followed: set[str] = field(default_factory=set)


class LineSplitter:
    """Makes lines of chunks that are cut anywhere; a line without end is given out in parts."""

    def __init__(self) -> None:
        """Hold nothing."""
        self._rest: dict[str, bytes] = {}

    def feed(self, chunk: LogChunk) -> list[str]:
        """Give the lines that are complete now, without their ends and fit for a terminal."""
        *lines, rest = (self._rest.get(chunk.stream, b"") + chunk.data).split(b"\n")
        if len(rest) > _MAX_LINE_BYTES:
            lines.append(rest)
            rest = b""
        self._rest[chunk.stream] = rest
        return [_printable(line) for line in lines]


class BatchFollower:
    """Keeps views of a batch's trials up to date and reads the log of each attempt on a thread of its own.

    on_line(view, step, line) and on_change(view) are called one at a time.
    """

    def __init__(
        self,
        client: Client,
        batch_id: str,
        *,
        on_line: Callable[[TrialView, str, str], None],
        on_change: Callable[[TrialView], None],
    ) -> None:
        """Ask for nothing yet."""
        self._client = client
        self._batch_id = batch_id
        self._on_line = on_line
        self._on_change = on_change
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self.views: dict[str, TrialView] = {}

    def wait(self, *, timeout_seconds: float) -> BatchInfo:
        """Follow the batch to its end. Raises SandmillError."""
        batch = self._client.wait(
            self._batch_id, timeout_seconds=timeout_seconds, on_progress=lambda _batch: self._look()
        )
        # The logs of ended trials end at once; a thread that is stuck is a daemon and holds nobody up.
        deadline = time.monotonic() + _JOIN_SECONDS
        for thread in self._threads:
            thread.join(timeout=max(0.0, deadline - time.monotonic()))
        return batch

    def _look(self) -> None:
        for info in self._client.iter_trials(self._batch_id):
            view = self.views.get(info.id)
            if view is None:
                view = self.views[info.id] = TrialView(f"{info.job_key}[{info.index}]", info)
            has_new_attempt = info.attempts_used > len(view.attempts_followed)
            if has_new_attempt or info.state != view.info.state:
                with self._lock:
                    view.info = info
                    self._on_change(view)
            if has_new_attempt:
                self._follow_attempts(view)

    def _follow_attempts(self, view: TrialView) -> None:
        for attempt in self._client.get_trial(view.info.id).attempts:
            if attempt.id not in view.attempts_followed:
                view.attempts_followed.add(attempt.id)
                thread = threading.Thread(target=self._read, args=(view, attempt.id), daemon=True)
                thread.start()
                self._threads.append(thread)

    def _read(self, view: TrialView, attempt_id: str) -> None:
        lines = LineSplitter()
        try:
            for chunk in self._client.iter_logs(attempt_id):
                for line in lines.feed(chunk):
                    with self._lock:
                        self._note(view, chunk.step, line)
        except SandmillError:
            # The log is shown, not graded: losing sight of it must not end the evaluation.
            return

    def _note(self, view: TrialView, step: str, line: str) -> None:
        view.step = step
        if line.strip():
            view.last_line = line.strip()
        if step == "verify" and " ... " in line:
            view.tests += 1
        self._on_line(view, step, line)


def _printable(line: bytes) -> str:
    """Take out what untrusted output could do to a terminal."""
    text = line.decode("utf-8", "replace").expandtabs().rstrip("\r")
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
