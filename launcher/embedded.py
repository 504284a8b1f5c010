"""PostgreSQL and Valkey alone, for programs and tests that need both and nothing else."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from launcher.logs import rotate_log
from launcher.postgres import EmbeddedPostgres
from launcher.service import Service, stop_services, wait_until_ready
from launcher.state import Home
from launcher.valkey import EmbeddedValkey

__all__ = ["EmbeddedServices", "embedded_services"]


@dataclass(frozen=True, slots=True)
class EmbeddedServices:
    """Two running servers. The URLs hold passwords: log neither."""

    postgres: EmbeddedPostgres
    valkey: EmbeddedValkey

    @property
    def database_url(self) -> str:
        """`postgresql://…`, an empty database on the first start."""
        return self.postgres.url

    @property
    def redis_url(self) -> str:
        """`redis://…`, database 0."""
        return self.valkey.url


@contextmanager
def embedded_services(path: Path, *, settings: Mapping[str, str] | None = None) -> Iterator[EmbeddedServices]:
    """Run both servers with their state under path, which one process at a time may use. Raises StartupError.

    settings: PostgreSQL settings beside ours, e.g. {"fsync": "off"} where the data is thrown away.

    Call it from a thread that lives as long as the servers: they are killed with it.
    """
    with Home(path) as home:
        valkey = EmbeddedValkey(home)
        postgres = EmbeddedPostgres(home, settings=settings)
        services: list[Service] = [postgres, valkey]
        for service in services:
            rotate_log(home.logs / f"{service.name}.log")
        try:
            valkey.start()
            postgres.prepare()
            postgres.start()
            wait_until_ready(services)
            yield EmbeddedServices(postgres=postgres, valkey=valkey)
        finally:
            stop_services(services)
            postgres.close()
