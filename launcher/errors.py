"""Reasons for which the stack cannot start, each said in one line for a person at a terminal."""

from core.errors import UnavailableError

__all__ = ["StartupError"]


class StartupError(UnavailableError):
    """The stack cannot start; the message is one line and says what to do about it."""

    code = "startup_failed"
    retryable = False

    def __init__(self, message: str) -> None:
        """Fold the message to one line, since it may quote the output of a program."""
        super().__init__(" ".join(message.split()))
