"""Who we are to a registry: what the caller says, else what `docker login` left."""

import base64
import binascii
import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from core.errors import RegistryAuthError, SpecInvalidError

__all__ = ["Credentials", "saved_credentials"]

_DOCKER_HUB_KEY = "https://index.docker.io/v1/"
_HELPER = re.compile(r"[A-Za-z0-9_-]+")
_HELPER_TIMEOUT_SECONDS = 20.0
_TOKEN_USER = "<token>"  # noqa: S105 -- the word by which helpers say that the secret is a token
_MAX_FILE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user with a password, or an identity token that the registry gave out. Neither is ever shown."""

    username: str
    password: str = field(repr=False)
    identity_token: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        """Refuse a name that basic authentication cannot carry."""
        if ":" in self.username or not (self.username or self.identity_token):
            raise SpecInvalidError("the user name of a registry is empty or has ':' in it", field="username")

    @property
    def basic(self) -> str:
        """Value of an Authorization header."""
        return "Basic " + base64.b64encode(f"{self.username}:{self.password}".encode()).decode("ascii")


def saved_credentials(config_file: Path, registry: str) -> Credentials | None:
    """Look a registry up in Docker's `config.json`, asking the credential helper if that names one.

    None if there is no file or no entry. Raises RegistryAuthError for a file or helper that cannot be read.
    """
    try:
        if config_file.stat().st_size > _MAX_FILE_BYTES:
            raise RegistryAuthError(f"{config_file} is larger than {_MAX_FILE_BYTES} bytes")
        config = json.loads(config_file.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise RegistryAuthError(f"{config_file} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise RegistryAuthError(f"{config_file} is not a JSON object")
    helper = _table(config, "credHelpers").get(registry) or config.get("credsStore")
    if helper:
        return _ask_helper(str(helper), _DOCKER_HUB_KEY if registry == "docker.io" else registry)
    for key, entry in _table(config, "auths").items():
        if _host(key) == registry and isinstance(entry, dict):
            return _from_entry(entry, config_file, key)
    return None


def _from_entry(entry: Mapping[str, Any], config_file: Path, key: str) -> Credentials | None:
    username, password = str(entry.get("username") or ""), str(entry.get("password") or "")
    if encoded := entry.get("auth"):
        try:
            decoded = base64.b64decode(str(encoded), validate=True).decode().rstrip("\0")
        except (binascii.Error, UnicodeDecodeError) as error:
            raise RegistryAuthError(
                f"{config_file}: auths.{key}.auth is not base64 of user:password"
            ) from error
        username, _, password = decoded.partition(":")
    token = str(entry.get("identitytoken") or "")
    return Credentials(username, password, token) if username or token else None


def _ask_helper(helper: str, server: str) -> Credentials | None:
    if not _HELPER.fullmatch(helper):
        raise RegistryAuthError(f"{helper[:100]!r} in Docker's config.json is no name of a credential helper")
    program = f"docker-credential-{helper}"
    try:
        done = subprocess.run(
            [program, "get"],
            input=server.encode(),
            capture_output=True,
            timeout=_HELPER_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RegistryAuthError(f"{program}, named in Docker's config.json, does not run: {error}") from error
    if done.returncode != 0:
        # Its way of saying that it knows nothing of this registry.
        return None
    try:
        answer = json.loads(done.stdout)
        username, secret = str(answer["Username"]), str(answer["Secret"])
    except (ValueError, KeyError, TypeError) as error:
        raise RegistryAuthError(f"{program} gave no user name and secret") from error
    return Credentials("", "", secret) if username == _TOKEN_USER else Credentials(username, secret)


def _table(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = config.get(key)
    return value if isinstance(value, dict) else {}


def _host(key: str) -> str:
    """Give the registry of a key, which may be a URL from the time of the first registry API."""
    host = key.removeprefix("https://").removeprefix("http://").partition("/")[0].lower()
    return "docker.io" if host in ("index.docker.io", "registry-1.docker.io") else host
