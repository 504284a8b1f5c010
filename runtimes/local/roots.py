"""What is below the files a sandbox writes: nothing, the layers of an image, what other sandboxes wrote."""

from dataclasses import dataclass, replace
from typing import Final

from runtimes.local.images import ImageConfig, StoredImage, read_file, resolve_user
from runtimes.local.plan import SANDBOX_UID

__all__ = ["HOST_AS_ROOT", "HOST_ROOT", "Root", "root_of_image"]


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

HOST_AS_ROOT: Final = Root(uid=0, gid=0, home="/root")
"""For those who expect a container's root. It has no right that others lack, but may ask to be who it is."""


def root_of_image(image: StoredImage) -> Root:
    """Start from a stored image, as the user it names. Raises BadImageError if that user is not in it."""
    passwd = read_file(image.layers, "/etc/passwd")
    uid, gid = resolve_user(image.config.user, passwd, read_file(image.layers, "/etc/group"))
    layers = tuple(str(layer) for layer in image.layers)
    return Root(layers, (0,) * len(layers), image.config, uid, gid, _home_of(uid, passwd))


def _home_of(uid: int, passwd: bytes | None) -> str:
    for line in (passwd or b"").decode("utf-8", "replace").splitlines():
        fields = line.split(":")
        if len(fields) >= 6 and fields[2] == str(uid) and fields[5].startswith("/") and "\0" not in fields[5]:
            return fields[5]
    return "/root" if uid == 0 else "/"
