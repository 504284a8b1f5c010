import pytest

from examples.swe_eval.server import connect
from launcher.errors import StartupError


def test_wrong_setting_is_told_before_a_server_is_started(tmp_path, monkeypatch: pytest.MonkeyPatch):
    for name in ("SANDMILL_API_URL", "SANDMILL_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SANDMILL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SANDMILL_WORKER_SLOTS", "abc")
    wanted = r"^SANDMILL_WORKER_SLOTS: must be a whole number from 1 to 128, not 'abc'$"
    with pytest.raises(StartupError, match=wanted), connect(is_hurried=lambda: False):
        pass
    assert not (tmp_path / "home").exists()
