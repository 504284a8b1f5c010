"""execd on this machine for these tests."""

from tests.support.execd_fixtures import (  # noqa: F401 -- fixtures are found by name
    bundle,
    execd,
    open_folder,
    shared_execd,
)
