import pytest
from docker.errors import APIError

from core.errors import (
    BadImageError,
    DaemonError,
    ImageNotFoundError,
    NodeDiskFullError,
    RegistryAuthError,
    RegistryRateLimitedError,
    RegistryTlsError,
    RegistryUnreachableError,
    RuntimeUnavailableError,
    SpecInvalidError,
)
from runtimes.base import VolumeMount
from runtimes.engine_errors import daemon_error, pull_error, start_error
from tests.support.sandboxes import make_spec


@pytest.mark.parametrize(
    ("said", "failure"),
    [
        ("Get http://r:5000/v2/: unauthorized: authentication required", RegistryAuthError),
        ("Head r/v2/app: no basic auth credentials", RegistryAuthError),
        (
            "pull access denied for app, repository does not exist or may require 'docker login'",
            RegistryAuthError,
        ),
        ("error parsing HTTP 403 response body: 403 Forbidden", RegistryAuthError),
        ("manifest for app:1 not found: manifest unknown", ImageNotFoundError),
        ("toomanyrequests: You have reached your pull rate limit", RegistryRateLimitedError),
        ("write /var/lib/docker/tmp/x: no space left on device", NodeDiskFullError),
        ("x509: certificate signed by unknown authority", RegistryTlsError),
        ("http: server gave HTTP response to HTTPS client", RegistryTlsError),
        ("dial tcp 10.0.0.1:443: connect: connection refused", RegistryUnreachableError),
        ("dial tcp: lookup registry.invalid: no such host", RegistryUnreachableError),
    ],
)
def test_words_of_a_registry_are_told_apart(said, failure):
    error = pull_error("app:1", said)
    assert type(error) is failure
    assert "app:1" in error.message


@pytest.mark.parametrize(
    ("said", "failure", "field"),
    [
        ('could not select device driver "" with capabilities: [[gpu]]', SpecInvalidError, "resources.gpu"),
        (
            "OCI runtime create failed: unable to retrieve OCI runtime error (open log: no such file or directory)",
            RuntimeUnavailableError,
            None,
        ),
        ('exec: "/.sbx/lib/ld.so": no such file or directory', BadImageError, None),
        ("exec format error", BadImageError, None),
        ("mkdir /x: no space left on device", NodeDiskFullError, None),
        ("error while mounting volume", SpecInvalidError, "volumes"),
        ("something else", DaemonError, None),
    ],
)
def test_refused_start_is_blamed_on_what_the_engine_says(said, failure, field):
    spec = make_spec(volumes=[VolumeMount("v", "/data", host_path="/srv")])
    error = start_error("sm-1", spec, APIError("500", explanation=said))
    assert type(error) is failure
    assert error.field == field


def test_full_disk_of_the_engine_has_a_code_of_its_own():
    error = daemon_error(
        "container sm-1 could not be made", APIError("500", explanation="no space left on device")
    )
    assert error.code == "node_disk_full"
    assert error.retryable
