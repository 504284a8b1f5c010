from core.config import Settings
from services.sandbox_caps import DEFAULT_CAPS


def test_caps_that_nobody_changed_are_those_of_the_settings():
    fields = Settings.model_fields
    assert DEFAULT_CAPS.pids == fields["sandbox_max_pids"].default
