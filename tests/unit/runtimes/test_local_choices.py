from pathlib import Path
from typing import Any

import pytest

from core.errors import RuntimeUnavailableError
from runtimes.local.config import LocalConfig
from runtimes.local.preparation import has_zygote
from runtimes.local.runtime import LocalRuntime

EXECUTOR = "executor zygote (SANDMILL_LOCAL_EXECUTOR) needs root, and host users from 7000000 on: use auto"
DISK = "disk file (SANDMILL_LOCAL_DISK) needs root, and host users from 7000000 on: use memory"


def make_config(**choices: Any) -> LocalConfig:
    return LocalConfig(state_dir=Path("/s"), bundle_dir=Path("/b"), uid_base=7_000_000, **choices)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"executor": "zygote"}, EXECUTOR),
        ({"disk": "file"}, DISK),
        ({"executor": "zygote", "disk": "file"}, f"{EXECUTOR}; {DISK}"),
    ],
    ids=["executor", "disk", "both"],
)
def test_what_needs_root_is_refused_by_the_name_of_what_was_set(choices, message):
    with pytest.raises(RuntimeUnavailableError) as caught:
        has_zygote(make_config(**choices), as_root=False)
    assert caught.value.message == message
    assert has_zygote(make_config(**choices), as_root=True)


def test_without_root_the_default_is_no_zygote():
    assert not has_zygote(make_config(), as_root=False)


def test_without_a_zygote_no_snapshots_are_offered():
    assert not LocalRuntime(make_config(executor="bwrap")).capabilities().makes_snapshots
