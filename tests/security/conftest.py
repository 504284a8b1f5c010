"""Runtimes, and execd on this machine, for these tests."""

from tests.support.execd_fixtures import bundle, open_folder  # noqa: F401 -- fixtures are found by name
from tests.support.runtime_fixtures import (  # noqa: F401 -- fixtures are found by name
    box,
    kind,
    local,
    real_kind,
    runtime_folder,
    shared_box,
)
