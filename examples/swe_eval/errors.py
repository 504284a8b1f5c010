"""Reasons for which the example cannot go on, each one line for a person at a terminal."""

__all__ = ["ExampleError"]


class ExampleError(Exception):
    """The message is one line and says what to do, or what was found."""

    def __init__(self, message: str) -> None:
        """Fold the message to one line, since it may quote the output of a program."""
        super().__init__(" ".join(message.split()))
