import json
import re

import pytest

from core.config import Settings
from core.environment import read_settings
from core.original_config import ORIGINAL_KEYS
from core.settings_page import TARGET, render


def test_the_page_in_docs_is_up_to_date():
    assert TARGET.read_text(encoding="utf-8") == render(), "run python -m core.settings_page"


def test_every_setting_has_its_line_and_its_meaning():
    rows = re.findall(r"^\| `([A-Z_]+)` \| `\[.+\] .+` \| (.+) \| (.+) \|$", render(), re.MULTILINE)
    assert len(rows) == len(Settings.model_fields)
    assert all(field.description for field in Settings.model_fields.values())


def test_the_names_on_the_page_are_those_that_are_read(monkeypatch: pytest.MonkeyPatch):
    for name, default in re.findall(r"^\| `([A-Z_]+)` \| `.+?` \| `(.+?)` \|", render(), re.MULTILINE):
        monkeypatch.setenv(name, default)
    monkeypatch.setenv("DATABASE_URL", "postgresql://h/d")
    monkeypatch.setenv("REDIS_URL", "redis://h")
    defaults = {
        name: field.default for name, field in Settings.model_fields.items() if not field.is_required()
    }
    assert Settings().model_dump(include=set(defaults)) == defaults


def test_the_example_offers_two_runtimes(monkeypatch: pytest.MonkeyPatch):
    found = re.search(r"SANDMILL_RUNTIMES='(.+?)'", render())
    assert found
    monkeypatch.setenv("SANDMILL_RUNTIMES", found[1])
    monkeypatch.setenv("DATABASE_URL", "postgresql://h/d")
    monkeypatch.setenv("REDIS_URL", "redis://h")
    assert list(Settings().runtimes) == json.loads(found[1]) == ["local", "docker"]


def test_every_key_of_an_original_file_is_on_the_page():
    names = {name for key in ORIGINAL_KEYS for name in [f"`{key.rpartition('.')[2]}`"]}
    assert [name for name in names if name not in render()] == []


def test_the_example_of_a_file_says_the_same_as_that_of_the_environment(tmp_path, monkeypatch):
    page = render()
    path = tmp_path / "sandmill.toml"
    path.write_text(page.partition("```toml\n")[2].partition("```")[0], encoding="utf-8")
    path.chmod(0o600)
    monkeypatch.setenv("SANDMILL_CONFIG", str(path))
    found = read_settings(Settings, database_url="postgresql://h/d", redis_url="redis://h")
    assert (found.runtimes, found.worker_slots) == (("local", "docker"), 4)
