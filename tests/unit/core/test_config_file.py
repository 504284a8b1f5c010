import os
from collections.abc import Callable
from pathlib import Path

import pytest

from core.config import Settings
from core.config_file import find_config_file, read_config_file
from core.config_sections import FIELDS
from core.environment import read_settings, told_name
from core.errors import SettingError

URLS = {"database_url": "postgresql://h/d", "redis_url": "redis://h"}

Write = Callable[[str], Path]


@pytest.fixture
def write(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Write:
    for name in [name for name in os.environ if name.startswith(("SANDMILL_", "OPENSANDBOX_"))]:
        monkeypatch.delenv(name)
    path = tmp_path / "sandmill.toml"
    monkeypatch.setenv("SANDMILL_CONFIG", str(path))

    def write_file(text: str) -> Path:
        path.write_text(text, encoding="utf-8")
        path.chmod(0o600)
        return path

    return write_file


def refusal(path: Path) -> str:
    with pytest.raises(SettingError) as caught:
        read_settings(Settings, **URLS)
    return caught.value.message.removeprefix(str(path))


def test_every_setting_has_one_place_in_a_file():
    assert sorted(FIELDS.values()) == sorted(Settings.model_fields)


def test_keys_of_all_kinds_become_settings(write):
    write("""
        [node]
        home = "/srv/mill"
        [log]
        level = "WARNING"
        [server]
        port = 9000
        request_deadline_seconds = 5
        insecure_server = true
        [webhooks]
        allowed_networks = ["10.0.0.0/8"]
        [worker]
        runtimes = ["docker", "local"]
        labels = {zone = "a"}
        [docker.sandbox_env]
        LANG = "C"
    """)
    found = read_settings(Settings, **URLS)
    assert (found.home, found.log_level, found.api_port) == (Path("/srv/mill"), "warning", 9000)
    assert (found.request_deadline_seconds, found.insecure_server) == (5.0, True)
    assert (found.webhook_allowed_networks, found.runtimes) == (("10.0.0.0/8",), ("docker", "local"))
    assert (found.worker_labels, found.docker_sandbox_env) == ({"zone": "a"}, {"LANG": "C"})


@pytest.mark.parametrize("variable", ["SANDMILL_WORKER_SLOTS", "sandmill_worker_slots"])
def test_the_environment_wins_over_the_file(write, monkeypatch, variable):
    write("[worker]\nslots = 3\npool_size = 4\n")
    monkeypatch.setenv(variable, "5")
    found = read_settings(Settings, **URLS)
    assert (found.worker_slots, found.worker_pool_size) == (5, 4)


@pytest.mark.parametrize("variable", ["SANDMILL_SERVER_API_KEY", "OPENSANDBOX_SERVER_API_KEY"])
def test_each_name_of_a_variable_wins_over_the_file(write, monkeypatch, variable):
    write('[server]\napi_key = "of-the-file-0123456"\n')
    monkeypatch.setenv(variable, "of-the-environment")
    found = read_settings(Settings, **URLS).server_api_key
    assert found is not None
    assert found.get_secret_value() == "of-the-environment"


def test_a_wrong_value_that_the_environment_overrules_is_not_told(write, monkeypatch):
    write('[worker]\nslots = "many"\n')
    monkeypatch.setenv("SANDMILL_WORKER_SLOTS", "5")
    assert read_settings(Settings, **URLS).worker_slots == 5


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        (
            '[server]\nhost = "::1"\nprot = 80',
            3,
            "[server] prot: is no key that is known; did you mean [server] port?",
        ),
        ("[server]\nslots = 4", 2, "[server] slots: is no key that is known; did you mean [worker] slots?"),
        ("[serve]\nport = 1", 1, "serve: is no section; did you mean [server]?"),
        ("port = 80", 1, "port: stands outside of a section; did you mean [server] port or [ingress] port?"),
        ("# x\nserver = 5", 2, "server: must be a section, written [server]"),
        (
            "[docker]\npids_limits = 5",
            2,
            "[docker] pids_limits: is no key that is known; did you mean [docker] pids_limit?",
        ),
        ("[server]\nport = '80'", 2, "[server] port: must be a whole number from 0 to 65535, not '80'"),
        ("[server]\nport = true", 2, "[server] port: must be a whole number from 0 to 65535, not true"),
        ("[server]\nport = 65536", 2, "[server] port: must be a whole number from 0 to 65535, not 65536"),
        (
            "[server]\ninsecure_server = 'YES'",
            2,
            "[server] insecure_server: must be true or false, not 'YES'",
        ),
        (
            "[leases]\n\nlease_seconds = inf",
            3,
            "[leases] lease_seconds: must be a number, more than 0, not inf",
        ),
        ("[log]\nlevel = 'loud'", 2, "[log] level: must be debug, info, warning or error, not 'loud'"),
        (
            "[worker]\nlabels = {a = 1}",
            2,
            "[worker] labels: must be a table of texts, such as {name = \"value\"}, not {'a': 1}",
        ),
        (
            "[worker]\nruntimes = ['dokcer']",
            2,
            '[worker] runtimes: must be a list of local, docker or fake, such as ["local", "docker"], not [\'dokcer\']',
        ),
        ("[server]\napi_key = 7", 2, "[server] api_key: must be text"),
        (
            "docker.pids_limit = 'x'",
            1,
            "[docker] pids_limit: must be a whole number from 256 to 4194304, not 'x'",
        ),
        (
            "docker = {pids_limit = 'x'}",
            1,
            "[docker] pids_limit: must be a whole number from 256 to 4194304, not 'x'",
        ),
        (
            '["docker"]\n"pids_limit" = 1.5',
            2,
            "[docker] pids_limit: must be a whole number from 256 to 4194304, not 1.5",
        ),
    ],
)
def test_what_is_wrong_is_told_with_line_key_and_what_it_may_be(write, text, line, told):
    assert refusal(write(text)) == f", line {line}: {told}"


def test_an_unknown_key_that_is_like_none_is_told_with_those_of_its_section(write):
    assert refusal(write("[docker]\nzzzqqq = 1")).endswith(
        "[docker] may have pull, oci_runtime, allowed_host_paths, allowed_volumes, "
        "user, writable_root, parallel_creates, sandbox_env"
    )


def test_an_unknown_section_that_is_like_none_is_told_with_all(write):
    assert refusal(write("[zzzqqq]\na = 1")).startswith(
        ", line 1: zzzqqq: is no section; sections are node, log, server, "
    )


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"[server\n", ": is not TOML: Expected ']' at the end of a table declaration (at line 1, column 8)"),
        (b"[a]\nb = 1\nb = 2\n", ": is not TOML: Cannot overwrite a value (at line 3, column 6)"),
        (b"# \xff\n", ": is not UTF-8"),
        (b"#" * (1 << 20) + b"\n", ": is larger than 1 MiB"),
    ],
)
def test_what_is_no_file_of_settings_is_told(write, data, told):
    path = write("")
    path.write_bytes(data)
    message = refusal(path)
    assert message.startswith(told.partition(" (at")[0])
    assert message.endswith(told.rpartition("(at")[2])


def test_a_byte_order_mark_does_no_harm(write):
    write("\ufeff[worker]\nslots = 3\n")
    assert read_settings(Settings, **URLS).worker_slots == 3


def test_two_keys_that_contradict_each_other_are_both_named(write):
    path = write("[server]\ntimeout_keep_alive = 5\nkeep_alive_seconds = 6\n")
    assert refusal(path) == (
        f", line 3: [server] keep_alive_seconds: says something else than {path}, line 2: "
        "[server] timeout_keep_alive: remove one of them"
    )


def test_two_keys_that_agree_are_let_pass(write):
    write("[server]\ntimeout_keep_alive = 5\nkeep_alive_seconds = 5\n")
    assert read_settings(Settings, **URLS).api_keep_alive_seconds == 5


def test_a_secret_of_the_file_is_never_quoted(write):
    assert "hunter2" not in refusal(write('[node]\nsecret_key = "hunter2"\n'))


def test_a_file_that_everybody_may_write_is_refused(write):
    path = write("")
    path.chmod(0o602)
    assert refusal(path) == f": everybody may write it: chmod o-w {path}"


@pytest.mark.parametrize(("mode", "told"), [(0o600, 0), (0o640, 1), (0o604, 1)])
def test_secrets_that_others_may_read_are_told(write, mode, told):
    path = write('[server]\napi_key = "a-key-of-many-letters"\n')
    path.chmod(mode)
    warning = f"{path}: holds secrets and can be read by other users: chmod 600 {path}"
    assert list(read_config_file(os.environ).warnings) == [warning] * told


def test_a_file_without_secrets_may_be_read_by_all(write):
    write("[worker]\nslots = 3\n").chmod(0o644)
    assert read_config_file(os.environ).warnings == ()


@pytest.mark.parametrize("variable", ["SANDMILL_CONFIG", "SANDBOX_CONFIG_PATH"])
def test_a_file_that_is_named_must_be_there(tmp_path, variable):
    with pytest.raises(SettingError, match=rf"^{variable}: there is no file {tmp_path}/none$"):
        find_config_file({variable: f"{tmp_path}/none"})


def test_a_folder_is_no_file(write, tmp_path, monkeypatch):
    monkeypatch.setenv("SANDMILL_CONFIG", str(tmp_path))
    assert refusal(tmp_path) == ": cannot be read: Is a directory"


def test_the_first_file_there_is_is_read(tmp_path, monkeypatch):
    for folder in ("work", "home", "user"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    files = [
        tmp_path / "ours",
        tmp_path / "theirs",
        tmp_path / "work" / "sandmill.toml",
        tmp_path / "home" / "sandmill.toml",
        tmp_path / "user" / ".sandbox.toml",
    ]
    variables = {"SANDMILL_CONFIG": str(files[0]), "SANDBOX_CONFIG_PATH": str(files[1])}
    for file in files:
        file.touch()
    environment = {"SANDMILL_HOME": str(tmp_path / "home"), **variables}
    for file in files:
        assert find_config_file(environment) == file
        file.unlink()
        environment = {name: value for name, value in environment.items() if value != str(file)}
    assert find_config_file(environment) is None


def test_an_empty_variable_names_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_config_file({"SANDMILL_CONFIG": "", "SANDBOX_CONFIG_PATH": ""}) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file away, which needs root")
def test_a_file_of_somebody_else_is_read_only_if_it_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "sandmill.toml"
    path.touch()
    os.chown(path, 12345, 12345)
    with pytest.raises(SettingError, match=rf"^{path}: belongs to another user: name it by --config"):
        find_config_file({})
    assert find_config_file({"SANDMILL_CONFIG": str(path)}) == path


def test_the_null_device_is_a_file_without_settings(monkeypatch):
    monkeypatch.setenv("SANDMILL_CONFIG", os.devnull)
    assert read_config_file(os.environ).values == {}


def test_a_setting_is_named_by_where_it_comes_from(write, monkeypatch):
    path = write("[node]\nsecret_key = 'x'\n")
    assert told_name(Settings, "secret_key") == f"{path}, line 2: [node] secret_key"
    monkeypatch.setenv("SANDMILL_SECRET_KEY", "y")
    assert told_name(Settings, "secret_key") == "SANDMILL_SECRET_KEY"
