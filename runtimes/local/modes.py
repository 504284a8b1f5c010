"""The ways in which local sandboxes can be started, each tried out by a real one."""

import io
import os
import secrets
import tarfile
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from core.errors import DaemonError, RunFailure, RuntimeUnavailableError
from runtimes.base import Command, ResourceLimits, SandboxSpec
from runtimes.local.config import LocalConfig
from runtimes.local.images import ImageStore
from runtimes.local.runtime import LocalRuntime

__all__ = ["local_modes"]

_LIMITS = ResourceLimits(cpu_millicores=1000, memory_bytes=128 << 20, disk_bytes=16 << 20, pids=64)
_TIMEOUT_SECONDS = 30.0
_IMAGE = "doctor:image"


def local_modes(config: LocalConfig) -> Iterator[tuple[str, Callable[[], str]]]:
    """Give each mode's name and its trial, which says what worked or raises RuntimeUnavailableError with the way out.

    config: its folders are used, and left as they were but for the bundle and what a runtime keeps for later.
    """
    is_root = os.geteuid() == 0
    if is_root:
        yield "zygote", partial(_try_host, config.model_copy(update={"executor": "zygote"}))
    yield "bwrap", partial(_try_host, config.model_copy(update={"executor": "bwrap"}))
    yield "stored images", partial(_try_image, config)
    if is_root:
        yield "disk files", partial(_try_host, config.model_copy(update={"disk": "file"}))
        yield "pause, snapshot and fork", partial(_try_copies, config)


def _spec(image: str) -> SandboxSpec:
    return SandboxSpec(name=f"sm-doctor-{secrets.token_hex(6)}", image=image, limits=_LIMITS)


def _try_host(config: LocalConfig) -> str:
    with closing(LocalRuntime(config)) as runtime:
        runtime.check()
        handle = runtime.create(_spec("host"), timeout_seconds=_TIMEOUT_SECONDS)
        try:
            with closing(runtime.executions(handle)) as client:
                result = client.run(Command(argv=("touch", "written")), on_output=lambda *_: None)
        finally:
            runtime.remove(handle)
    if result.exit_code != 0:
        raise RuntimeUnavailableError(f"a command in the sandbox failed: {result.error or result.exit_code}")
    return "a sandbox ran a command"


def _try_image(config: LocalConfig) -> str:
    with closing(LocalRuntime(config)) as runtime, TemporaryDirectory(prefix="sandmill-doctor-") as folder:
        archive = Path(folder) / "image.tar"
        archive.write_bytes(_small_image())
        store = runtime.image_store
        try:
            store.import_archive(archive, name=_IMAGE)
            _start_image(runtime)
        except RuntimeUnavailableError:
            raise
        except RunFailure as error:
            way_out = (
                "the folder of images must be on ext4, xfs or btrfs, and Linux 5.12 or newer: set SANDMILL_HOME to one "
                "that is"
            )
            raise RuntimeUnavailableError(f"{error.message}; {way_out}") from error
        finally:
            _forget_image(store)
    return "a sandbox ran from a stored image"


def _start_image(runtime: LocalRuntime) -> None:
    handle = runtime.create(_spec(_IMAGE), timeout_seconds=_TIMEOUT_SECONDS)
    try:
        with closing(runtime.executions(handle)) as client:
            if client.file_info("/marked").size != 1:
                raise DaemonError("the files of the image are not there")
    finally:
        runtime.remove(handle)


def _forget_image(store: ImageStore) -> None:
    if any(image.name == _IMAGE for image in store.list()):
        store.remove(_IMAGE)


def _try_copies(config: LocalConfig) -> str:
    with closing(LocalRuntime(config)) as runtime:
        handle = runtime.create(_spec("host"), timeout_seconds=_TIMEOUT_SECONDS)
        try:
            runtime.pause(handle)
            runtime.resume(handle)
            handle, other = runtime.fork(handle, _spec("host"), timeout_seconds=_TIMEOUT_SECONDS)
            runtime.remove(other)
        except RunFailure as error:
            raise RuntimeUnavailableError(f"{error.message}; forks need Linux 6.3 or newer") from error
        finally:
            runtime.remove(handle)
    return "a sandbox was paused, resumed and forked"


def _small_image() -> bytes:
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w") as archive:
        entry = tarfile.TarInfo("marked")
        entry.size = 1
        archive.addfile(entry, io.BytesIO(b"x"))
    return memory.getvalue()
