"""Paths with names in them."""

from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from execd.errors import MethodNotAllowedError, RouteMissingError
from execd.router import Router
from execd.target import parse_target


async def handler(exchange: Any) -> None:
    """Stands for a route."""


async def other(exchange: Any) -> None:
    """Stands for another route."""


def exchange(path: str, method: str = "GET") -> Any:
    return SimpleNamespace(target=parse_target(path.encode()), method=method, path_values={})


@pytest.mark.parametrize(
    ("pattern", "path", "values"),
    [
        ("/a/{id}", "/a/1", {"id": "1"}),
        ("/a/{id}/logs", "/a/x%20y/logs", {"id": "x y"}),
        ("/p/{port}/{rest...}", "/p/80/", {"port": "80", "rest": ""}),
        ("/p/{port}/{rest...}", "/p/80", {"port": "80", "rest": ""}),
        ("/p/{port}/{rest...}", "/p/80/b/c/", {"port": "80", "rest": "b/c/"}),
    ],
)
def test_names_take_what_stands_in_the_path(pattern: str, path: str, values: dict[str, str]) -> None:
    asked = exchange(path)
    assert Router({pattern: {"GET": handler}}).find(asked) is handler
    assert asked.path_values == values


@pytest.mark.parametrize("path", ["/a", "/a/", "/a//logs", "/a/1/2", "/b/1", "/a/1/logs/", "/p"])
def test_other_paths_are_missing(path: str) -> None:
    router = Router({"/a/{id}": {"GET": handler}, "/a/{id}/logs": {"GET": handler}, "/p/{n}/{x...}": {}})
    with pytest.raises(RouteMissingError):
        router.find(exchange(path))


def test_a_path_without_names_wins() -> None:
    router = Router({"/a/{id}": {"GET": handler}}, {"/a/all": {"GET": other}})
    assert router.find(exchange("/a/all")) is other


def test_the_methods_of_a_path_are_named() -> None:
    router = Router({"/a/{id}": {"GET": handler, "DELETE": handler}})
    with pytest.raises(MethodNotAllowedError, match="GET, DELETE"):
        router.find(exchange("/a/1", "POST"))


def test_a_star_takes_every_method() -> None:
    assert Router({"/a/{id}": {"*": handler}}).find(exchange("/a/1", "PATCH")) is handler


def test_late_routes_are_asked_for_by_their_first_request_only() -> None:
    asked = []

    def late(name: str) -> Any:
        return lambda: asked.append(name) or {f"/{name}": {"GET": handler}, f"/{name}/{{id}}": {"GET": other}}

    shared = late("b")
    router = Router({"/": {"GET": handler}}, late={"a": late("a"), "b": shared, "bb": shared})
    for path in ("/", "/c", "/A"):
        with suppress(RouteMissingError):
            router.find(exchange(path))
    assert asked == []
    assert router.find(exchange("/b/1")) is other
    assert router.find(exchange("/b")) is handler
    with pytest.raises(RouteMissingError):
        router.find(exchange("/bb"))
    assert asked == ["b"]
    assert set(router.paths()) == {"/", "/a", "/a/{id}", "/b", "/b/{id}"}
    assert asked == ["b", "a"]
