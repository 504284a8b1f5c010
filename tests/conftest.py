"""Fixtures for all tests, and which of them may run beside each other."""

import os
import re
import ssl
from functools import cache
from pathlib import Path
from typing import Any

import certifi
import pytest

from tests.support.rotation import of_today_among

# The files of whoever runs the tests say nothing about them.
os.environ["SANDMILL_CONFIG"] = os.devnull
os.environ.pop("SANDBOX_CONFIG_PATH", None)

pytest_plugins = ["tests.support.services"]

_create_context = ssl.create_default_context
_published = cache(lambda: _create_context(cafile=certifi.where()))


def _create_context_once(*positional: Any, **named: Any) -> ssl.SSLContext:
    """Load the published certificates once: each HTTP client does so, also one that speaks to this machine only."""
    if positional or named != {"cafile": certifi.where()}:
        return _create_context(*positional, **named)
    return _published()


ssl.create_default_context = _create_context_once


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--one-a-day", action="store_true", help="leave out cases of tests marked one_a_day")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the longest first: what comes last in a parallel run then keeps no processor waiting for another one."""
    if config.getoption("--one-a-day"):
        left = of_today_among(items)
        config.hook.pytest_deselected(items=[item for item in items if item not in set(left)])
        items[:] = left
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    unit = config.rootpath / "tests/unit"
    items.sort(
        key=lambda item: (
            not _needs_engine(item.path),
            item.path not in slow,
            item.path.is_relative_to(unit),
        )
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep the tests of a file in one process, and those that share the container engine, too.

    xdist's own groups say so by a suffix to the ids of tests, which this pytest does not let it add.
    """
    from xdist.scheduler import LoadScopeScheduling  # noqa: PLC0415 -- an installation may do without

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return scope_of(config.rootpath, nodeid)

    return Scheduling(config, log)


def scope_of(root: Path, nodeid: str) -> str:
    """Name what has to run in one process, one after the other, with this test: the same name, the same process."""
    path = nodeid.partition("::")[0]
    if not _needs_engine(root / path):
        return path
    if not _WITHOUT_ENGINE.search(nodeid):
        return "engine"
    # They share an installation.
    return "live" if path.startswith("tests/clients/live/") else path


_WITHOUT_ENGINE = re.compile(r"\[(local|fake|zygote|bwrap)\b")
"""In the id of a test: that it is the case of another runtime, in a file that tries the engine as well."""


@cache
def _needs_engine(path: Path) -> bool:
    """Whether any test of a file is marked `docker`."""
    return "mark.docker" in path.read_text(encoding="utf-8")
