"""What is below the files a sandbox writes: nothing, the layers of an image, what other sandboxes wrote."""

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from core.errors import BadImageError
from runtimes.local.images import ImageConfig, StoredImage, resolve_user
from runtimes.local.plan import SANDBOX_UID

__all__ = ["HOST_ROOT", "Root", "root_of_image"]

_MAX_ACCOUNT_FILE_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class Root:
    """layers: top first, as the executor sees them. owners: see `Overlay`. config: None for the image `host`.

    uid, gid: who runs in it. home: that user's, from the image's /etc/passwd.
    """

    layers: tuple[str, ...] = ()
    owners: tuple[int, ...] = ()
    config: ImageConfig | None = None
    uid: int = SANDBOX_UID
    gid: int = SANDBOX_UID
    home: str = ""

    def below(self, layer: str, owner: int) -> "Root":
        """Give the root that has one more layer on top."""
        return replace(self, layers=(layer, *self.layers), owners=(owner, *self.owners))


HOST_ROOT: Final = Root()


def root_of_image(image: StoredImage) -> Root:
    """Start from a stored image, as the user it names. Raises BadImageError if that user is not in it."""
    layers = [str(layer) for layer in image.layers]
    passwd = _read(layers, "etc/passwd")
    uid, gid = resolve_user(image.config.user, passwd, _read(layers, "etc/group"))
    return Root(tuple(layers), (0,) * len(layers), image.config, uid, gid, _home_of(uid, passwd))


def _home_of(uid: int, passwd: bytes | None) -> str:
    for line in (passwd or b"").decode("utf-8", "replace").splitlines():
        fields = line.split(":")
        if len(fields) >= 6 and fields[2] == str(uid) and fields[5].startswith("/") and "\0" not in fields[5]:
            return fields[5]
    return "/root" if uid == 0 else "/"


def _read(layers: Sequence[str], path: str) -> bytes | None:
    """Read a small file as the topmost layer that has it, following no link: layers are other people's."""
    folder, name = path.split("/")
    for layer in layers:
        try:
            handle = os.open(f"{layer}/{folder}", os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        except OSError:
            return None
        try:
            found = os.stat(name, dir_fd=handle, follow_symlinks=False)
            if not stat.S_ISREG(found.st_mode):
                return None  # removed by this layer, or not to be trusted
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=handle)
        except FileNotFoundError:
            continue
        finally:
            os.close(handle)
        with os.fdopen(file, "rb") as reader:
            data = reader.read(_MAX_ACCOUNT_FILE_BYTES + 1)
        if len(data) > _MAX_ACCOUNT_FILE_BYTES:
            raise BadImageError(f"the image's /{path} is larger than {_MAX_ACCOUNT_FILE_BYTES} bytes")
        return data
    return None
