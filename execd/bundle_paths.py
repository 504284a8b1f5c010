"""Paths that the bundle's own loader and C library shall not open: there, the image would have a say in execd.

Each is overwritten in our copy by one of the same length that leads nowhere. Programs of the image have their own.
"""

import re
from typing import Final

from execd.elf import ElfError

__all__ = ["blind_libc", "blind_loader"]

_MOUNT: Final = b"/.sbx/"
"""Where the bundle is mounted, read-only."""

_PRELOAD_FILE: Final = b"/etc/ld.so.preload"
_NAME_SERVICES: Final = b"/etc/nsswitch.conf"

_LIBRARY_FOLDERS: Final = re.compile(rb"(?:/(?:usr/)?lib\w*/(?:[\w-]+/)?\0){2,}")
"""The list of folders searched last, e.g. /lib/x86_64-linux-gnu/ and /usr/lib/, each with its NUL."""

_DATA_FOLDERS: Final = re.compile(
    rb"/usr/lib(?=/locale[/\0]|(?:64|/[\w-]+)?/gconv[/\0])|/usr/share/locale(?=[/\0])"
    rb"|/usr/share/zoneinfo(?=[/\0])|(?<=\0)/etc/localtime(?=\0)"
)
"""Locales, conversions and time zones. execd works in UTF-8 and UTC; a file of these could be one without an end."""


def blind_loader(image: bytes) -> bytes:
    """Give a dynamic loader that obeys no preload file and finds libraries only where it is told. Raises ElfError.

    Foreign code would otherwise run in execd: by /etc/ld.so.preload at its start, by the image's own library folders
    when the C library asks for one that the bundle does not have.
    """
    image = _replaced(image, _PRELOAD_FILE)
    # No path of five characters is safe from the image's author, so each becomes "/" and ends there: what the loader
    # opens is the root folder, which is no library.
    blinded, count = _LIBRARY_FOLDERS.subn(_only_slashes, image)
    if not count:
        raise ElfError("the dynamic loader does not name its library folders where they were expected")
    return blinded


def blind_libc(image: bytes) -> bytes:
    """Give a libc that loads no name service, locale, conversion or time zone of the image. Raises ElfError.

    Without a configuration file, names of users and hosts come from files and DNS, both of which are built in.
    """
    return _DATA_FOLDERS.sub(lambda found: _nowhere(found[0]), _replaced(image, _NAME_SERVICES))


def _only_slashes(folders: re.Match[bytes]) -> bytes:
    """Cut each of the paths after its first character, in place."""
    return b"".join(b"/".ljust(len(path) + 1, b"\0") for path in folders[0].split(b"\0")[:-1])


def _replaced(image: bytes, path: bytes) -> bytes:
    if path + b"\0" not in image:
        raise ElfError(f"the C library does not name {path.decode()} where it was expected")
    return image.replace(path + b"\0", _nowhere(path) + b"\0")


def _nowhere(path: bytes) -> bytes:
    """Give a name of the same length that the bundle does not have."""
    return _MOUNT.ljust(len(path), b"-")
