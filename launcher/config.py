"""What the launcher itself reads from the environment."""

from pathlib import Path

from pydantic import AliasChoices, Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

__all__ = ["LauncherSettings"]


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
    api_port: int = Field(default=8080, ge=0, le=65535, description="0 picks a free one.")
