"""The Sandmill server of this run: one that is there already, or one started here for the time of the run."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from examples.swe_eval.errors import ExampleError
from launcher.config import check_program_settings, read_launcher_settings
from launcher.ports import LOOPBACK
from launcher.stack import Stack, stack_config
from sandmill import Client

__all__ = ["connect", "describe_server", "home_folder"]


def home_folder() -> Path:
    """Folder of the stack's state and of this example's cache: SANDMILL_HOME, by default ~/.sandmill."""
    return read_launcher_settings().home.expanduser().absolute()


def describe_server() -> str:
    """Say which server `connect` will give, as part of a sentence. Raises ExampleError, too."""
    return "using the server at SANDMILL_API_URL" if _names_server() else "starting Sandmill"


@contextmanager
def connect(*, is_hurried: Callable[[], bool]) -> Iterator[Client]:
    """Give a client of a server that answers.

    SANDMILL_API_URL with SANDMILL_API_KEY names a running server; without them all of Sandmill is started as children
    of this process and stopped in the end. is_hurried: asked while stopping; True kills instead of waiting.
    """
    if _names_server():
        with _open_client() as client:
            yield client
        return
    programs = check_program_settings()
    # A port of its own, for this machine alone: another server may have the usual one.
    settings = read_launcher_settings().model_copy(update={"api_host": LOOPBACK, "api_port": 0})
    config = stack_config(settings, programs, with_flower=False)
    with Stack(config, is_hurried=is_hurried) as stack, Client(stack.api_url, stack.api_key) as client:
        yield client


def _names_server() -> bool:
    named = [name for name in ("SANDMILL_API_URL", "SANDMILL_API_KEY") if os.environ.get(name)]
    if len(named) == 1:
        raise ExampleError(f"{named[0]} is set alone: set SANDMILL_API_URL and SANDMILL_API_KEY, or neither")
    return bool(named)


def _open_client() -> Client:
    try:
        return Client()
    except ValueError as error:
        raise ExampleError(f"SANDMILL_API_URL or SANDMILL_API_KEY is wrong: {error}") from error
