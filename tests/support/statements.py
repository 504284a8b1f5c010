"""What a test sees of the statements that are run."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection

from core import database

__all__ = ["after_statements", "noting_statements"]


@contextmanager
def noting_statements() -> Iterator[list[str]]:
    """Give the list to which each statement of a repository is added before it is run."""
    found: list[str] = []
    execute = database._execute

    def noting(connection: Connection, sql: str, parameters: Mapping[str, Any]) -> Any:
        found.append(sql)
        return execute(connection, sql, parameters)

    database._execute = noting
    try:
        yield found
    finally:
        database._execute = execute


@contextmanager
def after_statements(act: Callable[[Connection, str, Mapping[str, Any]], None]) -> Iterator[None]:
    """Call `act` after each statement of a repository, before its caller hears of it."""
    execute = database._execute

    def acting(connection: Connection, sql: str, parameters: Mapping[str, Any]) -> Any:
        cursor = execute(connection, sql, parameters)
        act(connection, sql, parameters)
        return cursor

    database._execute = acting
    try:
        yield
    finally:
        database._execute = execute
