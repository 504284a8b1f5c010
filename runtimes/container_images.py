"""What the docker runtime needs to know about images before it starts them."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from docker.errors import APIError, ImageNotFound, NullResource

from core.errors import BadImageError, ImageNotFoundError
from runtimes.bundle import BUNDLE_MOUNT
from runtimes.container_snapshots import SNAPSHOT_PREFIX, image_tag, is_snapshot_image
from runtimes.container_spec import ContainerImage
from runtimes.engine import Engine

__all__ = ["ImageCatalogue"]

_HEX = re.compile("[0-9a-f]+")
_ID_DIGITS = 64
_ADVICE = "; it is not pulled: import it on this host"


class ImageCatalogue:
    """Looks images up, and into them; what it found inside is remembered by image id."""

    def __init__(self) -> None:
        """Start with nothing known."""
        self._folders: dict[tuple[str, str], bool] = {}
        self._is_place_free: dict[str, bool] = {}
        self._users: dict[str, tuple[int, int]] = {}

    def look_up(
        self,
        engine: Engine,
        name: str,
        folders: Sequence[str] = (),
        *,
        is_pulled: bool = False,
        facts: Mapping[str, Any] | None = None,
    ) -> ContainerImage:
        """Describe an image. folders: also say which of these it has. is_pulled: it was fetched if it was missing.

        facts: what the engine has just said of it, where it was asked already. Raises ImageNotFoundError,
        BadImageError, and the engine's errors.
        """
        facts = self._facts(engine, name, is_pulled=is_pulled) if facts is None else facts
        _refuse_hidden(name, facts)
        config = facts.get("Config") or {}
        written = config.get("User") or ""
        return ContainerImage(
            id=facts["Id"],
            workdir=config.get("WorkingDir") or "",
            environment=_environment(config),
            user=self._user(engine, facts["Id"], written),
            written_user=written,
            folders=self._folders_of(engine, facts["Id"], folders),
            volumes=tuple(sorted(config.get("Volumes") or ())),
            entrypoint=(*(config.get("Entrypoint") or ()), *(config.get("Cmd") or ())),
        )

    def _facts(self, engine: Engine, name: str, *, is_pulled: bool) -> dict[str, Any]:
        try:
            return engine.image_facts(image_tag(name))
        except ImageNotFound as error:
            advice = "" if is_pulled or name.startswith(SNAPSHOT_PREFIX) else _ADVICE
            raise ImageNotFoundError(f"the Docker engine has no image {name!r}{advice}") from error
        except NullResource as error:
            raise ImageNotFoundError("an image without a name") from error
        except APIError as error:
            if error.status_code is not None and error.status_code < 500:
                raise ImageNotFoundError(f"{name!r} is no image name: {error.explanation}") from error
            raise

    def check_bundle_place(self, engine: Engine, image_id: str) -> None:
        """Refuse an image with a link or file where execd's folder comes. Raises BadImageError."""
        if image_id not in self._is_place_free:
            with engine.unstarted(image_id) as container:
                self._is_place_free[image_id] = engine.can_be_mounted_at(container, BUNDLE_MOUNT)
        if not self._is_place_free[image_id]:
            raise BadImageError(f"the image has something else at {BUNDLE_MOUNT}, which is execd's place")

    def _folders_of(self, engine: Engine, image_id: str, paths: Sequence[str]) -> frozenset[str]:
        """Give those of some paths that the image has."""
        unknown = [path for path in paths if (image_id, path) not in self._folders]
        if unknown:
            with engine.unstarted(image_id) as container:
                for path in unknown:
                    self._folders[image_id, path] = engine.has_path(container, path)
        return frozenset(path for path in paths if self._folders[image_id, path])

    def _user(self, engine: Engine, image_id: str, written: str) -> tuple[int, int] | None:
        """Give the numbers of an image's USER; None if that is root, or none is set."""
        name, _, group = written.partition(":")
        if name in ("", "root"):
            return None
        if image_id not in self._users:
            self._users[image_id] = self._resolve(engine, image_id, name, group)
        uid, gid = self._users[image_id]
        return None if uid == 0 else (uid, gid)

    def _resolve(self, engine: Engine, image_id: str, name: str, group: str) -> tuple[int, int]:
        """Find user and group in the image's own files, as the engine would, but before anything runs."""
        if name.isdecimal() and (not group or group.isdecimal()):
            # Without a group the engine takes root's, 0, which owns nothing a user needs: the same number instead.
            return int(name), int(group or name)
        with engine.unstarted(image_id) as container:
            users = _table(engine.read_file(container, "/etc/passwd"))
            groups = _table(engine.read_file(container, "/etc/group"))
        entry = users.get(name, [])
        with suppress(ValueError, IndexError):
            uid = int(name) if name.isdecimal() else int(entry[2])
            if group:
                return uid, int(group) if group.isdecimal() else int(groups[group][2])
            return uid, int(entry[3])
        message = f"the image's user {name!r} or group {group!r} is not in its /etc/passwd or /etc/group"
        raise BadImageError(message)


def _refuse_hidden(name: str, facts: Mapping[str, Any]) -> None:
    """Refuse what the engine finds by less than its name. Raises ImageNotFoundError.

    It takes the beginning of an id for an image: by guessing one could start what belongs to others. And snapshots are
    known by `snapshot:NAME` alone.
    """
    tags = [str(tag) for tag in facts.get("RepoTags") or ()]
    text = name.removeprefix("sha256:")
    is_id = bool(_HEX.fullmatch(text)) and not any(tag.startswith(f"{name}:") for tag in tags)
    is_snapshot = is_snapshot_image(facts)
    if (is_id and (len(text) < _ID_DIGITS or is_snapshot)) or (
        is_snapshot and not name.startswith(SNAPSHOT_PREFIX)
    ):
        raise ImageNotFoundError(f"the Docker engine has no image {name!r}")


def _environment(config: Mapping[str, Any]) -> dict[str, str]:
    pairs = (entry.partition("=") for entry in config.get("Env") or ())
    return {name: value for name, _, value in pairs}


def _table(content: bytes | None) -> dict[str, list[str]]:
    """Read passwd(5) or group(5): fields by name."""
    lines = (content or b"").decode("utf-8", "replace").splitlines()
    return {fields[0]: fields for fields in (line.split(":") for line in lines)}
