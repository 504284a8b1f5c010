import re
import stat
import tomllib

import pytest

from core.config import Settings
from core.config_sections import FIELDS
from core.environment import read_settings
from core.errors import SettingError
from launcher.errors import StartupError
from launcher.samples import Example, render_sample, write_sample

URLS = {"database_url": "postgresql://h/d", "redis_url": "redis://h"}


@pytest.fixture(params=Example)
def sample(request, tmp_path, monkeypatch):
    path = write_sample(tmp_path / "sandmill.toml", request.param, is_forced=False)
    monkeypatch.setenv("SANDMILL_CONFIG", str(path))
    return path


def test_a_sample_is_read_and_changes_nothing_but_what_it_sets(sample):
    set_fields = {
        FIELDS[part, key] for part, keys in tomllib.loads(sample.read_text()).items() for key in keys
    }
    found, plain = read_settings(Settings, **URLS), Settings(**URLS)
    assert {
        name for name in Settings.model_fields if getattr(found, name) != getattr(plain, name)
    } <= set_fields
    assert (found.runtimes, found.runtime) in {(("local",), "local"), (("docker",), "docker")}


def test_every_setting_is_in_a_sample_and_every_line_may_be_uncommented(sample):
    text = re.sub(r"^#(?=[a-z_]+ = )", "", sample.read_text(), flags=re.MULTILINE)
    places = {(part, key) for part, keys in tomllib.loads(text).items() for key in keys}
    assert places == set(FIELDS)
    # A key that stands in a sample would be known to everybody, so this one is refused until somebody draws one.
    text = re.sub(r"^secret_key = .*$", "", text, flags=re.MULTILINE)
    sample.write_text(text)
    found, plain = read_settings(Settings), Settings(**URLS)
    for name, field in Settings.model_fields.items():
        if not field.is_required() and field.default is not None and f"#{name}" in text:
            assert getattr(found, name) == getattr(plain, name)


def test_the_key_in_a_sample_is_refused(tmp_path, monkeypatch):
    text = render_sample(Example.LOCAL).replace("#secret_key", "secret_key")
    path = tmp_path / "x"
    path.write_text(text)
    monkeypatch.setenv("SANDMILL_CONFIG", str(path))
    with pytest.raises(SettingError, match=r"\[node\] secret_key: must be text of at least 32 characters$"):
        read_settings(Settings, **URLS)


def test_only_its_owner_may_read_a_sample(sample):
    assert stat.S_IMODE(sample.stat().st_mode) == 0o600
    assert [file.name for file in sample.parent.iterdir()] == ["sandmill.toml"]


def test_a_file_that_is_there_is_kept_unless_forced(tmp_path):
    path = tmp_path / "sandmill.toml"
    path.write_text("mine")
    path.chmod(0o644)
    with pytest.raises(
        StartupError, match=r"sandmill\.toml is there already: name another file, or take --force"
    ):
        write_sample(path, Example.LOCAL, is_forced=False)
    assert path.read_text() == "mine"
    write_sample(path, Example.LOCAL, is_forced=True)
    assert path.read_text() == render_sample(Example.LOCAL)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["sandmill.toml"]


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "theirs").write_text("theirs")
    (tmp_path / "link").symlink_to("theirs")
    with pytest.raises(StartupError, match="is there already"):
        write_sample(tmp_path / "link", Example.LOCAL, is_forced=False)
    write_sample(tmp_path / "link", Example.LOCAL, is_forced=True)
    assert (tmp_path / "theirs").read_text() == "theirs"


@pytest.mark.parametrize(
    ("name", "why"), [("none/x.toml", "No such file or directory"), ("", "Is a directory")]
)
def test_what_cannot_be_written_is_told(tmp_path, name, why):
    with pytest.raises(StartupError, match=rf"^cannot write .*: {why}$"):
        write_sample(tmp_path / name, Example.LOCAL, is_forced=True)
