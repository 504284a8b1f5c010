import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core.config import Settings
from core.config_file import FileSettings, read_config_file
from core.config_sections import FIELDS
from core.environment import read_settings
from core.errors import SettingError
from core.original_config import KEPT_CAPABILITIES, ORIGINAL_KEYS, Chosen, Ignored, Mapped, Refused
from runtimes.container_spec import ContainerRules

Read = Callable[[str], FileSettings]

MEANS_THE_SAME = [
    ('[server]\nhost = "0.0.0.0"', {"api_host": "0.0.0.0"}),
    ("[server]\nport = 8090", {"api_port": 8090}),
    ('[server]\napi_key = "k"', {"server_api_key": "k"}),
    ("[server]\nlimit_concurrency = 1024", {"api_limit_concurrency": 1024}),
    ("[server]\nbacklog = 100", {"api_backlog": 100}),
    ("[server]\ntimeout_keep_alive = 30", {"api_keep_alive_seconds": 30}),
    ("[server]\ntimeout_graceful_shutdown = 5", {"api_graceful_shutdown_seconds": 5}),
    ("[server]\nmax_sandbox_timeout_seconds = 3600", {"max_sandbox_timeout_seconds": 3600}),
    ('[server]\neip = "mill.example.org:8080"', {"public_url": "http://mill.example.org:8080"}),
    ('[server]\neip = "https://mill.example.org"', {"public_url": "https://mill.example.org"}),
    ('[log]\nlevel = "DEBUG"', {"log_level": "DEBUG"}),
    ('[runtime]\ntype = "docker"', {"runtime": "docker", "runtimes": ["docker"]}),
    (
        '[runtime]\ntype = "docker"\n[worker]\nruntimes = ["docker", "local"]',
        {"runtime": "docker", "runtimes": ["docker", "local"]},
    ),
    ("[docker]\npids_limit = 512", {"sandbox_max_pids": 512}),
    ('[docker.sandbox_env]\nLANG = "C"', {"docker_sandbox_env": {"LANG": "C"}}),
    ('[docker]\nhost_ip = "10.0.0.7"', {"ingress_address": "10.0.0.7"}),
    ('[docker]\npublish_host = "0.0.0.0"', {"ingress_host": "0.0.0.0"}),
    ("[kubernetes]\npool_acquisition_timeout_seconds = 5", {"pool_wait_seconds": 5}),
    ("[kubernetes]\npool_acquisition_timeout_seconds = 30", {"pool_wait_seconds": 20.0}),
    ('[storage]\nallowed_host_paths = ["/srv"]', {"docker_allowed_host_paths": ["/srv"]}),
    ('[secure_runtime]\ntype = "gvisor"', {"docker_oci_runtime": "runsc"}),
    ('[secure_runtime]\ntype = "kata"', {"docker_oci_runtime": "kata-runtime"}),
    ('[secure_runtime]\ntype = "firecracker"\ndocker_runtime = "kata-fc"', {"docker_oci_runtime": "kata-fc"}),
    (
        '[runtime]\ntype = "docker"\n[secure_runtime]\ntype = "gvisor"\ndocker_runtime = "runsc-kvm"',
        {"runtime": "docker", "runtimes": ["docker"], "docker_oci_runtime": "runsc-kvm"},
    ),
    (
        '[ingress]\nmode = "gateway"\ngateway = {address = "gw.example.org:80", route = {mode = "uri"}}',
        {"ingress_address": "gw.example.org:80"},
    ),
]

ASKS_FOR_NOTHING = [
    '[server]\nloop = "auto"\nhttp = "auto"',
    '[server]\nloop = "asyncio"\nhttp = "h11"',
    '[log]\nfile_enabled = false\nfile_path = ""\naccess_file_path = ""\nfile_max_bytes = 1\nfile_backup_count = 5',
    "[runtime]\nexecd_run_as_init = false",
    '[docker]\nno_new_privileges = true\napparmor_profile = ""\nseccomp_profile = ""\nsandbox_binds = []',
    '[docker]\napparmor_profile = "docker-default"',
    '[secure_runtime]\ntype = ""\ndocker_runtime = ""\nk8s_runtime_class = ""',
    '[ingress]\nmode = "direct"\ngateway = {address = "*.example.org", route = {mode = "wildcard"}}',
    '[ingress.secure_access]\nactive_key = ""\nkeys = []',
    "[renew_intent]\nenabled = true\nmin_interval_seconds = 60",
    '[renew_intent]\nenabled = false\nmin_interval_seconds = 60\nredis = {enabled = true, dsn = "redis://x"}',
    '[otel]\nenabled = false\nendpoint = "http://x"',
]

WITHOUT_EFFECT = [
    ("[server]\nthread_pool_size = 200", "[server] thread_pool_size is", "threads follow"),
    ('[server]\nloop = "uvloop"\nhttp = "httptools"', "[server] loop, http are", "one event loop"),
    ("[proxy]\nresolve_internal = true", "[proxy] resolve_internal is", "ingress"),
    (
        '[log]\nfile_enabled = true\nfile_path = "/l"\nfile_max_bytes = 9',
        "[log] file_enabled, file_path, file_max_bytes are",
        "stderr",
    ),
    (
        '[runtime]\nexecd_image = "opensandbox/execd:v1.1.0"',
        "[runtime] execd_image is",
        "the execd of this release",
    ),
    ('[docker]\nnetwork_mode = "bridge"', "[docker] network_mode is", "loopback alone"),
    ("[docker]\napi_timeout = 5", "[docker] api_timeout is", "deadline of its own"),
    (
        "[docker]\nport_range_min = 1\nport_range_max = 2",
        "[docker] port_range_min, port_range_max are",
        "see [ingress]",
    ),
    (
        '[docker]\ndrop_capabilities = ["MKNOD"]',
        "[docker] drop_capabilities is",
        "all but CHOWN, DAC_OVERRIDE",
    ),
    ("[docker]\nno_new_privileges = false", "[docker] no_new_privileges is", "ever gains privileges"),
    ('[docker]\nseccomp_profile = "unconfined"', "[docker] seccomp_profile is", "always holds"),
    ('[docker]\nsandbox_binds = ["/a:/b"]', "[docker] sandbox_binds is", "[docker] allowed_host_paths"),
    ('[storage]\nvolume_default_size = "1Gi"', "[storage] volume_default_size is", "no Kubernetes runtime"),
    (
        '[storage]\nossfs_mount_root = "/mnt"',
        "[storage] ossfs_mount_root is",
        "refused when a sandbox is made",
    ),
    (
        '[secure_runtime]\ndocker_runtime = "runsc"',
        "[secure_runtime] docker_runtime is",
        "[docker] oci_runtime",
    ),
    (
        '[secure_runtime]\nk8s_runtime_class = "x"',
        "[secure_runtime] k8s_runtime_class is",
        "no Kubernetes runtime",
    ),
    (
        '[store]\ntype = "postgresql"\npostgresql = {dsn = "postgresql://x"}',
        "[store] type; [store.postgresql] dsn are",
        "[node] database_url",
    ),
    (
        '[egress]\nimage = "x"\nmode = "dns"\nupstream_proxy = {url = "http://x"}',
        "[egress] image, mode; [egress.upstream_proxy] url are",
        "no way out",
    ),
    (
        "[renew_intent]\nenabled = true\nmin_interval_seconds = 5",
        "[renew_intent] min_interval_seconds is",
        "once a minute",
    ),
    (
        '[otel]\nenabled = true\nendpoint = "http://x"',
        "[otel] enabled, endpoint are",
        "OTEL_EXPORTER_OTLP_ENDPOINT",
    ),
    (
        '[kubernetes]\nnamespace = "x"\nexecd_init_resources = {limits = {cpu = "1"}}',
        "[kubernetes] namespace, execd_init_resources are",
        "no Kubernetes runtime",
    ),
    (
        '[agent_sandbox]\nshutdown_policy = "Delete"',
        "[agent_sandbox] shutdown_policy is",
        "no Kubernetes runtime",
    ),
]

REFUSED = [
    ('[tenants]\nprovider = "file"', "[tenants] provider", "sandmill-server key create NAME --tenant TENANT"),
    ('[tenants]\nendpoint = "http://x"', "[tenants] endpoint", "remove [tenants]"),
    ('[ingress.secure_access]\nactive_key = "a"', "[ingress.secure_access] active_key", "secureAccess"),
    (
        '[[ingress.secure_access.keys]]\nkey_id = "a"\nkey = "eA=="',
        "[ingress.secure_access] keys",
        "not signed",
    ),
    ('[runtime]\ntype = "kubernetes"', "[runtime] type", "set it to docker or local"),
    (
        '[docker]\ndrop_capabilities = ["MKNOD", "cap_setuid"]',
        "[docker] drop_capabilities",
        "leave those out",
    ),
    ('[docker]\ndrop_capabilities = ["ALL"]', "[docker] drop_capabilities", "writable sandboxes keep CHOWN"),
    ('[docker]\napparmor_profile = "mine"', "[docker] apparmor_profile", "remove it"),
    (
        '[docker]\nseccomp_profile = "/etc/mine.json"',
        "[docker] seccomp_profile",
        "might be stricter: remove it",
    ),
    ('[secure_runtime]\ntype = "firecracker"', "[secure_runtime] type", "docker_runtime"),
    ('[secure_runtime]\ntype = "gvisr"', "[secure_runtime] type", "must be gvisor or kata"),
    (
        '[runtime]\ntype = "local"\n[secure_runtime]\ntype = "gvisor"',
        "[secure_runtime] type",
        'type = "docker"',
    ),
    ('[ingress]\nmode = "other"', "[ingress] mode", "must be direct or gateway"),
    (
        '[ingress]\nmode = "gateway"\ngateway = {address = "a", route = {mode = "header"}}',
        "[ingress.gateway.route] mode",
        'set it to "uri"',
    ),
]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Read:
    path = tmp_path / ".sandbox.toml"

    def read_text(text: str) -> FileSettings:
        path.write_text(text, encoding="utf-8")
        path.chmod(0o600)
        monkeypatch.setenv("SANDMILL_CONFIG", str(path))
        return read_config_file(os.environ)

    return read_text


@pytest.mark.parametrize(("text", "values"), MEANS_THE_SAME)
def test_what_means_the_same_is_read(read, text, values):
    found = read(text)
    assert (found.values, found.warnings) == (values, ())
    settings = read_settings(Settings, database_url="postgresql://h/d", redis_url="redis://h")
    for name, value in values.items():
        assert plain(getattr(settings, name)) == (value.lower() if name == "log_level" else value)


def plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return value.get_secret_value() if hasattr(value, "get_secret_value") else value


@pytest.mark.parametrize("text", ASKS_FOR_NOTHING)
def test_what_says_what_holds_anyway_is_not_told(read, text):
    found = read(text)
    assert (found.values, found.warnings) == ({}, ())


@pytest.mark.parametrize(("text", "keys", "instead"), WITHOUT_EFFECT)
def test_what_has_no_counterpart_is_told_in_one_line_with_what_takes_its_place(read, text, keys, instead):
    found = read(text)
    assert found.values == {}
    (line,) = found.warnings
    assert line.startswith(f"{found.path}: {keys} without effect: ")
    assert instead in line


@pytest.mark.parametrize(("text", "key", "cure"), REFUSED)
def test_what_would_protect_somebody_less_stops_the_start(read, text, key, cure):
    with pytest.raises(SettingError) as caught:
        read(text)
    assert f": {key}: " in caught.value.message
    assert ", line " in caught.value.message
    assert cure in caught.value.message


def test_every_key_of_the_table_is_tried():
    """The cases above name each key there is, the sections of a kind that have one rule by one of their keys."""
    cases = [
        case if isinstance(case, str) else case[0]
        for case in (*MEANS_THE_SAME, *ASKS_FOR_NOTHING, *WITHOUT_EFFECT, *REFUSED)
    ]
    text = "\n".join(cases)
    tried = {id(rule) for key, rule in ORIGINAL_KEYS.items() if key.rpartition(".")[2] in text}
    assert [key for key, rule in ORIGINAL_KEYS.items() if id(rule) not in tried] == []


def test_what_sandboxes_keep_is_what_the_runtime_says():
    assert ContainerRules(seccomp="{}").root_capabilities == KEPT_CAPABILITIES


def test_no_key_of_the_table_is_one_of_ours_and_each_goes_to_one_of_ours():
    for key, rule in ORIGINAL_KEYS.items():
        assert tuple(key.split(".", 1)) not in FIELDS
        assert isinstance(rule, Mapped | Ignored | Refused | Chosen)
        if isinstance(rule, Mapped):
            assert rule.field in Settings.model_fields


@pytest.mark.parametrize(
    ("variable", "cure"),
    [
        ("SANDBOX_TENANTS_CONFIG_PATH", "unset it and make each key with `sandmill-server key create"),
        ("OPENSANDBOX_SECURE_ACCESS_KEYS", "endpoints are not signed: unset it"),
        ("OPENSANDBOX_SECURE_ACCESS_ACTIVE_KEY", "endpoints are not signed: unset it"),
    ],
)
def test_variables_that_would_protect_somebody_less_stop_the_start(monkeypatch, variable, cure):
    monkeypatch.setenv(variable, "x")
    with pytest.raises(SettingError, match=rf"^{variable}: .*{cure}"):
        read_config_file(os.environ)


def test_the_variable_of_their_store_is_told_as_without_effect(monkeypatch):
    monkeypatch.setenv("OPENSANDBOX_STORE_POSTGRESQL_DSN", "postgresql://x")
    (line,) = read_config_file(os.environ).warnings
    assert line.startswith("OPENSANDBOX_STORE_POSTGRESQL_DSN has no effect: everything is kept in Postgres")


def test_their_variables_for_keys_are_read(monkeypatch):
    monkeypatch.setenv("OPENSANDBOX_SERVER_API_KEY", "their-key")
    monkeypatch.setenv("OPENSANDBOX_INSECURE_SERVER", "YES")
    found = read_settings(Settings, database_url="postgresql://h/d", redis_url="redis://h")
    assert found.server_api_key is not None
    assert (found.server_api_key.get_secret_value(), found.insecure_server) == ("their-key", True)
