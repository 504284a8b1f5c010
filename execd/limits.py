"""What a client may take."""

from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes, counts and times of one server.

    minimum_body_rate: bytes per second of a body once body_grace_seconds are over. stream_end_seconds: to fetch the
    rest of a command's stream after the command ended. websocket_read_seconds: of silence, pongs included, until a
    WebSocket is given up.
    """

    connections: int = 256
    header_bytes: int = 16 * 1024
    json_bytes: int = 16 * 1024 * 1024
    upload_bytes: int = 16 * 1024**3
    idle_seconds: float = 120.0
    header_seconds: float = 20.0
    body_grace_seconds: float = 60.0
    minimum_body_rate: int = 1024
    write_stall_seconds: float = 60.0
    stream_end_seconds: float = 300.0
    websocket_ping_seconds: float = 30.0
    websocket_read_seconds: float = 60.0
