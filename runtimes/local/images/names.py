"""Names of images, as people write them and as registries know them."""

import re
from dataclasses import dataclass
from typing import Final, Self

from core.errors import SpecInvalidError

__all__ = ["DIGEST", "HOST_IMAGE", "ImageName", "check_free"]

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")

HOST_IMAGE: Final = "host"
"""The image that is always there and in no store."""

_RESERVED: Final = {HOST_IMAGE: "the host's own /usr", "snapshot": "snapshots"}
"""What jobs mean by these names, whatever is stored under them."""

_DEFAULT_REGISTRY = "docker.io"
_OFFICIAL = "library/"
_MAX_CHARACTERS = 255
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_PART}(?:/{_PART})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_HOST_PART = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_REGISTRY = re.compile(rf"(?:{_HOST_PART}(?:\.{_HOST_PART})*|\[[0-9a-fA-F:.]+\])(?::[0-9]{{1,5}})?")


@dataclass(frozen=True, slots=True)
class ImageName:
    """registry: host with its port if it has one. repository: in lower case. digest: `sha256:<hex>` or None."""

    registry: str
    repository: str
    tag: str | None
    digest: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `[registry[:port]/]repository[:tag][@sha256:...]`; without a registry it is docker.io.

        Without tag and digest the tag is `latest`. Raises SpecInvalidError that says which part is wrong.
        """
        rest, at, digest = text.partition("@")
        if at and not DIGEST.fullmatch(digest):
            raise _invalid(text, "the part after '@' is not sha256: and 64 hexadecimal digits")
        registry, rest = _split_registry(rest)
        port = registry.rpartition("]")[2].partition(":")[2]
        if not _REGISTRY.fullmatch(registry) or int(port or 0) > 65_535:
            raise _invalid(text, f"{registry!r} is not a registry's host and port")
        repository, colon, tag = rest.partition(":")
        if not _REPOSITORY.fullmatch(repository):
            advice = f"; write {repository.lower()!r}" if _REPOSITORY.fullmatch(repository.lower()) else ""
            raise _invalid(text, f"the repository {repository!r} is not lower-case words between '/'{advice}")
        if colon and not _TAG.fullmatch(tag):
            raise _invalid(text, f"{tag!r} is not a tag")
        if registry == _DEFAULT_REGISTRY and "/" not in repository:
            repository = _OFFICIAL + repository
        if len(f"{registry}/{repository}") > _MAX_CHARACTERS:
            raise _invalid(text, f"registry and repository are longer than {_MAX_CHARACTERS} characters")
        return cls(registry, repository, tag or (None if digest else "latest"), digest or None)

    @property
    def reference(self) -> str:
        """What the registry is asked for: the digest, which wins over the tag, or the tag."""
        return self.digest or self.tag or "latest"

    @property
    def full(self) -> str:
        """One spelling per image, the same for all ways to write it."""
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.registry}/{self.repository}{tag}" + (f"@{self.digest}" if self.digest else "")

    @property
    def familiar(self) -> str:
        """The short spelling that people use: `python:3.12` for `docker.io/library/python:3.12`."""
        short = self.full.removeprefix(f"{_DEFAULT_REGISTRY}/")
        return short.removeprefix(_OFFICIAL) if short != self.full else short


def check_free(name: ImageName, *, field: str) -> None:
    """Refuse a name under which no job could find a stored image. field: where it was given.

    Raises SpecInvalidError.
    """
    repository = name.repository.removeprefix(_OFFICIAL)
    if name.registry == _DEFAULT_REGISTRY and repository in _RESERVED:
        message = (
            f"{field} {name.familiar!r}: {repository!r} is reserved, jobs mean {_RESERVED[repository]} by it; "
            f"choose another, e.g. 'my-{repository}:1'"
        )
        raise SpecInvalidError(message, field=field)


def _split_registry(text: str) -> tuple[str, str]:
    """Tell a registry from the first folder of a repository: it has a dot or a port, or is localhost."""
    first, slash, rest = text.partition("/")
    if not slash or not (first == "localhost" or set(".:[") & set(first)):
        return _DEFAULT_REGISTRY, text
    registry = first.lower()
    return (_DEFAULT_REGISTRY if registry == "index.docker.io" else registry), rest


def _invalid(text: str, reason: str) -> SpecInvalidError:
    return SpecInvalidError(f"{text[:300]!r} is no image name: {reason}", field="image")
