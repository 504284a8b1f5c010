"""What an image says about how it is started."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from core.errors import BadImageError
from runtimes.local.images.names import DIGEST

__all__ = ["ImageConfig", "ImageFacts"]


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """How the image wants to be started. user: as written, see `resolve_user`; empty: root.

    workdir: empty if there is none. architecture: as registries spell it, e.g. amd64; with its variant: arm64/v8.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    workdir: str = ""
    user: str = ""
    architecture: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain values, read back by `from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read what `to_json` gave."""
        lists = {"entrypoint": tuple(value["entrypoint"]), "cmd": tuple(value["cmd"])}
        return cls(**{**value, **lists})


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """A config document, read. diff_ids: sha256 of each unpacked layer, lowest first, as `sha256:<hex>`."""

    config: ImageConfig
    diff_ids: tuple[str, ...]
    os: str

    @classmethod
    def parse(cls, document: bytes) -> Self:
        """Read an OCI or Docker image config. Keys unknown to us are ignored, as both formats demand.

        Raises BadImageError that names the field.
        """
        try:
            wire = _WireImage.model_validate(json.loads(document))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise BadImageError(f"the image's config: {where}: {first['msg']}") from error
        except (ValueError, RecursionError) as error:
            raise BadImageError(f"the image's config is not JSON: {error}") from error
        for diff_id in wire.rootfs.diff_ids:
            if not DIGEST.fullmatch(diff_id):
                raise BadImageError(
                    f"the image's config: rootfs.diff_ids: {diff_id[:100]!r} is no sha256 digest"
                )
        return cls(_to_config(wire), tuple(wire.rootfs.diff_ids), wire.os)


class _Wire(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class _WireProcess(_Wire):
    env: list[str] | None = Field(default=None, alias="Env")
    entrypoint: list[str] | None = Field(default=None, alias="Entrypoint")
    cmd: list[str] | None = Field(default=None, alias="Cmd")
    workdir: str | None = Field(default=None, alias="WorkingDir")
    user: str | None = Field(default=None, alias="User")


class _WireRoot(_Wire):
    diff_ids: list[str] = Field(default_factory=list)


class _WireImage(_Wire):
    architecture: str = ""
    variant: str | None = None
    os: str = "linux"
    config: _WireProcess | None = None
    rootfs: _WireRoot


def _to_config(wire: _WireImage) -> ImageConfig:
    process = wire.config or _WireProcess()
    strings = [*(process.env or ()), *(process.entrypoint or ()), *(process.cmd or ())]
    if any("\0" in text for text in (*strings, process.workdir or "", process.user or "")):
        raise BadImageError("the image's config: there is a NUL in env, entrypoint, cmd, workdir or user")
    pairs = (entry.partition("=") for entry in process.env or ())
    return ImageConfig(
        env={name: value for name, _, value in pairs if name},
        entrypoint=tuple(process.entrypoint or ()),
        cmd=tuple(process.cmd or ()),
        workdir=process.workdir or "",
        user=process.user or "",
        architecture=wire.architecture + (f"/{wire.variant}" if wire.variant else ""),
    )
