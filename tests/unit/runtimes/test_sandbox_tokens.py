from concurrent.futures import ThreadPoolExecutor

import pytest

from core.errors import RuntimeUnavailableError
from runtimes.sandbox_tokens import SandboxTokens


def test_token_is_the_same_for_a_name_after_a_restart_and_another_for_every_other(tmp_path):
    folder = tmp_path / "deep" / "docker"
    tokens = SandboxTokens(folder)
    assert tokens.of("sm-1") == SandboxTokens(folder).of("sm-1")
    assert len({tokens.of("sm-1"), tokens.of("sm-2"), SandboxTokens(tmp_path / "other").of("sm-1")}) == 3
    assert len(tokens.of("sm-1")) == 64


def test_secret_is_for_its_owner_only_and_nothing_else_is_left(tmp_path):
    folder = tmp_path / "docker"
    SandboxTokens(folder).of("sm-1")
    (secret,) = folder.iterdir()
    assert secret.stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700
    assert secret.stat().st_size == 32


def test_many_first_users_agree(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        made = pool.map(lambda _: SandboxTokens(tmp_path / "docker").of("sm-1"), range(24))
    assert len(set(made)) == 1


def test_nothing_is_touched_before_the_first_token(tmp_path):
    SandboxTokens(tmp_path / "docker")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fault", ["open to others", "cut off", "link", "folder"])
def test_secret_that_is_none_is_told(tmp_path, fault):
    SandboxTokens(tmp_path).of("sm-1")
    secret = tmp_path / "token-secret"
    if fault == "open to others":
        secret.chmod(0o640)
    elif fault == "cut off":
        secret.write_bytes(b"x" * 31)
    elif fault == "link":
        secret.rename(tmp_path / "elsewhere")
        secret.symlink_to(tmp_path / "elsewhere")
    else:
        secret.unlink()
        secret.mkdir()
    with pytest.raises(RuntimeUnavailableError, match="token-secret"):
        SandboxTokens(tmp_path).of("sm-1")


def test_folder_that_cannot_be_made_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RuntimeUnavailableError, match="cannot be kept"):
        SandboxTokens(tmp_path / "file" / "docker").of("sm-1")
