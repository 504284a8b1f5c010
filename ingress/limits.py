"""What clients may take."""

from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Counts and times of one ingress.

    idle_seconds: between two requests of a connection. head_seconds: for the head of a request, and for the first one
    to begin. body_silence_seconds: within a body whose answer has not begun. per_sandbox: requests under way.
    connects_per_sandbox: connections of one sandbox that are being made; others wait.
    """

    connections: int = 4096
    per_sandbox: int = 512
    connects_per_sandbox: int = 4
    connect_seconds: float = 5.0
    idle_seconds: float = 120.0
    head_seconds: float = 20.0
    body_silence_seconds: float = 120.0
    linger_seconds: float = 1.0
    backend_idle_seconds: float = 30.0
