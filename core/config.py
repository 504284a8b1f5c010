"""All settings, read once by each entry point; every object receives its own part.

Each field can be given as `SANDMILL_<NAME>` in the environment; DATABASE_URL and REDIS_URL keep their usual names.
Bad values stop the start-up and name the field. There is no default for a secret.
"""

from pathlib import Path
from typing import Literal

from pydantic import AliasChoices, Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

__all__ = ["Settings"]


class Settings(BaseSettings):
    """One node's settings. Seconds, bytes and counts as the names say."""

    model_config = SettingsConfigDict(
        env_prefix="SANDMILL_", extra="ignore", frozen=True, populate_by_name=True
    )

    home: Path = Field(default=Path("~/.sandmill"), description="Folder of all state of this node.")
    database_url: SecretStr = Field(
        validation_alias=AliasChoices("DATABASE_URL", "SANDMILL_DATABASE_URL"),
        description="postgresql://user:password@host:port/database",
    )
    redis_url: SecretStr = Field(
        validation_alias=AliasChoices("REDIS_URL", "SANDMILL_REDIS_URL"),
        description="redis://:password@host:port/0",
    )
    log_format: Literal["json", "console"] = "json"
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    # API. 10 connections serve the 40 threads of the request pool: a request holds one for milliseconds.
    api_host: str = "127.0.0.1"
    api_port: int = Field(default=8080, ge=0, le=65535)
    api_pool_size: int = Field(default=10, ge=1, le=200)
    request_deadline_seconds: float = Field(
        default=25.0, gt=0, description="From the end of a request to the start of its answer, then 503."
    )
    max_body_bytes: int = Field(default=32 << 20, ge=1 << 20, description="Largest JSON body accepted.")
    max_blob_bytes: int = Field(default=2 << 30, ge=1 << 20, description="Largest single blob accepted.")

    # Scheduler. A tick every 100 ms bounds the delay when the wake-up is lost.
    tick_seconds: float = Field(default=0.1, gt=0, le=10)
    dispatch_slots: int = Field(default=100, ge=1, le=1000, description="Most trials dispatched per tick.")
    rering_seconds: float = Field(
        default=2.0, gt=0, description="Age at which an unanswered bell is rung again."
    )
    claim_timeout_seconds: float = Field(default=30.0, gt=0, description="Dispatched to claimed.")

    # Leases. 60 s outlives a database failover; the worker stops its sandboxes 10 s before the lease lapses.
    lease_seconds: float = Field(default=60.0, gt=0)
    lease_margin_seconds: float = Field(default=10.0, gt=0)
    lease_grace_seconds: float = Field(default=5.0, ge=0)
    heartbeat_seconds: float = Field(default=5.0, gt=0)

    # Worker.
    runtime: str = Field(
        default="local", description="Runtime of jobs that name none: local, docker or fake."
    )
    runtimes: tuple[str, ...] = Field(default=("local",), description="Runtimes this node offers.")
    celery_task_events: bool = Field(
        default=False,
        description="Let Flower see every bell; a quarter of the worker's cost of an empty trial.",
    )
    worker_slots: int = Field(default=8, ge=1, le=128, description="Attempts at a time on this worker.")
    worker_pool_size: int = Field(default=6, ge=1, le=64)
    worker_cpu_millicores: int | None = Field(
        default=None, ge=100, description="Default: all cores, twice over."
    )
    worker_memory_bytes: int | None = Field(
        default=None, ge=64 << 20, description="Default: 80 % of the memory."
    )
    log_cap_bytes: int = Field(
        default=16 << 20, ge=1 << 16, description="Kept output per attempt, head and tail."
    )

    @property
    def home_path(self) -> Path:
        """The state folder with `~` resolved."""
        return self.home.expanduser()
