"""The keys of OpenSandbox's configuration file, and what each becomes here.

What means the same is read; what has no counterpart is named in a warning; what would leave somebody less protected
than the file says stops the start.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from core.config import LONGEST_POOL_WAIT_SECONDS

__all__ = [
    "KEPT_CAPABILITIES",
    "ORIGINAL_KEYS",
    "REFUSED_VARIABLES",
    "USELESS_VARIABLES",
    "Chosen",
    "Derived",
    "Ignored",
    "Mapped",
    "Refused",
    "Rule",
]


@dataclass(frozen=True, slots=True)
class Mapped:
    """Read as a field of the settings. convert: gives the field's value, or the value itself if it is of no use."""

    field: str
    convert: Callable[[Any], Any] = lambda value: value


@dataclass(frozen=True, slots=True)
class Ignored:
    """Without effect, which one warning tells. harmless: values that say what holds anyway, and are not told."""

    why: str
    harmless: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """Stops the start: leaving it out would weaken what protects somebody. harmless: values that ask for nothing."""

    why: str
    harmless: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Derived:
    """Several fields that follow from one key; what the file says about them in so many words wins."""

    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Chosen:
    """Depends on other keys. choose: gets the value and all keys of the file. told: for the docs."""

    choose: Callable[[Any, Mapping[str, Any]], "Mapped | Ignored | Refused | Derived"]
    told: str


Rule = Mapped | Ignored | Refused | Chosen

_NOTHING = Derived({})
_OCI_RUNTIMES = {"gvisor": "runsc", "kata": "kata-runtime"}
"""Names under which their packages enter themselves in the engine's list."""

KEPT_CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID")
"""Of the `docker` runtime's writable sandboxes, which core does not know; a test compares the two."""

_CAPABILITIES = f"all capabilities are dropped, in writable sandboxes all but {', '.join(KEPT_CAPABILITIES)}"
_KUBERNETES = "there is no Kubernetes runtime; sandboxes run on the nodes of this installation"
_STORE = "everything is kept in Postgres, in a database of its own: set [node] database_url"
_EGRESS = "sandboxes have no way out of their network, so there is none to filter"
_RENEW = "use renews each sandbox that asks for it by access.renew.extend.seconds, at most once a minute"
_LOG_FILES = "programs write to stderr, and `up` keeps that in the folder logs of [node] home, bounded"
_PORTS = "no port of a container is published: they are reached by the ingress, see [ingress]"
_SERVER_LOOP = "the server has one event loop and one parser"
_TENANTS = (
    "tenants and their keys are kept in the database: remove [tenants] and make each key with "
    "`sandmill-server key create NAME --tenant TENANT`"
)
_SIGNED = "endpoints are not signed: remove it, and make sandboxes whose ports need a token with secureAccess"


def _to_url(value: Any) -> Any:
    return f"http://{value}" if isinstance(value, str) and "://" not in value else value


def _to_pool_wait(value: Any) -> Any:
    """Longer waits end with the request's own deadline here, and with another answer."""
    return min(value, LONGEST_POOL_WAIT_SECONDS) if isinstance(value, int | float) else value


def _choose_runtime(value: Any, _file: Mapping[str, Any]) -> Refused | Derived:
    if value == "kubernetes":
        return Refused("there is no Kubernetes runtime yet: set it to docker or local")
    return Derived({"runtime": value, "runtimes": [value]})


def _choose_gateway(value: Any, file: Mapping[str, Any]) -> Mapped | Derived:
    return Mapped("ingress_address") if file.get("ingress.mode") == "gateway" and value else _NOTHING


def _choose_route(value: Any, file: Mapping[str, Any]) -> Refused | Derived:
    if file.get("ingress.mode") != "gateway" or value == "uri":
        return _NOTHING
    return Refused('the ingress knows endpoints of the form address/sandbox/port alone: set it to "uri"')


def _choose_secure_runtime(value: Any, file: Mapping[str, Any]) -> Mapped | Refused | Derived:
    if value == "":
        return _NOTHING
    if file.get("runtime.type") not in {"docker", None}:
        return Refused('it holds for the docker runtime alone: set [runtime] type = "docker", or remove it')
    name = file.get("secure_runtime.docker_runtime") or _OCI_RUNTIMES.get(str(value))
    if name is None:
        return Refused(
            "it must be gvisor or kata, or name the engine's runtime in [secure_runtime] docker_runtime"
        )
    return Mapped("docker_oci_runtime", lambda _value: name)


def _choose_docker_runtime(_value: Any, file: Mapping[str, Any]) -> Ignored | Derived:
    if file.get("secure_runtime.type"):
        return _NOTHING
    return Ignored("[secure_runtime] type says none: set [docker] oci_runtime", harmless=("",))


def _choose_seccomp(value: Any, _file: Mapping[str, Any]) -> Ignored | Refused:
    if value == "unconfined":
        return Ignored("Sandmill's own list of system calls always holds")
    return Refused(
        "Sandmill's own list of system calls holds and yours might be stricter: remove it", harmless=("",)
    )


def _choose_capabilities(value: Any, _file: Mapping[str, Any]) -> Ignored | Refused:
    names = [str(name).upper().removeprefix("CAP_") for name in value] if isinstance(value, list) else []
    if {"ALL", *KEPT_CAPABILITIES} & set(names):
        return Refused(
            f"writable sandboxes keep {', '.join(KEPT_CAPABILITIES)} and no more: leave those out of it"
        )
    return Ignored(_CAPABILITIES)


def _only_when(switch: str, why: str) -> Chosen:
    """Ignore a key, and say so only when what it belongs to is on."""

    def choose(_value: Any, file: Mapping[str, Any]) -> Ignored | Derived:
        return Ignored(why) if file.get(switch) else _NOTHING

    return Chosen(choose, f"no effect, told if {_said(switch)} is true: {why}")


def _said(key: str) -> str:
    section, _, name = key.rpartition(".")
    return f"[{section}] {name}"


def _all(section: str, keys: str, rule: Rule) -> dict[str, Rule]:
    return {f"{section}.{key}": rule for key in keys.split()}


_OTEL = "set OTEL_EXPORTER_OTLP_ENDPOINT and the other variables of OpenTelemetry; metrics are at /metrics"

ORIGINAL_KEYS: Mapping[str, Rule] = {
    "server.eip": Mapped("public_url", _to_url),
    "server.timeout_keep_alive": Mapped("api_keep_alive_seconds"),
    "server.timeout_graceful_shutdown": Mapped("api_graceful_shutdown_seconds"),
    "server.max_sandbox_timeout_seconds": Mapped("max_sandbox_timeout_seconds"),
    "server.thread_pool_size": Ignored("threads follow [server] pool_size"),
    "server.loop": Ignored(_SERVER_LOOP, harmless=("auto", "asyncio")),
    "server.http": Ignored(_SERVER_LOOP, harmless=("auto", "h11")),
    "proxy.resolve_internal": Ignored("the proxy of the API goes by the ingress of the sandbox's node"),
    **_all("log", "file_path access_file_path", Ignored(_LOG_FILES, harmless=("",))),
    "log.file_enabled": Ignored(_LOG_FILES, harmless=(False,)),
    **_all("log", "file_max_bytes file_backup_count", _only_when("log.file_enabled", _LOG_FILES)),
    "runtime.type": Chosen(
        _choose_runtime,
        '[server] runtime, and [worker] runtimes with that one alone; "kubernetes" stops the start',
    ),
    "runtime.execd_image": Ignored("every sandbox has the execd of this release, in any image"),
    "runtime.execd_run_as_init": Ignored("execd is always the first process", harmless=(False, True)),
    "docker.network_mode": Ignored(
        "containers have a network of their own with loopback alone: their ports are reached by the ingress"
    ),
    "docker.api_timeout": Ignored("every call to the engine has a deadline of its own"),
    "docker.host_ip": Mapped("ingress_address"),
    "docker.pids_limit": Mapped("sandbox_max_pids"),
    "docker.publish_host": Mapped("ingress_host"),
    **_all("docker", "port_range_min port_range_max", Ignored(_PORTS)),
    "docker.drop_capabilities": Chosen(
        _choose_capabilities, f"no effect: {_CAPABILITIES}; one that is kept stops the start"
    ),
    "docker.no_new_privileges": Ignored("no process in a sandbox ever gains privileges", harmless=(True,)),
    "docker.apparmor_profile": Refused(
        "containers have the engine's own profile: remove it", harmless=("", "docker-default")
    ),
    "docker.seccomp_profile": Chosen(
        _choose_seccomp, 'stops the start, "unconfined" apart: Sandmill\'s own list of system calls holds'
    ),
    "docker.sandbox_binds": Ignored(
        "sandboxes ask for their volumes: allow the folders in [docker] allowed_host_paths", harmless=([],)
    ),
    "storage.allowed_host_paths": Mapped("docker_allowed_host_paths"),
    "storage.volume_default_size": Ignored(_KUBERNETES),
    "storage.ossfs_mount_root": Ignored("volumes of the kind ossfs are refused when a sandbox is made"),
    "secure_runtime.type": Chosen(
        _choose_secure_runtime,
        "[docker] oci_runtime: the name given by docker_runtime, else runsc or kata-runtime",
    ),
    "secure_runtime.docker_runtime": Chosen(
        _choose_docker_runtime, "[docker] oci_runtime, if a type is given"
    ),
    "secure_runtime.k8s_runtime_class": Ignored(_KUBERNETES, harmless=("",)),
    "ingress.mode": Refused("it must be direct or gateway", harmless=("direct", "gateway")),
    "ingress.gateway.address": Chosen(_choose_gateway, "[ingress] address, if mode is gateway"),
    "ingress.gateway.route.mode": Chosen(
        _choose_route, 'what holds, if it is "uri"; others stop the start, if mode is gateway'
    ),
    **_all("ingress.secure_access", "active_key keys", Refused(_SIGNED, harmless=("", []))),
    **_all("store", "type path", Ignored(_STORE)),
    **_all(
        "store.postgresql",
        "dsn min_pool_size max_pool_size connect_timeout_seconds pool_timeout_seconds"
        " snapshot_recovery_interval_seconds",
        Ignored(_STORE),
    ),
    **_all(
        "egress",
        "image mode disable_ipv6 otlp_endpoint readiness_timeout_seconds requests limits",
        Ignored(_EGRESS),
    ),
    **_all("egress.upstream_proxy", "url authorization ca_cert_path ca_secret_name", Ignored(_EGRESS)),
    "renew_intent.enabled": Ignored(_RENEW, harmless=(True, False)),
    "renew_intent.min_interval_seconds": Ignored(_RENEW, harmless=(60,)),
    **_all(
        "renew_intent.redis",
        "enabled dsn queue_key consumer_concurrency",
        _only_when("renew_intent.enabled", _RENEW),
    ),
    **_all(
        "tenants",
        "provider endpoint max_stale_seconds timeout_seconds auth_header auth_token",
        Refused(_TENANTS),
    ),
    "otel.enabled": Ignored(_OTEL, harmless=(False,)),
    **_all("otel", "endpoint service_name export_interval_millis", _only_when("otel.enabled", _OTEL)),
    "kubernetes.pool_acquisition_timeout_seconds": Mapped("pool_wait_seconds", _to_pool_wait),
    **_all(
        "kubernetes",
        "kubeconfig_path insecure_skip_tls_verify namespace workload_provider batchsandbox_template_file"
        " sandbox_create_timeout_seconds sandbox_create_poll_interval_seconds image_pull_policy"
        " execd_init_resources informer_resync_seconds informer_watch_timeout_seconds read_qps"
        " read_burst write_qps write_burst fastpath_endpoint fastpath_timeout_seconds fastpath_wait_ready_seconds"
        " fastpath_resource_pool template_s3_publish_secret",
        Ignored(_KUBERNETES),
    ),
    **_all("agent_sandbox", "template_file shutdown_policy ingress_enabled", Ignored(_KUBERNETES)),
}
"""`section.key`, deeper tables by more dots. Keys with the same place here and there are ours, see `config_sections`:
[server] host, port, api_key, limit_concurrency, backlog; [log] level; [docker] sandbox_env.
"""

REFUSED_VARIABLES: Mapping[str, str] = {
    "SANDBOX_TENANTS_CONFIG_PATH": _TENANTS.replace("remove [tenants]", "unset it"),
    "OPENSANDBOX_SECURE_ACCESS_KEYS": _SIGNED.replace("remove", "unset"),
    "OPENSANDBOX_SECURE_ACCESS_ACTIVE_KEY": _SIGNED.replace("remove", "unset"),
}
"""Variables that stop the start -> why."""

USELESS_VARIABLES: Mapping[str, str] = {"OPENSANDBOX_STORE_POSTGRESQL_DSN": f"{_STORE}, or DATABASE_URL"}
"""Variables of which one warning tells that they have no effect -> why."""
