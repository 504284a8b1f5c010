import pytest

from core.config import Settings
from services.jobspec import Resources
from services.sandbox_caps import DEFAULT_CAPS, SandboxCaps, sandbox_caps
from services.sandbox_errors import WireInvalidError


def test_caps_that_nobody_changed_are_those_of_the_settings():
    settings = Settings(database_url="postgresql:", redis_url="redis:")
    assert sandbox_caps(settings) == DEFAULT_CAPS


def test_caps_are_those_of_the_settings():
    settings = Settings(
        database_url="postgresql:", redis_url="redis:", sandbox_max_pids=300, sandbox_max_disk_bytes=2 << 30
    )
    assert sandbox_caps(settings) == SandboxCaps(pids=300, disk_bytes=2 << 30)


def test_a_byte_too_much_is_told_as_more_than_the_cap():
    with pytest.raises(WireInvalidError, match=r"resourceLimits\.disk: is 102401Mi; .* at most 102400Mi"):
        DEFAULT_CAPS.check_live(Resources(disk_bytes=(100 << 30) + 1))
    DEFAULT_CAPS.check_live(Resources(disk_bytes=100 << 30))
