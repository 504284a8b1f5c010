"""What can be wrong with traffic."""

__all__ = ["BackendError", "BackendSilentError", "MessageError"]


class MessageError(Exception):
    """A message that is no HTTP/1.1, or could be read in two ways.

    status: what its sender is answered, if that is a client. message: what is wrong, for a person.
    """

    def __init__(self, message: str, *, status: int = 400) -> None:
        super().__init__(message)
        self.message = message
        self.status = status


class BackendError(Exception):
    """A program that was to answer broke off, or said something that is no answer. message: for a person."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class BackendSilentError(BackendError):
    """It did not answer in time."""
