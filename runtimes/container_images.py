"""What the docker runtime needs to know about images before it starts them."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from docker.errors import APIError, ImageNotFound, NullResource

from core.errors import BadImageError, ImageNotFoundError
from runtimes.container_spec import ContainerImage
from runtimes.engine import Engine, PullRefusedError
from runtimes.engine_errors import pull_error

__all__ = ["ImageCatalogue"]


class ImageCatalogue:
    """Looks images up, and into them; what it found inside is remembered by image id."""

    def __init__(self) -> None:
        """Start with nothing known."""
        self._folders: dict[tuple[str, str], bool] = {}
        self._users: dict[str, tuple[int, int]] = {}

    def look_up(self, engine: Engine, name: str, workdir: str | None, *, pull: bool) -> ContainerImage:
        """Describe an image. workdir: also say whether it has that folder.

        Raises ImageNotFoundError, BadImageError, kinds of RegistryError, and the engine's errors.
        """
        try:
            facts = _inspect(engine, name, pull=pull)
        except ImageNotFound as error:
            advice = "" if pull else "; it is not pulled: import it on this host"
            raise ImageNotFoundError(f"the Docker engine has no image {name!r}{advice}") from error
        except NullResource as error:
            raise ImageNotFoundError("an image without a name") from error
        except APIError as error:
            if error.status_code is not None and error.status_code < 500:
                raise ImageNotFoundError(f"{name!r} is no image name: {error.explanation}") from error
            raise
        config = facts.get("Config") or {}
        image = ContainerImage(
            id=facts["Id"],
            workdir=config.get("WorkingDir") or "",
            environment=_environment(config),
            user=self._user(engine, facts["Id"], config.get("User") or ""),
            volumes=tuple(sorted(config.get("Volumes") or ())),
        )
        if workdir is None or workdir == "/":
            return image
        return replace(image, has_workdir=self._has_folder(engine, image.id, workdir))

    def _has_folder(self, engine: Engine, image_id: str, path: str) -> bool:
        key = (image_id, path)
        if key not in self._folders:
            with engine.unstarted(image_id) as container:
                self._folders[key] = engine.has_path(container, path)
        return self._folders[key]

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


def _inspect(engine: Engine, name: str, *, pull: bool) -> dict[str, Any]:
    """Ask for an image, fetching it if it is missing and may be fetched."""
    if pull:
        with suppress(ImageNotFound):
            return engine.image_facts(name)
        try:
            engine.fetch_image(name)
        except PullRefusedError as error:
            raise pull_error(name, str(error)) from error
    return engine.image_facts(name)


def _environment(config: Mapping[str, Any]) -> dict[str, str]:
    pairs = (entry.partition("=") for entry in config.get("Env") or ())
    return {name: value for name, _, value in pairs}


def _table(content: bytes | None) -> dict[str, list[str]]:
    """Read passwd(5) or group(5): fields by name."""
    lines = (content or b"").decode("utf-8", "replace").splitlines()
    return {fields[0]: fields for fields in (line.split(":") for line in lines)}
