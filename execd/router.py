"""From method and path to the handler, with names in the path."""

from collections.abc import Callable, Mapping
from typing import Final

from execd.errors import MethodNotAllowedError, RouteMissingError
from execd.exchange import Exchange, Handler

__all__ = ["LateRoutes", "RouteTable", "Router"]

RouteTable = Mapping[str, Mapping[str, Handler]]
"""Path to method to handler. `{name}` in a path stands for one segment that is not empty, `{name...}` at its end for
the rest, slashes and all, which may be empty. Values are decoded."""

LateRoutes = Mapping[str, Callable[[], RouteTable]]
"""First segment of a path to what gives all routes that begin with it."""

_ANY_METHOD: Final = "*"


class Router:
    """All routes. A path without names wins over one with names; of those, the one added first."""

    def __init__(self, *tables: RouteTable, late: LateRoutes | None = None) -> None:
        """late: routes that are asked for with the first request of theirs; one function may give those of several."""
        self._exact: dict[str, Mapping[str, Handler]] = {}
        self._patterns: list[tuple[list[str], Mapping[str, Handler]]] = []
        self._late = dict(late or {})
        for table in tables:
            self._add(table)

    def find(self, exchange: Exchange) -> Handler:
        """Give the handler; the exchange gets its `path_values`.

        Raises RouteMissingError, MethodNotAllowedError. The method `*` of a table takes all.
        """
        path = exchange.target.path
        methods = self._exact.get(path)
        if methods is None:
            segments = path.split("/")
            self.load(segments[1])
            methods = self._exact.get(path)
        if methods is None:
            methods, exchange.path_values = self._match(segments)
        if methods is None:
            raise RouteMissingError(f"no route {path}")
        handler = methods.get(exchange.method) or methods.get(_ANY_METHOD)
        if handler is None:
            raise MethodNotAllowedError(f"{path} takes {', '.join(methods)}")
        return handler

    def paths(self) -> dict[str, Mapping[str, Handler]]:
        """All routes, as they were added."""
        for segment in list(self._late):
            self.load(segment)
        return self._exact | {"/".join(parts): methods for parts, methods in self._patterns}

    def load(self, segment: str) -> None:
        """Add the late routes that begin with this segment, if that has not been done."""
        give = self._late.get(segment)
        if give is not None:
            self._late = {other: each for other, each in self._late.items() if each != give}
            self._add(give())

    def _add(self, table: RouteTable) -> None:
        for path, methods in table.items():
            if "{" in path:
                self._patterns.append((path.split("/"), methods))
            else:
                self._exact[path] = methods

    def _match(self, segments: list[str]) -> tuple[Mapping[str, Handler] | None, dict[str, str]]:
        for parts, methods in self._patterns:
            values = _values(parts, segments)
            if values is not None:
                return methods, values
        return None, {}


def _values(parts: list[str], segments: list[str]) -> dict[str, str] | None:
    """Give what stands for the names; None if the path is another."""
    values: dict[str, str] = {}
    for index, part in enumerate(parts):
        if part.endswith("...}"):
            if index > len(segments):
                return None
            values[part[1:-4]] = "/".join(segments[index:])
            return values
        if index >= len(segments):
            return None
        if part.startswith("{") and segments[index]:
            values[part[1:-1]] = segments[index]
        elif part != segments[index]:
            return None
    return values if len(parts) == len(segments) else None
