"""docker-py's own create and start: what a container costs at least, in each way a sandbox could be connected."""

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import docker

__all__ = ["WAYS", "bare_rates", "bare_start", "open_engine"]

WAYS: Mapping[str, Mapping[str, Any]] = {
    "bridge": {},
    "none": {"network_mode": "none"},
    "network_disabled": {},
}
"""Settings of the host by way: docker-py's defaults; a namespace without a network; and no network handling by the
engine at all, the leanest of the three, since the OCI runtime alone makes the namespace then."""

_COMMAND = ["sleep", "600"]
_RATE_WIDTHS = (2, 4)
"""Creates at a time that serve an engine best on few processors; the better of the two counts."""

_RATE_COUNT = 16


@contextmanager
def open_engine() -> Iterator[Any]:
    """Connect to the engine of this machine."""
    engine = docker.from_env().api
    try:
        yield engine
    finally:
        engine.close()


def bare_start(engine: Any, image: str, way: str) -> float:
    """Milliseconds of create and start of one, which is removed then."""
    started = time.perf_counter()
    container = _create(engine, image, way)
    try:
        engine.start(container)
        return (time.perf_counter() - started) * 1000
    finally:
        engine.remove_container(container, force=True)


def bare_rates(image: str) -> dict[str, float]:
    """How many a second are created and started, as many at a time as serve the engine best, by way."""
    return {way: max(_rate(image, way, width) for width in _RATE_WIDTHS) for way in WAYS}


def _rate(image: str, way: str, width: int) -> float:
    made: list[str] = []
    with open_engine() as engine:

        def start(_: int) -> None:
            container = _create(engine, image, way)
            made.append(container)
            engine.start(container)

        try:
            started = time.perf_counter()
            with ThreadPoolExecutor(width) as pool:
                list(pool.map(start, range(_RATE_COUNT)))
            return _RATE_COUNT / (time.perf_counter() - started)
        finally:
            for container in made:
                engine.remove_container(container, force=True)


def _create(engine: Any, image: str, way: str) -> str:
    settings = engine.create_host_config(**WAYS[way])
    made = engine.create_container(
        image, _COMMAND, host_config=settings, network_disabled=way == "network_disabled"
    )
    return str(made["Id"])
