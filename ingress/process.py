"""The ingress process of a node."""

import asyncio
import contextlib
import resource
import signal
import socket
from pathlib import Path
from typing import Final
from uuid import UUID

from core.config import Settings
from core.database import create_database_engine
from core.errors import UnavailableError
from core.heap import settle_heap
from core.logging import get_logger
from core.metrics import serve_metrics
from ingress.limits import Limits
from ingress.sandboxes import Sandboxes
from ingress.server import IngressServer
from runtimes.node import node_runtimes
from services.access_renewal import AccessRenewer
from services.sandbox_directory import DatabaseDirectory
from traffic.access import AccessNotes

__all__ = ["NodeId", "listen", "run_ingress"]

log = get_logger(__name__)

_GRACE_SECONDS: Final = 5.0
_POOL_SIZE: Final = 4


class NodeId:
    """Reads who this node is from where its worker keeps it; None as long as there was none."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "node.id"
        self._id: UUID | None = None

    def __call__(self) -> UUID | None:
        """Give the id."""
        if self._id is None:
            with contextlib.suppress(OSError, ValueError):
                self._id = UUID(self._path.read_text().strip())
        return self._id


def listen(host: str, port: int) -> socket.socket:
    """Bind. Raises UnavailableError that names the settings."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=1024)
    except OSError as error:
        message = f"cannot listen on {host}:{port}: {error.strerror}; see SANDMILL_INGRESS_HOST, SANDMILL_INGRESS_PORT"
        raise UnavailableError(message) from error


def run_ingress(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT. Raises UnavailableError if a port is taken."""
    _raise_file_limit()
    serve_metrics(settings.metrics_host, settings.ingress_metrics_port)
    listener = listen(settings.ingress_host, settings.ingress_port)
    asyncio.run(_run(settings, listener))


async def _run(settings: Settings, listener: socket.socket) -> None:
    engine = create_database_engine(
        settings.database_url.get_secret_value(), actor="ingress", pool_size=_POOL_SIZE
    )
    runtimes = node_runtimes(settings)
    directory = DatabaseDirectory(engine)
    renewer = AccessRenewer(engine)
    limits = Limits()
    sandboxes = Sandboxes(NodeId(settings.home_path / "node"), runtimes, limits)
    server = IngressServer(directory, sandboxes, notes=AccessNotes(renewer.note), limits=limits)
    directory.listen(settings.redis_url.get_secret_value(), on_start=server.get_ready)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    host, port = listener.getsockname()[:2]
    await server.start(listener)
    settle_heap()
    log.info("ingress_listening", host=host, port=port)
    try:
        await stopping.wait()
    finally:
        await server.stop(grace_seconds=_GRACE_SECONDS)
        await directory.aclose()
        renewer.close()
        for runtime in runtimes.values():
            runtime.close()
        engine.dispose()


def _raise_file_limit() -> None:
    """Allow as many open files as the system lets us: two a request."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
