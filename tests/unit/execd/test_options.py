import logging
import resource

import pytest

from execd.options import Options, OptionsError, parse_options


def test_defaults_are_those_of_the_protocol() -> None:
    options = parse_options([], {})
    assert options == Options(
        host="0.0.0.0", port=44772, listen_fd=None, access_token=None, grace_seconds=1.0
    )


def test_flags_take_both_forms_and_override_the_environment() -> None:
    environment = {"EXECD_ACCESS_TOKEN": "env", "EXECD_API_GRACE_SHUTDOWN": "250ms"}
    assert parse_options([], environment).access_token == "env"
    assert parse_options([], environment).grace_seconds == 0.25
    flags = [
        "--port=80",
        "--host",
        "127.0.0.1",
        "--listen-fd",
        "7",
        "--access-token=a=b",
        "--graceful-shutdown-timeout",
        "2s",
    ]
    options = parse_options(flags, environment)
    assert (options.port, options.host, options.listen_fd) == (80, "127.0.0.1", 7)
    assert (options.access_token, options.grace_seconds) == ("a=b", 2.0)


def test_limits_are_collected() -> None:
    options = parse_options(["--rlimit", "nofile=10", "--rlimit=nproc=unlimited", "--rlimit", "as=4096"], {})
    assert options.rlimits == {
        resource.RLIMIT_NOFILE: 10,
        resource.RLIMIT_NPROC: resource.RLIM_INFINITY,
        resource.RLIMIT_AS: 4096,
    }


def test_accounts_and_limits_of_the_sandbox_are_collected() -> None:
    flags = ["--account", "cpu_usage=7", "--account=memory_events=8", "--limit", "memory_bytes=4096"]
    options = parse_options(flags, {})
    assert options.accounts == {"cpu_usage": 7, "memory_events": 8}
    assert options.limits == {"memory_bytes": 4096}


def test_sealing_is_a_choice() -> None:
    assert not parse_options([], {}).is_sealed
    assert parse_options(["--sealed", "--port", "80"], {}).is_sealed


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("debug", logging.DEBUG),
        ("7", logging.DEBUG),
        ("6", logging.INFO),
        ("3", logging.ERROR),
        ("0", logging.CRITICAL + 1),
    ],
)
def test_log_levels_are_names_or_numbers(level: str, expected: int) -> None:
    assert parse_options(["--log-level", level], {}).log_level == expected


@pytest.mark.parametrize(
    "flags",
    [
        ["--nope"],
        ["--sealed=no"],
        ["stray"],
        ["--port", "-1"],
        ["--port", "65536"],
        ["--port", "٣"],
        ["--host", ""],
        ["--rlimit", "nofile"],
        ["--rlimit", "infinity=1"],
        ["--rlimit", "cpu=-1"],
        ["--account", "memory=3"],
        ["--account", "cpu_usage=/sys"],
        ["--limit", "cpu=3"],
        ["--limit", "memory_bytes=0"],
        ["--graceful-shutdown-timeout", "-1"],
        ["--graceful-shutdown-timeout", "nan"],
        ["--graceful-shutdown-timeout", "2h"],
        ["--log-level", "8"],
    ],
)
def test_wrong_flags_are_refused(flags: list[str]) -> None:
    with pytest.raises(OptionsError):
        parse_options(flags, {})


def test_every_variable_of_the_protocol_is_read() -> None:
    environment = {
        "EXECD_LOG_FILE": "/tmp/log",
        "EXECD_ALLOWED_ORIGINS": "https://a.example, https://b.example:8443,",
        "EXECD_JUPYTER_IDLE_POLL_INTERVAL": "250ms",
        "JUPYTER_HOST": "http://127.0.0.1:44771",
        "JUPYTER_TOKEN": "t",
    }
    options = parse_options([], environment)
    assert options.log_file == "/tmp/log"
    assert options.allowed_origins == {"https://a.example", "https://b.example:8443"}
    assert options.jupyter_idle_poll_seconds == 0.25
    assert (options.jupyter_host, options.jupyter_token) == ("http://127.0.0.1:44771", "t")
    flags = ["--jupyter-host=http://x", "--jupyter-token", "u", "--jupyter-idle-poll-interval", "1s"]
    options = parse_options(flags, environment)
    assert (options.jupyter_host, options.jupyter_token) == ("http://x", "u")
    assert options.jupyter_idle_poll_seconds == 1.0
    assert parse_options(["--jupyter-host="], environment).jupyter_host is None


@pytest.mark.parametrize("name", ["EXECD_API_GRACE_SHUTDOWN", "EXECD_JUPYTER_IDLE_POLL_INTERVAL"])
def test_a_variable_that_cannot_be_read_is_named(name: str) -> None:
    with pytest.raises(OptionsError, match=name):
        parse_options([], {name: "soon"})
    assert parse_options([], {name: ""}) == Options()
