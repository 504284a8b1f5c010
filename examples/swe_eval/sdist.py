"""Fetches the two releases from the package index and reads the files of interest out of their archives."""

import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from examples.swe_eval.errors import ExampleError

__all__ = ["NEW", "OLD", "Download", "Release", "read_files"]

_TIMEOUT_SECONDS = 120.0
_STALE_SECONDS = 3600.0
_MAX_FILE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Release:
    """One source distribution, pinned by the SHA-256 of its archive."""

    project: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        """Name of the archive."""
        return f"{self.project}-{self.version}.tar.gz"


OLD = Release("more-itertools", "10.2.0", "8fccb480c43d3e99a00087634c06dd02b0d50fbf088b380de5a41a015ec239e1")
NEW = Release("more-itertools", "10.3.0", "e5d93ef411224fbcef366a6e8ddc4c5781bc6359d43412a65dd5964e46111463")


class Download:
    """Fetches releases by pip, one process each, while the caller does something else. A context manager.

    Entering starts what is not in the folder yet; leaving ends what still runs and removes what is unfinished.
    """

    def __init__(self, folder: Path, releases: tuple[Release, ...], *, refresh: bool = False) -> None:
        """folder: where archives are kept; it is made. refresh: fetch also what is there."""
        self._folder = folder
        self._releases = releases
        self._refresh = refresh
        self._draft: Path | None = None
        self._running: dict[Release, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        """Start. Raises ExampleError when the folder cannot be written."""
        missing = [release for release in self._releases if self._refresh or not self._has(release)]
        if not missing:
            return self
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._remove_stale_drafts()
            with _signals_held_back():
                self._draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=self._folder))
                for release in missing:
                    self._running[release] = self._start(release, self._draft)
        except OSError as error:
            self._clean_up()
            message = (
                f"cannot write to {self._folder} ({error.strerror}): "
                "set SANDMILL_HOME to a folder this user may write to"
            )
            raise ExampleError(message) from error
        except BaseException:
            self._clean_up()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End what still runs and remove what is unfinished."""
        self._clean_up()

    def wait(self) -> list[Path]:
        """Give the archives in the order of the releases. Raises ExampleError when one cannot be had."""
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while self._running:
            release, process = next(iter(self._running.items()))
            try:
                code = process.wait(timeout=max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired as error:
                name = f"{release.project} {release.version}"
                message = (
                    f"cannot download {name} within {_TIMEOUT_SECONDS:.0f} s: is the package index reachable?"
                )
                raise ExampleError(message) from error
            self._finish(release, code)
            del self._running[release]
        return [self._folder / release.file_name for release in self._releases]

    def _start(self, release: Release, draft: Path) -> "subprocess.Popen[bytes]":
        wanted = draft / f"{release.version}.txt"
        wanted.write_text(f"{release.project}=={release.version} --hash=sha256:{release.sha256}\n")
        temporary = draft / f"tmp-{release.version}"
        temporary.mkdir()
        words = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:"]
        words += [
            "--no-build-isolation",
            "--require-hashes",
            "--requirement",
            str(wanted),
            "--dest",
            str(draft),
        ]
        words += ["--quiet", "--no-input", "--no-cache-dir", "--disable-pip-version-check"]
        with (draft / f"{release.version}.log").open("wb") as log:
            return subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "TMPDIR": str(temporary)},
                # A group of its own, so that pip's children can be ended with it.
                start_new_session=True,
            )

    def _finish(self, release: Release, code: int) -> None:
        assert self._draft is not None  # noqa: S101 -- for the type checker: what runs has a folder
        archive = self._draft / release.file_name
        if code == 0 and archive.exists() and _sha256(archive) == release.sha256:
            archive.replace(self._folder / release.file_name)
            return
        text = (self._draft / f"{release.version}.log").read_text(errors="replace")
        lines = [line for line in text.splitlines() if line.startswith("ERROR: ")] or text.splitlines()
        reason = lines[0].removeprefix("ERROR: ") if lines else f"pip ended with {code}"
        raise ExampleError(f"cannot download {release.project} {release.version}: {reason}")

    def _has(self, release: Release) -> bool:
        with contextlib.suppress(OSError):
            return _sha256(self._folder / release.file_name) == release.sha256
        return False

    def _remove_stale_drafts(self) -> None:
        """Remove what a killed run left behind; a younger folder may be that of another run."""
        for draft in self._folder.glob(".draft-*"):
            with contextlib.suppress(OSError):
                if time.time() - draft.stat().st_mtime > _STALE_SECONDS:
                    shutil.rmtree(draft)

    def _clean_up(self) -> None:
        for process in self._running.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._running.clear()
        if self._draft is not None:
            shutil.rmtree(self._draft, ignore_errors=True)
            self._draft = None


def read_files(archive: Path, folders: tuple[str, ...]) -> Mapping[str, bytes]:
    """Read the regular files below these top folders of a source distribution.

    Returns path without the archive's first part to content, sorted. Raises ExampleError.
    """
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(archive, "r:gz") as file:
            for member in file:
                path = member.name.partition("/")[2]
                if not member.isfile() or path.partition("/")[0] not in folders:
                    continue
                content = file.extractfile(member)
                if content is None or member.size > _MAX_FILE_BYTES:
                    raise ExampleError(f"{archive.name} holds {path}, which cannot be read")
                found[path] = content.read()
    except (OSError, tarfile.TarError) as error:
        raise ExampleError(f"cannot read {archive}: {error}") from error
    return dict(sorted(found.items()))


@contextlib.contextmanager
def _signals_held_back() -> Iterator[None]:
    """Let a Ctrl-C wait, so that it cannot come between the start of a program and the note that it runs."""
    held = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
