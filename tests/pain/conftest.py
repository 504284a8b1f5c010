"""Runtimes for these tests."""

from tests.support.runtime_fixtures import (  # noqa: F401 -- fixtures are found by name
    kind,
    local,
    real_kind,
    runtime_folder,
    shared_box,
)
