import json
import os
import ssl
import stat
import subprocess
import sys
import threading
import time
from base64 import b64encode
from contextlib import contextmanager
from pathlib import Path

import pytest

from core.errors import (
    BadImageError,
    ImageNotFoundError,
    ImageStoreFullError,
    PlatformNotFoundError,
    RegistryAuthError,
    RegistryError,
    RegistryRateLimitedError,
    RegistryTlsError,
    RegistryUnreachableError,
    SpecInvalidError,
)
from runtimes.local.images import ImageLimits, ImageStore, PullProgress, connection
from tests.support.image_archives import Layout, file, tar
from tests.support.registry import serve_registry

SMALL = tar(file("small", b"small"))
HELM = json.dumps(
    {
        "config": {
            "digest": f"sha256:{'a' * 64}",
            "size": 1,
            "mediaType": "application/vnd.cncf.helm.config.v1+json",
        }
    }
).encode()
LARGE = tar(file("large", os.urandom(3_000_000)))


@pytest.fixture
def store(tmp_path):
    return make_store(tmp_path)


@pytest.fixture
def layout(tmp_path):
    layout = Layout(tmp_path / "layout")
    layout.index(layout.manifest(LARGE, SMALL, kind="zstd", config={"User": "app"}))
    return layout


@pytest.fixture
def registry(layout):
    with serve_registry(layout.path) as registry:
        yield registry


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    """Attempts follow each other at once: what they wait for is at hand."""
    monkeypatch.setattr(connection, "_PAUSE_SECONDS", 0.001)


def make_store(tmp_path, **more):
    return ImageStore(
        tmp_path / "store", as_root=False, limits=ImageLimits(reserve_bytes=1 << 20), **more, is_durable=False
    )


def name_at(registry, tail: str = "") -> str:
    return f"{registry.address}/team/app{tail}"


def count(registry, part: str) -> int:
    return sum(number for path, number in registry.seen.items() if part in path)


def once(fault):
    """A fault that happens at the first blob of some size only."""
    left = [1]

    def happen(handler) -> bool:
        if not left or "/blobs/" not in handler.path or blob_size(handler) < 100_000:
            return False
        left.clear()
        return fault(handler)

    return happen


def blob_size(handler) -> int:
    path = handler.registry.blob_path(handler.path.rpartition("/")[2])
    return path.stat().st_size if path.exists() else 0


def cut(handler) -> bool:
    """Send the first half and hang up."""
    data = handler.registry.blob_path(handler.path.rpartition("/")[2]).read_bytes()
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data[: len(data) // 2])
    handler.close_connection = True
    return True


def is_empty(store) -> bool:
    folders = ("images", "layers", "trees", "staging", "trash")
    return not any(list((store._folder / name).iterdir()) for name in folders)


def test_image_is_pulled_and_found_by_every_spelling_of_it(store, registry):
    seen: list[PullProgress] = []
    image = store.pull(name_at(registry), progress=seen.append)
    (tree,) = image.layers
    assert (tree / "small").read_bytes() == b"small"
    assert (tree / "large").stat().st_size == 3_000_000
    assert image.config.user == "app"
    assert store.find(name_at(registry, ":latest")) == image
    assert {progress.stage for progress in seen} == {"download", "unpack"}
    assert {(progress.layer, progress.layers) for progress in seen} == {(1, 2), (2, 2)}
    assert max(progress.done_bytes for progress in seen) > 2_900_000


def test_pull_by_digest_is_found_by_it(store, registry, layout):
    digest = layout.manifest(SMALL)["digest"]
    image = store.pull(name_at(registry, f"@{digest}"))
    assert store.find(name_at(registry, f"@{digest}")) == image
    assert store.find(digest) == image


def test_layers_that_are_here_are_not_fetched_again(store, registry):
    first = store.pull(name_at(registry))
    fetched = count(registry, "/blobs/")
    assert store.pull(name_at(registry)).layers == first.layers
    assert count(registry, "/blobs/") == fetched + 1, "the config alone"


def test_layers_that_came_before_a_failure_are_kept_for_the_next_attempt(store, registry, layout):
    broken = [lambda handler: "/blobs/" in handler.path and is_small_layer(handler) and handler.refuse(400)]
    registry.faults = broken
    with pytest.raises(RegistryError):
        store.pull(name_at(registry))
    registry.faults = []
    registry.seen.clear()
    store.pull(name_at(registry))
    assert count(registry, "/blobs/") == 2, "the config and the layer that was missing"


def is_small_layer(handler) -> bool:
    path = handler.registry.blob_path(handler.path.rpartition("/")[2])
    return path.read_bytes().startswith(b"\x28\xb5\x2f\xfd") and path.stat().st_size < 10_000


def test_pulls_of_one_image_at_once_fetch_each_layer_once(store, registry):
    threads = [threading.Thread(target=store.pull, args=(name_at(registry),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count(registry, "/blobs/") == 4 + 2, "four configs, two layers"


@pytest.mark.parametrize("is_there_before", [False, True])
def test_layers_of_a_pull_under_way_are_not_collected(store, registry, tmp_path, is_there_before):
    if is_there_before:
        (tmp_path / "large.tar").write_bytes(LARGE)
        store.import_archive(tmp_path / "large.tar", name="same")
    waits, goes_on = threading.Event(), threading.Event()

    def stall(handler) -> bool:
        if "/blobs/" in handler.path and is_small_layer(handler):
            waits.set()
            goes_on.wait(20)
        return False

    registry.faults = [stall]
    thread = threading.Thread(target=store.pull, args=(name_at(registry),))
    thread.start()
    assert waits.wait(20)
    if is_there_before:
        store.remove("same")
    store.collect()
    goes_on.set()
    thread.join()
    assert (store.find(name_at(registry)).layers[0] / "large").exists()


def test_transfer_that_breaks_off_goes_on_where_it_was(store, registry):
    registry.faults = [once(cut)]
    image = store.pull(name_at(registry))
    assert (image.layers[0] / "large").stat().st_size == 3_000_000
    assert len(registry.ranges) == 1
    assert registry.ranges[0] not in ("bytes=0-", "")


def test_registry_that_cannot_go_on_in_the_middle_begins_anew(store, registry):
    def whole(handler) -> bool:
        if not handler.headers.get("Range"):
            return False
        handler.answer(200, handler.registry.blob_path(handler.path.rpartition("/")[2]).read_bytes())
        return True

    registry.faults = [once(cut), whole]
    assert (store.pull(name_at(registry)).layers[0] / "large").stat().st_size == 3_000_000


def test_another_part_than_asked_for_is_refused(store, registry):
    def other(handler) -> bool:
        if not handler.headers.get("Range"):
            return False
        handler.answer(206, b"x" * 10, Content_Range="bytes 0-9/10")
        return True

    registry.faults = [once(cut), other]
    with pytest.raises(RegistryError, match="another part"):
        store.pull(name_at(registry))


def test_transfer_that_never_gets_further_is_given_up(store, registry):
    def hang_up(handler) -> bool:
        if "/blobs/" not in handler.path or blob_size(handler) < 100_000:
            return False
        handler.close_connection = True
        handler.connection.close()
        return True

    registry.faults = [hang_up]
    with pytest.raises(RegistryUnreachableError):
        store.pull(name_at(registry))
    assert max(registry.seen.values()) == 5


def test_transfer_that_stands_still_is_broken_off(store, registry, monkeypatch):
    monkeypatch.setattr(connection, "_READ_TIMEOUT_SECONDS", 0.2)
    released = threading.Event()

    def stall(handler) -> bool:
        if "/blobs/" not in handler.path:
            return False
        released.wait(20)
        handler.close_connection = True
        return True

    registry.faults = [stall]
    with pytest.raises(RegistryUnreachableError, match="it stands still"):
        store.pull(name_at(registry))
    released.set()


@pytest.mark.parametrize("part", ["/blobs/", "/manifests/"])
def test_pull_ends_at_its_deadline_whatever_trickles_in(store, registry, part):
    released = threading.Event()

    def trickle(handler) -> bool:
        if part not in handler.path or (part == "/blobs/" and blob_size(handler) < 100_000):
            return False
        handler.send_response(200)
        handler.send_header("Content-Length", "3000000")
        handler.end_headers()
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                handler.wfile.write(b"x")
            except OSError:
                break
            released.wait(0.01)
        return True

    registry.faults = [trickle]
    began = time.monotonic()
    with pytest.raises(RegistryUnreachableError, match="longer than it may"):
        store.pull(name_at(registry), timeout_seconds=0.5)
    released.set()
    assert time.monotonic() - began < 5
    assert is_empty(store)


@pytest.mark.parametrize(
    "spoil", [lambda data: b"x" + data[1:], lambda data: data[:-1], lambda data: data + b"x"]
)
def test_layer_that_is_not_what_it_should_be_is_refused(store, registry, spoil):
    def answer(handler) -> bool:
        if "/blobs/" not in handler.path or blob_size(handler) < 100_000:
            return False
        handler.answer(200, spoil(handler.registry.blob_path(handler.path.rpartition("/")[2]).read_bytes()))
        return True

    registry.faults = [answer]
    with pytest.raises(
        (BadImageError, RegistryUnreachableError), match=r"digest|larger than|too early|another part"
    ):
        store.pull(name_at(registry))
    assert is_empty(store)


def test_layer_that_never_ends_is_broken_off_at_its_size(store, registry):
    sent = [0]

    def pour(handler) -> bool:
        if "/blobs/" not in handler.path or blob_size(handler) < 100_000:
            return False
        handler.send_response(200)
        handler.send_header("Content-Length", str(1 << 40))
        handler.end_headers()
        while sent[0] < 64 << 20:
            try:
                handler.wfile.write(bytes(1 << 16))
            except OSError:
                break
            sent[0] += 1 << 16
        return True

    registry.faults = [pour]
    with pytest.raises(BadImageError, match=r"larger than the \d+ bytes announced"):
        store.pull(name_at(registry))
    assert sent[0] < 32 << 20
    assert is_empty(store)


def test_manifest_that_is_said_to_be_huge_is_not_fetched(store, registry, layout):
    platform = {"os": "linux", "architecture": "s390x"}
    layout.index({**layout.manifest(SMALL), "size": 1 << 40, "platform": platform})
    with pytest.raises(BadImageError, match="a manifest of 1099511627776 bytes is larger than"):
        store.pull(name_at(registry), platform="s390x")
    assert registry.seen.total() == 1


def test_manifest_that_is_not_of_the_digest_is_refused(store, registry, layout):
    digest = layout.manifest(SMALL)["digest"]
    registry.faults = [lambda handler: "/manifests/" in handler.path and (handler.answer(200, b"{}") or True)]
    with pytest.raises(BadImageError, match="gives sha256:"):
        store.pull(name_at(registry, f"@{digest}"))


def test_documents_that_never_end_are_refused(tmp_path, registry):
    store = ImageStore(
        tmp_path / "s",
        as_root=False,
        limits=ImageLimits(reserve_bytes=0, max_json_bytes=1000),
        is_durable=False,
    )
    registry.faults = [lambda handler: handler.answer(200, b" " * 2000) or True]
    with pytest.raises(BadImageError, match="larger than 1000"):
        store.pull(name_at(registry))


@pytest.mark.parametrize(
    ("status", "expected", "message_and_attempts"),
    [
        (404, ImageNotFoundError, (r"has no image .*/team/app:latest \(CODE: words\)", 1)),
        (403, RegistryAuthError, (r"auth failed for 127.0.0.1:\d+, without credentials \(CODE: words\)", 1)),
        (429, RegistryRateLimitedError, (r"asked too often \(CODE: words\): log in", 5)),
        (503, RegistryUnreachableError, (r"status 503 \(CODE: words\)", 5)),
        (400, RegistryError, (r"status 400 \(CODE: words\)", 1)),
        (302, RegistryError, (r"status 302", 1)),
    ],
)
def test_each_cause_has_its_own_error(registry, tmp_path, status, expected, message_and_attempts):
    store, (message, attempts) = make_store(tmp_path), message_and_attempts
    registry.faults = [lambda handler: handler.refuse(status, "CODE", "words")]
    with pytest.raises(expected, match=message) as caught:
        store.pull(name_at(registry))
    assert type(caught.value) is expected
    assert registry.seen.total() == attempts
    assert is_empty(store)


def test_registry_that_recovers_gives_the_image(store, registry):
    left = [503, 429, 502]
    registry.faults = [lambda handler: bool(left) and handler.refuse(left.pop(), Retry_After="0")]
    assert store.pull(name_at(registry)).size_bytes > 0


def test_long_wait_is_not_waited_for(store, registry):
    registry.faults = [lambda handler: handler.refuse(429, Retry_After="3600")]
    with pytest.raises(RegistryRateLimitedError) as caught:
        store.pull(name_at(registry))
    assert registry.seen.total() == 1
    assert caught.value.retry_after_seconds == 3600.0


def test_long_wait_until_a_date_is_told_as_well(store, registry):
    def refuse(handler):
        return handler.refuse(503, Retry_After="Fri, 01 Jan 2100 00:00:00 GMT")

    registry.faults = [refuse]
    with pytest.raises(RegistryUnreachableError) as caught:
        store.pull(name_at(registry))
    assert registry.seen.total() == 1
    assert caught.value.retry_after_seconds > 3600.0


def test_token_service_that_is_busy_is_left_alone_too(store, registry):
    registry.auth = "bearer"
    registry.faults = [
        lambda handler: handler.path.startswith("/token") and handler.refuse(429, Retry_After="3600")
    ]
    with pytest.raises(RegistryRateLimitedError) as caught:
        store.pull(name_at(registry))
    assert caught.value.retry_after_seconds == 3600.0
    assert registry.seen["GET /token"] == 1


def test_words_of_a_registry_are_made_safe_to_show(store, registry):
    registry.faults = [lambda handler: handler.refuse(404, "\x1b[31m", "two\nlines" + "x" * 10_000)]
    with pytest.raises(ImageNotFoundError) as caught:
        store.pull(name_at(registry))
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 500


def test_unknown_tag_and_unknown_repository_are_said_to_be(store, registry):
    for name in (name_at(registry, ":nope"), f"{registry.address}/other"):
        with pytest.raises(ImageNotFoundError, match="UNKNOWN"):
            store.pull(name)


def test_registry_that_is_not_there_is_said_to_be(store):
    with pytest.raises(RegistryUnreachableError, match=r"127.0.0.1:1 cannot be reached"):
        store.pull("127.0.0.1:1/a")


@pytest.mark.parametrize("auth", ["basic", "bearer"])
def test_given_credentials_are_used(store, registry, auth):
    registry.auth = auth
    assert store.pull(name_at(registry), username="me", password="secret").size_bytes > 0
    assert registry.tokens == (auth == "bearer")


@pytest.mark.parametrize("auth", ["basic", "bearer"])
def test_wrong_credentials_are_refused_at_once_and_never_shown(store, registry, auth):
    registry.auth = auth
    with pytest.raises(
        RegistryAuthError, match=rf"registry auth failed for {registry.address}, as 'me'"
    ) as caught:
        store.pull(name_at(registry), username="me", password="not-this")
    assert "not-this" not in caught.value.message
    assert registry.seen.total() == 2


def test_registry_that_wants_credentials_says_so(store, registry):
    registry.auth = "basic"
    with pytest.raises(RegistryAuthError, match="wants a user name and a password"):
        store.pull(name_at(registry))


def test_token_that_expires_is_renewed(store, registry):
    registry.auth = "bearer"

    def expire(handler) -> bool:
        handler.registry.tokens += handler.path.startswith("/v2/") and registry.seen.total() % 4 == 0
        return False

    registry.faults = [expire]
    assert store.pull(name_at(registry), username="me", password="secret").size_bytes > 0
    assert registry.seen["GET /token"] > 1


@pytest.mark.parametrize("entry", ["auth", "plain", "identity", "url"])
def test_saved_credentials_are_used(tmp_path, registry, entry):
    registry.auth = "bearer"
    encoded = b64encode(b"me:secret").decode()
    auths = {
        "auth": {registry.address: {"auth": encoded}},
        "plain": {registry.address: {"username": "me", "password": "secret"}},
        "identity": {registry.address: {"auth": b64encode(b"x:").decode(), "identitytoken": "refresh-me"}},
        "url": {f"https://{registry.address}/v1/": {"auth": encoded}, "other": {}},
    }[entry]
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"auths": auths}))
    assert make_store(tmp_path, docker_config=config).pull(name_at(registry)).size_bytes > 0


def test_credential_helper_is_asked(tmp_path, registry, monkeypatch):
    registry.auth = "basic"
    helper = tmp_path / "docker-credential-test"
    helper.write_text(
        f'#!/bin/sh\nread server\n[ "$1 $server" = "get {registry.address}" ] || exit 1\n'
        'echo \'{"Username": "me", "Secret": "secret"}\'\n'
    )
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"credsStore": "test"}))
    assert make_store(tmp_path, docker_config=config).pull(name_at(registry)).size_bytes > 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read"),
        ("[]", "not a JSON object"),
        ('{"auths": {"HOST": {"auth": "%%%"}}}', "not base64"),
        ('{"credsStore": "../../bin/sh"}', "no name of a credential helper"),
        ('{"credsStore": "missing"}', "does not run"),
    ],
)
def test_saved_credentials_that_cannot_be_read_are_said_to_be(tmp_path, registry, content, message):
    config = tmp_path / "config.json"
    config.write_text(content.replace("HOST", registry.address))
    with pytest.raises(RegistryAuthError, match=message):
        make_store(tmp_path, docker_config=config).pull(name_at(registry))


def test_password_without_a_user_is_refused(store):
    for given in ({"username": "x"}, {"password": "x"}, {"username": "a:b", "password": "x"}):
        with pytest.raises(SpecInvalidError, match="user name"):
            store.pull("127.0.0.1:1/a", **given)


def test_credentials_stay_with_the_registry_that_wants_them(store, registry, tmp_path):
    """Blobs are often served from elsewhere."""
    with serve_registry(registry.layout) as elsewhere:
        given: list[str] = []
        elsewhere.faults = [lambda handler: given.append(handler.headers.get("Authorization", "")) or False]
        registry.auth = "basic"
        target = f"http://{elsewhere.address}"

        def redirect(handler) -> bool:
            return "/blobs/" in handler.path and handler.refuse(307, Location=target + handler.path)

        registry.faults = [redirect]
        assert store.pull(name_at(registry), username="me", password="secret").size_bytes > 0
    assert set(given) == {""}


@pytest.mark.parametrize(
    "location",
    ["http://192.0.2.1/x", "ftp://127.0.0.1/", "file:///etc/passwd", "http://[bad", "//192.0.2.1:5000/x"],
)
def test_redirect_to_where_it_is_not_safe_is_not_followed(store, registry, location):
    registry.faults = [lambda handler: handler.refuse(307, Location=location)]
    with pytest.raises(RegistryError, match=r"not safe|no address"):
        store.pull(name_at(registry))


def test_redirects_in_circles_end(store, registry):
    registry.faults = [lambda handler: handler.refuse(307, Location=handler.path)]
    with pytest.raises(RegistryError, match="circles"):
        store.pull(name_at(registry))


def test_token_service_elsewhere_is_not_told_the_password(store, registry):
    header = 'Bearer realm="http://192.0.2.1/token"'
    registry.faults = [lambda handler: handler.refuse(401, WWW_Authenticate=header)]
    with pytest.raises(RegistryError, match=r"http://192\.0\.2\.1, which is not safe"):
        store.pull(name_at(registry), username="me", password="secret")


@pytest.mark.parametrize(
    "header", ["", "Negotiate", "Bearer", "Digest realm=x", "Bearer realm=" + "x" * 9000]
)
def test_challenge_that_cannot_be_answered_is_said_to_be(store, registry, header):
    registry.faults = [lambda handler: handler.refuse(401, WWW_Authenticate=header)]
    with pytest.raises(RegistryError):
        store.pull(name_at(registry), username="me", password="secret")


@contextmanager
def tls_registry(layout, tmp_path):
    """A registry with a certificate that nobody knows."""
    key, certificate = tmp_path / "key.pem", tmp_path / "ca.crt"
    argv = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    argv += [
        "-subj",
        "/CN=test",
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-keyout",
        key,
        "-out",
        certificate,
    ]
    subprocess.run(argv, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with serve_registry(layout.path, tls=context) as registry:
        yield registry


def test_unknown_certificate_is_refused_and_a_known_one_accepted(store, layout, tmp_path, monkeypatch):
    with tls_registry(layout, tmp_path) as registry:
        with pytest.raises(RegistryTlsError, match=r"certificate.*certs.d/127.0.0.1:\d+/ca.crt"):
            store.pull(name_at(registry))
        assert registry.seen.total() == 0
        folder = tmp_path / "certs.d" / registry.address
        folder.mkdir(parents=True)
        (tmp_path / "ca.crt").rename(folder / "ca.crt")
        monkeypatch.setattr(connection, "CERTIFICATES", tmp_path / "certs.d")
        assert store.pull(name_at(registry)).size_bytes > 0


def test_registry_elsewhere_is_never_spoken_to_without_tls(store, registry, monkeypatch):
    """`elsewhere.test` stands for another machine: only its address is this one's."""
    real = connection.httpx.URL
    monkeypatch.setattr(connection, "_HOSTS", {"elsewhere.test": registry.address})
    monkeypatch.setattr(connection, "_is_loopback", lambda host: False)
    assert real(f"https://{registry.address}").host == "127.0.0.1"
    with pytest.raises(
        RegistryTlsError, match="speaks no TLS, and plain HTTP is for registries on this machine"
    ):
        store.pull("elsewhere.test/team/app")
    assert registry.seen.total() == 0


def test_platform_is_chosen_and_a_missing_one_named(store, layout, registry):
    layout.index(
        {
            **layout.manifest(SMALL, architecture="arm64"),
            "platform": {"os": "linux", "architecture": "arm64", "variant": "v8"},
        },
        {
            **layout.manifest(LARGE, architecture="s390x"),
            "platform": {"os": "linux", "architecture": "s390x"},
        },
    )
    image = store.pull(name_at(registry), platform="linux/arm64")
    assert image.config.architecture == "arm64"
    assert store.pull(name_at(registry), platform="s390x").config.architecture == "s390x"
    with pytest.raises(
        PlatformNotFoundError, match="not made for linux/arm/v7; it is for: linux/arm64/v8, linux/s390x"
    ):
        store.pull(name_at(registry), platform="linux/arm/v7")
    with pytest.raises(SpecInvalidError, match="linux/amd64"):
        store.pull(name_at(registry), platform="a/b/c/d")


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (b"<html>", "not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"schemaVersion": 1, "fsLayers": []}', "version 1"),
        (b'{"config": {"digest": "sha256:../../../etc/passwd", "size": 1}}', "config.digest"),
        (b'{"config": {"digest": "sha256:%s", "size": -1}}' % (b"a" * 64), "config.size"),
        (HELM, "no container image but a application/vnd.cncf.helm"),
        (b'{"manifests": []}', "it is for: none"),
        (b"[" * 100_000, "not JSON"),
    ],
)
def test_manifest_of_something_else_is_refused(store, registry, document, message):
    registry.faults = [lambda handler: handler.answer(200, document) or True]
    with pytest.raises((BadImageError, PlatformNotFoundError), match=message):
        store.pull(name_at(registry))


def test_image_that_does_not_fit_on_the_disk_is_not_fetched(tmp_path, registry):
    store = ImageStore(
        tmp_path / "s", as_root=False, limits=ImageLimits(reserve_bytes=1 << 60), is_durable=False
    )
    with pytest.raises(ImageStoreFullError, match="MiB are free"):
        store.pull(name_at(registry))
    assert all(blob_size_of(registry, path) < 100_000 for path in registry.seen if "/blobs/" in path)


def blob_size_of(registry, path: str) -> int:
    return registry.blob_path(path.rpartition("/")[2]).stat().st_size


_PULL = """
import sys
from pathlib import Path
from runtimes.local.images import ImageStore, ImageLimits
store = ImageStore(Path(sys.argv[1]), as_root=False, limits=ImageLimits(reserve_bytes=1 << 20), is_durable=False)
store.pull(sys.argv[2])
"""


def test_killed_pull_is_cleared_away_and_done_again(store, registry):
    started = threading.Event()
    released = threading.Event()

    def stall(handler) -> bool:
        if "/blobs/" in handler.path and blob_size(handler) > 100_000:
            started.set()
            released.wait(30)
        return False

    registry.faults = [stall]
    child = subprocess.Popen(
        [sys.executable, "-c", _PULL, store._folder, name_at(registry)], cwd=Path(__file__).parents[3]
    )
    assert started.wait(30)
    child.kill()
    child.wait()
    released.set()
    registry.faults = []
    store.collect()
    assert is_empty(store)
    assert store.pull(name_at(registry)).size_bytes > 0


def test_store_of_a_pull_is_closed_to_others(store, registry):
    store.pull(name_at(registry))
    assert stat.S_IMODE(store._folder.stat().st_mode) == 0o700
