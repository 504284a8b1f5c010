"""Limits are held to what this process may set at all."""

import resource

import pytest

from runtimes.rlimits import lowered


@pytest.mark.parametrize(
    ("hard", "given"), [(20_000, 20_000), (resource.RLIM_INFINITY, 65_536), (99_999, 65_536)]
)
def test_no_limit_above_our_own(monkeypatch: pytest.MonkeyPatch, hard: int, given: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, hard))
    assert lowered({"nofile": 65_536}) == {"nofile": given}
