"""What the launcher itself reads from the environment and the configuration file."""

import os
from pathlib import Path

from pydantic import AliasChoices, Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from core.config import Settings
from core.config_file import read_config_file
from core.environment import read_settings
from core.errors import SettingError
from core.secret_rules import check_keys, key_warnings
from launcher.errors import StartupError

__all__ = [
    "LauncherSettings",
    "check_program_settings",
    "config_warnings",
    "read_installation_settings",
    "read_launcher_settings",
]


class LauncherSettings(BaseSettings):
    """Settings of `up`. The programs it starts read `core.config.Settings`; here both URLs may be missing."""

    model_config = SettingsConfigDict(
        env_prefix="SANDMILL_", extra="ignore", frozen=True, populate_by_name=True, env_ignore_empty=True
    )

    home: Path = Field(default=Path("~/.sandmill"), description="Folder of all state of this node.")
    database_url: SecretStr | None = Field(
        default=None,
        validation_alias=AliasChoices("DATABASE_URL", "SANDMILL_DATABASE_URL"),
        description="External PostgreSQL; unset: one of our own is started.",
    )
    redis_url: SecretStr | None = Field(
        default=None,
        validation_alias=AliasChoices("REDIS_URL", "SANDMILL_REDIS_URL"),
        description="External Redis or Valkey; unset: one of our own is started.",
    )
    docker_config: Path = Field(
        default=Path("~/.docker"),
        validation_alias=AliasChoices("DOCKER_CONFIG", "SANDMILL_DOCKER_CONFIG"),
        description="Folder of the config.json in which `docker login` saves credentials of registries.",
    )
    api_host: str = Field(default="127.0.0.1", description="Where the API listens.")
    api_port: int = Field(default=8080, ge=0, le=65535, description="0 picks a free one.")


def read_launcher_settings() -> LauncherSettings:
    """Read the launcher's own settings. Raises StartupError that names the variable."""
    try:
        return read_settings(LauncherSettings)
    except SettingError as error:
        raise StartupError(error.message) from None


def check_program_settings() -> Settings:
    """Read what the programs of the stack will read, both URLs aside. Raises StartupError that names what is wrong.

    For whoever starts them, before anything else: a database takes seconds, and a program's own words end in its log.
    """
    try:
        settings = read_settings(Settings, database_url="postgresql:", redis_url="redis:")
        check_keys(settings)
    except SettingError as error:
        raise StartupError(error.message) from None
    return settings


def read_installation_settings() -> Settings:
    """Read the settings for a command that needs the database alone. Raises SettingError, StartupError.

    Without DATABASE_URL it is the one that `up` runs in SANDMILL_HOME.
    """
    from launcher.postgres import running_url  # noqa: PLC0415 -- most commands need no database driver

    own = read_launcher_settings()
    url = running_url(own.home) if own.database_url is None else None
    if url is None:
        return read_settings(Settings)
    return read_settings(Settings, database_url=url, redis_url="redis:")


def config_warnings(settings: Settings) -> list[str]:
    """Give what a person should know of settings that are let pass, one line each."""
    return [*read_config_file(os.environ).warnings, *key_warnings(settings)]
