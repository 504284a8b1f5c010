"""All settings, read once by each entry point; every object receives its own part.

Each field can be given as `SANDMILL_<NAME>` in the environment; DATABASE_URL and REDIS_URL keep their usual names.
Bad values stop the start-up and name the field. There is no default for a secret.
"""

import ipaddress
import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

__all__ = ["ADDRESS_PATTERN", "LONGEST_POOL_WAIT_SECONDS", "RuntimeName", "Settings", "reachable_host"]

ADDRESS_PATTERN = r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?$"
"""host or host:port; an IPv6 address in brackets."""

LONGEST_POOL_WAIT_SECONDS = 20.0
"""Below the deadline of a request, so that who waits in vain is told why."""

RuntimeName = Literal["local", "docker", "fake"]
"""Those in `runtimes.registry`, which core does not know; a test compares the two."""


class Settings(BaseSettings):
    """One node's settings. Seconds, bytes and counts as the names say."""

    model_config = SettingsConfigDict(
        env_prefix="SANDMILL_", extra="ignore", frozen=True, populate_by_name=True, allow_inf_nan=False
    )

    home: Path = Field(default=Path("~/.sandmill"), description="Folder of all state of this node.")
    database_url: SecretStr = Field(
        validation_alias=AliasChoices("DATABASE_URL", "SANDMILL_DATABASE_URL"),
        examples=["postgresql://user:password@127.0.0.1:5432/sandmill"],
        description="postgresql://user:password@host:port/database",
    )
    redis_url: SecretStr = Field(
        validation_alias=AliasChoices("REDIS_URL", "SANDMILL_REDIS_URL"),
        examples=["redis://:password@127.0.0.1:6379/0"],
        description="redis://:password@host:port/0",
    )
    metrics_host: str = Field(
        default="127.0.0.1",
        description="Where scheduler, worker and ingress tell their metrics, if they have a port.",
    )
    scheduler_metrics_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        examples=[9101],
        description="Port of the scheduler's /metrics. Default: not served.",
    )
    worker_metrics_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        examples=[9102],
        description="Port of the worker's /metrics. Default: not served.",
    )
    ingress_metrics_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        examples=[9103],
        description="Port of the /metrics of the ingress. Default: not served.",
    )

    secret_key: SecretStr | None = Field(
        default=None,
        min_length=32,
        examples=["of: openssl rand -hex 32"],
        description="Seals the secrets of webhooks in the database; the same for API and scheduler.",
    )
    log_format: Literal["json", "console"] = Field(
        default="json", description="json: a line per event for programs; console: for people."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="debug, info, warning or error."
    )

    api_host: str = Field(default="127.0.0.1", description="Where an API that runs alone listens.")
    api_port: int = Field(default=8080, ge=0, le=65535, description="Its port; 0 picks a free one.")
    public_url: str | None = Field(
        default=None,
        pattern=r"^https?://[^/?#\s]+(/[^?#\s]*)?$",
        examples=["https://sandmill.example.org"],
        description=(
            "How clients reach the API, for the links in webhooks and endpoints by way of it. Default: paths alone, "
            "and the host that a request names."
        ),
    )
    server_api_key: SecretStr | None = Field(
        default=None,
        validation_alias=AliasChoices("SANDMILL_SERVER_API_KEY", "OPENSANDBOX_SERVER_API_KEY"),
        examples=["of: openssl rand -hex 24"],
        description="A key of the tenant `default`, of any form, beside those in the database. Default: none.",
    )
    insecure_server: bool = Field(
        default=False,
        validation_alias=AliasChoices("SANDMILL_INSECURE_SERVER", "OPENSANDBOX_INSECURE_SERVER"),
        description="Let programs of this machine act for the tenant `default` without a key.",
    )
    # Longer than load balancers keep theirs: whoever closes first never meets a request on its way.
    api_keep_alive_seconds: int = Field(
        default=65, ge=1, le=3600, description="So long an idle connection is kept."
    )
    api_limit_concurrency: int = Field(
        default=0, ge=0, description="Most connections and requests at a time, then 503; 0: no limit."
    )
    # An open stream of logs would hold a stop for ever.
    api_graceful_shutdown_seconds: int = Field(
        default=3, ge=0, le=600, description="What runs at a stop is cut after so long."
    )
    # Nobody by default, this machine included: whoever is believed says from which address a bad key has come.
    api_trusted_proxies: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        examples=["10.0.0.7"],
        description=(
            "Proxies in front whose `X-Forwarded-For` and `-Proto` are believed: a JSON list of addresses or CIDR. "
            "Of all others they count for nothing."
        ),
    )
    api_backlog: int = Field(
        default=2048, ge=1, le=65535, description="Most connections that wait to be accepted."
    )
    # 10 connections serve the 40 threads of the request pool: a request holds one for milliseconds.
    api_pool_size: int = Field(
        default=10, ge=1, le=200, description="Database connections of one API; creates get two thirds."
    )
    runtime: RuntimeName = Field(
        default="local", description="Runtime of jobs that name none: local, docker or fake."
    )
    request_deadline_seconds: float = Field(
        default=25.0, gt=0, description="From the end of a request to the start of its answer, then 503."
    )
    max_body_bytes: int = Field(default=32 << 20, ge=1 << 20, description="Largest JSON body accepted.")
    max_blob_bytes: int = Field(default=2 << 30, ge=1 << 20, description="Largest single blob accepted.")

    # Ten seconds: most images are there, and what is pulled goes on while the client asks again.
    sandbox_create_wait_seconds: float = Field(
        default=10.0,
        ge=0,
        le=60,
        description="So long the answer to a create waits for the sandbox to run; then it says Pending.",
    )
    sandbox_start_timeout_seconds: float = Field(
        default=60.0,
        gt=0,
        description="So long a sandbox may take from its image being there until execd answers.",
    )
    # For 10 GB over a slow line. A pull shows how far it is, and ends by itself when nothing comes for two minutes.
    sandbox_pull_timeout_seconds: float = Field(
        default=1800.0,
        gt=0,
        description="So long a sandbox may wait, beyond that, for its image to be pulled.",
    )
    max_sandbox_timeout_seconds: int | None = Field(
        default=None,
        ge=60,
        examples=[86400],
        description="Longest timeout a sandbox may be made with; a renewal may go beyond. Default: any.",
    )
    # Build tools and browsers start hundreds; a fork bomb is stopped long before the host feels it. Not less than what
    # a job has that names none.
    sandbox_max_pids: int = Field(
        default=4096,
        ge=256,
        le=4_194_304,
        validation_alias=AliasChoices("SANDMILL_SANDBOX_MAX_PIDS", "SANDMILL_DOCKER_PIDS_LIMIT"),
        description="Most processes and threads that one sandbox may ask for, of jobs and pools, too; more is refused.",
    )
    # Far beyond what builds and test suites write, and still a part of a usual node's disk: a limit beyond that limits
    # nothing. Not less than what a sandbox has that names none.
    sandbox_max_disk_bytes: int = Field(
        default=100 << 30,
        ge=1 << 30,
        le=1 << 50,
        description="Most disk that one sandbox may ask for, of jobs and pools, too; more is refused.",
    )
    # Each is as large as what its sandbox wrote; a hundred is far more than those who branch by hand ever keep.
    max_snapshots: int = Field(
        default=100, ge=0, description="Most snapshots of sandboxes that are kept of one tenant."
    )
    # Sandboxes that wait for a person or a model use a tenth of what they may use, and far less CPU.
    sandbox_cpu_request: float = Field(
        default=0.1, gt=0, le=1, description="Part of its CPU limit that a live sandbox reserves on its node."
    )
    sandbox_memory_request: float = Field(
        default=0.1,
        gt=0,
        le=1,
        description="Part of its memory limit that a live sandbox reserves on its node.",
    )

    # An hour: long enough to cost nothing, short enough that leaks of what runs in them never add up.
    pool_member_age_seconds: float = Field(
        default=3600.0,
        ge=10,
        description="A sandbox that waits in a warm pool for so long is replaced by a new one.",
    )
    pool_wait_seconds: float = Field(
        default=2.0,
        ge=0,
        le=LONGEST_POOL_WAIT_SECONDS,
        description="So long a create from a pool that is full waits for a member, before it gets 429.",
    )

    ingress_host: str = Field(
        default="127.0.0.1",
        description="Where the ingress of this node listens: the way to ports of sandboxes.",
    )
    ingress_port: int = Field(default=28888, ge=0, le=65535, description="Its port; 0 picks a free one.")
    ingress_address: str | None = Field(
        default=None,
        pattern=ADDRESS_PATTERN,
        examples=["sandboxes.example.org:28888"],
        description="Host, or host:port, by which clients reach it. Default: where it listens.",
    )

    ingress_internal_address: str | None = Field(
        default=None,
        pattern=ADDRESS_PATTERN,
        examples=["10.0.0.7:28888"],
        description="Host, or host:port, by which the API reaches it. Default: as clients do.",
    )

    # A tick every 100 ms bounds the delay when the wake-up is lost.
    tick_seconds: float = Field(
        default=0.1, gt=0, le=10, description="Time between two looks at the queue when nothing rings."
    )
    dispatch_slots: int = Field(default=100, ge=1, le=1000, description="Most trials dispatched per tick.")
    rering_seconds: float = Field(
        default=2.0, gt=0, description="Age at which an unanswered bell is rung again."
    )
    claim_timeout_seconds: float = Field(default=30.0, gt=0, description="Dispatched to claimed.")

    # A minute lets what is small go first as long as that costs the large nothing that matters.
    hold_seconds: float = Field(
        default=60.0,
        gt=0,
        description="So long smaller trials may slip past one that waits for room or for its tenant's quota.",
    )
    avoid_node_seconds: float = Field(
        default=30.0, ge=0, description="So long a retry waits for another node than the one that failed it."
    )
    usage_weight: float = Field(
        default=0.2, ge=0, le=10, description="How much a tenant's past use counts against its present one."
    )
    usage_half_life_seconds: float = Field(
        default=600.0, gt=0, description="After so long, past use counts half."
    )
    newcomer_reserve: float = Field(
        default=0.0,
        ge=0,
        le=0.9,
        description="Part of all slots kept free for tenants that run nothing, while one runs; its square for two.",
    )
    preempt_after_seconds: float = Field(
        default=30.0,
        gt=0,
        description="So long a trial of a tenant below its guaranteed share waits for room.",
    )

    webhook_allowed_networks: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        examples=["10.0.0.0/8"],
        description="Networks webhooks may go to beside the public internet, also by plain http: a JSON list of CIDR.",
    )
    webhook_parallel: int = Field(
        default=16, ge=2, le=128, description="Webhooks on their way at a time; one receiver gets a quarter."
    )
    webhook_timeout_seconds: float = Field(
        default=15.0, gt=0, le=60, description="A receiver that takes longer is tried again later."
    )

    retention_batch_days: float = Field(
        default=30.0,
        gt=0,
        description="A finished batch goes to the history after so long, with jobs, trials, attempts and artifacts.",
    )
    retention_artifact_days: float = Field(
        default=30.0, gt=0, description="Artifacts are removed so long after they were kept."
    )
    retention_log_days: float = Field(
        default=30.0,
        gt=0,
        description="A month's logs go when its last trial has been finished for so long.",
    )
    retention_history_days: float = Field(
        default=400.0, gt=0, description="A month's history, and its events, go so long after that month."
    )
    retention_delivery_days: float = Field(
        default=14.0, gt=0, description="Webhook deliveries, and times of schedules, are listed for so long."
    )
    retention_blob_days: float = Field(
        default=7.0, ge=0.1, description="A blob that nothing uses is kept so long after it was last sent."
    )

    # 60 s outlives a database failover; the worker stops its sandboxes 10 s before the lease lapses.
    lease_seconds: float = Field(
        default=60.0, gt=0, description="How long a worker that is not heard is believed alive."
    )
    lease_margin_seconds: float = Field(
        default=10.0, gt=0, description="So long before its lease lapses a worker stops its sandboxes."
    )
    lease_grace_seconds: float = Field(
        default=5.0, ge=0, description="So long after it lapsed the trials go to other workers."
    )
    heartbeat_seconds: float = Field(default=5.0, gt=0, description="Time between two renewals of a lease.")

    # Read by `_read_list`, so that a bad list is told like any other bad value.
    runtimes: Annotated[tuple[RuntimeName, ...], NoDecode] = Field(
        default=("local",),
        min_length=1,
        description="Runtimes this node offers: a JSON list of local, docker and fake.",
    )
    worker_slots: int = Field(default=8, ge=1, le=128, description="Attempts at a time on this worker.")
    worker_pool_size: int = Field(
        default=6, ge=1, le=64, description="Database connections of one worker, beside the heartbeat's."
    )
    worker_cpu_millicores: int | None = Field(
        default=None,
        ge=100,
        examples=[4000],
        description="CPU handed out to sandboxes, 1000 a core. Default: all cores, twice over.",
    )
    worker_memory_bytes: int | None = Field(
        default=None,
        ge=64 << 20,
        examples=[8589934592],
        description="Memory handed out to sandboxes. Default: 80 % of the memory.",
    )
    canary_seconds: float = Field(
        default=30.0,
        gt=0,
        description="How often a worker rings for itself; after three bells that do not come back it starts anew.",
    )
    worker_gpu: int = Field(default=0, ge=0, le=64, description="GPUs of this node that sandboxes may have.")
    worker_labels: Annotated[dict[str, str], NoDecode] = Field(
        default={}, description="Labels of this node, for jobs that ask for them: a JSON object of texts."
    )
    log_cap_bytes: int = Field(
        default=16 << 20, ge=1 << 16, description="Kept output per attempt, head and tail."
    )
    celery_task_events: bool = Field(
        default=False,
        description="Let Flower see every bell; a quarter of the worker's cost of an empty trial.",
    )

    local_executor: Literal["auto", "zygote", "bwrap"] = Field(
        default="auto",
        description="What starts local sandboxes: auto is the zygote for root, bwrap for everyone else.",
    )
    local_disk: Literal["memory", "file"] = Field(
        default="memory",
        description="Where files of local sandboxes live: file takes no memory, and needs root and mkfs.ext4.",
    )

    docker_pull: bool = Field(default=True, description="Fetch images that the engine does not have.")
    docker_oci_runtime: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$",
        examples=["runsc"],
        description="Runtime of the engine's list for all containers, e.g. runsc. Default: the engine's own.",
    )
    docker_allowed_host_paths: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        examples=["/srv/datasets"],
        description="Folders of the host that sandboxes may ask for as volumes: a JSON list. Default: none.",
    )
    docker_allowed_volumes: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(),
        examples=["datasets-*"],
        description="Volumes of the engine, not made by sandboxes, that they may use: a JSON list of patterns.",
    )
    docker_user: int | None = Field(
        default=None,
        ge=1,
        le=2_000_000_000,
        examples=[70000],
        description="User of all sealed sandboxes. Default: another one for each.",
    )
    docker_writable_root: bool = Field(
        default=False, description="Let the root file system be written also where a sandbox did not ask."
    )
    docker_parallel_creates: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        examples=[8],
        description="Containers made at a time. Default: two per processor.",
    )
    docker_sandbox_env: Annotated[dict[str, str], NoDecode] = Field(
        default={}, description="Environment of all containers: a JSON object of texts."
    )

    @field_validator("api_trusted_proxies", "webhook_allowed_networks")
    @classmethod
    def _check_networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            ipaddress.ip_network(text)
        return value

    @field_validator("docker_allowed_host_paths")
    @classmethod
    def _check_folders(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            if not text.startswith("/") or ".." in text.split("/"):
                raise ValueError(text)
        return value

    @field_validator(
        *("api_trusted_proxies", "runtimes", "webhook_allowed_networks", "worker_labels"),
        *("docker_allowed_host_paths", "docker_allowed_volumes", "docker_sandbox_env"),
        mode="before",
    )
    @classmethod
    def _read_list(cls, value: Any) -> Any:
        return json.loads(value) if isinstance(value, str) else value

    @field_validator("log_level", mode="before")
    @classmethod
    def _read_level(cls, value: Any) -> Any:
        """Take the names of Python's levels, too."""
        level = value.lower() if isinstance(value, str) else value
        return {"warn": "warning", "critical": "error"}.get(level, level) if isinstance(level, str) else level

    @field_validator("server_api_key", mode="before")
    @classmethod
    def _read_key(cls, value: Any) -> Any:
        """Take an empty key for none."""
        return None if value == "" else value

    @property
    def api_clients_address(self) -> str | None:
        """`host[:port][/path]` by which clients reach the API; None: as the request says."""
        return None if self.public_url is None else self.public_url.partition("://")[2].rstrip("/")

    @property
    def ingress_clients_address(self) -> str:
        """`host:port` by which clients reach the ingress of this node, told with every endpoint."""
        return self._with_ingress_port(self.ingress_address or reachable_host(self.ingress_host))

    @property
    def ingress_url(self) -> str:
        """URL by which the API reaches the ingress of this node."""
        internal = self.ingress_internal_address
        return f"http://{self._with_ingress_port(internal) if internal else self.ingress_clients_address}"

    def _with_ingress_port(self, address: str) -> str:
        has_port = address.rpartition("]")[2].count(":") == 1
        return address if has_port else f"{address}:{self.ingress_port}"

    @property
    def home_path(self) -> Path:
        """The state folder with `~` resolved."""
        return self.home.expanduser()


def reachable_host(host: str) -> str:
    """Give the address by which this machine reaches what listens on host; IPv6 in brackets."""
    if host in {"", "0.0.0.0", "::", "*"}:  # noqa: S104 -- to be told apart, not to be used
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host
