"""The connection to the engine of this host, made on first use, and what its silence means."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import requests.exceptions
from docker.errors import APIError, DockerException

from core.errors import CreateTimeoutError, DaemonError
from runtimes.deadline import Deadline
from runtimes.engine import Engine

__all__ = ["ENGINE_TIMEOUT_SECONDS", "EngineLink"]

ENGINE_TIMEOUT_SECONDS = 30.0
"""For calls that take milliseconds on a healthy engine."""


class EngineLink:
    """Thread-safe."""

    def __init__(self, base_url: str | None) -> None:
        """Connect to nothing yet."""
        self._base_url = base_url
        self._lock = threading.Lock()
        self._engine: Engine | None = None

    @contextmanager
    def call(self, deadline: Deadline | None = None) -> Iterator[Engine]:
        """Give the engine for some calls. APIError passes; a silent or absent engine becomes an error of ours.

        deadline: of a create, and CreateTimeoutError once it has passed; None: one of its own, and DaemonError.
        """
        limit = deadline or Deadline(ENGINE_TIMEOUT_SECONDS)
        try:
            with self._lock:
                if self._engine is None:
                    self._engine = Engine(self._base_url)
                engine = self._engine
            with engine.until(limit):
                yield engine
        except APIError:  # also one of requests' exceptions
            raise
        except requests.exceptions.Timeout as error:
            message = f"the Docker engine did not answer within {limit.seconds:g} s"
            raise (DaemonError if deadline is None else CreateTimeoutError)(message) from error
        except (requests.exceptions.RequestException, DockerException) as error:
            raise DaemonError(f"the Docker engine does not answer: {error}") from error

    def close(self) -> None:
        """Drop the connections."""
        with self._lock:
            if self._engine is not None:
                self._engine.close()
                self._engine = None
