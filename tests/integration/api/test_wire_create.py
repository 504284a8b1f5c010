"""POST /sandboxes: every rule of the protocol's sections 1.3 and 1.6 to 1.10, kept and broken."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.integration.api.conftest import ApiWorld, changed_settings

# Without a node nothing starts, so nothing is waited for.
pytestmark = pytest.mark.usefixtures("no_waiting")

PLAIN: dict[str, Any] = {
    "image": {"uri": "python:3.12"},
    "timeout": 600,
    "resourceLimits": {"cpu": "1", "memory": "2Gi"},
    "entrypoint": ["tail", "-f", "/dev/null"],
    "secureAccess": False,
}
"""What the official client sends, but for env and metadata."""

INVALID = "SANDBOX::INVALID_PARAMETER"


def post(api: ApiWorld, *, prefix: str = "/v1", drop: tuple[str, ...] = (), **changes: Any):
    body = {key: value for key, value in {**PLAIN, **changes}.items() if key not in drop}
    return api.client.post(f"{prefix}/sandboxes", json=body)


def made(api: ApiWorld, **changes: Any) -> dict[str, Any]:
    response = post(api, **changes)
    assert response.status_code == 202, response.text
    return response.json()


def spec_of(api: ApiWorld, sandbox: dict[str, Any]) -> dict[str, Any]:
    sql = "SELECT j.spec FROM trials t JOIN jobs j ON j.id = t.job_id WHERE t.id = %(id)s"
    return api.rows(sql, id=sandbox["id"])[0]["spec"]


def refused(api: ApiWorld, status: int, code: str, *words: str, **changes: Any) -> None:
    before = api.count("sandbox_sessions")
    response = post(api, **changes)
    assert response.status_code == status, response.text
    answer = response.json()
    assert answer["code"] == code
    for word in words:
        assert word in answer["message"]
    assert api.count("sandbox_sessions") == before


@pytest.mark.parametrize("prefix", ["/v1", ""])
def test_plain_create_is_accepted(api, prefix):
    response = post(api, prefix=prefix, env={"X": "1"}, metadata={"a": "b"})
    assert response.status_code == 202
    answer = response.json()
    assert set(answer) == {
        "id", "status", "createdAt", "entrypoint", "metadata", "extensions", "expiresAt",
    }  # fmt: skip
    assert answer["status"]["state"] == "Pending"
    assert answer["entrypoint"] == PLAIN["entrypoint"]
    assert answer["metadata"] == {"a": "b"}
    created, expires = (datetime.fromisoformat(answer[key]) for key in ("createdAt", "expiresAt"))
    assert expires - created == timedelta(seconds=600)
    seen = api.client.get(f"/v1/sandboxes/{answer['id']}").json()
    assert seen["image"] == {"uri": "python:3.12"}
    assert seen["createdAt"] == answer["createdAt"]


def test_nothing_is_null_in_any_answer(api):
    sandbox = made(api, timeout=None)

    def nulls(value: Any, place: str = "") -> list[str]:
        if isinstance(value, dict):
            return [found for key, inner in value.items() for found in nulls(inner, f"{place}.{key}")]
        if isinstance(value, list):
            return [found for inner in value for found in nulls(inner, place)]
        return [place] if value is None else []

    for path in (f"/v1/sandboxes/{sandbox['id']}", f"/v1/sandboxes/{sandbox['id']}/record", "/v1/sandboxes"):
        assert nulls(api.client.get(path).json()) == []
    assert nulls(sandbox) == []
    assert "expiresAt" not in sandbox
    assert "platform" not in sandbox


def test_nulls_are_taken_as_absent(api):
    volume = {
        "name": "p",
        "mountPath": "/n",
        "readOnly": None,
        "subPath": None,
        "host": None,
        "pvc": {
            "claimName": "c",
            **dict.fromkeys(["createIfNotExists", "storageClass", "storage", "accessModes"]),
        },
    }
    nothing = dict.fromkeys(
        ["snapshotId", "templateId", "platform", "timeout", "resourceRequests", "env", "metadata", "lifecycle",
         "networkPolicy", "credentialProxy", "secureAccess", "extensions"]
    )  # fmt: skip
    sandbox = made(api, **nothing, image={"uri": "a", "auth": None}, volumes=[volume])
    stored = spec_of(api, sandbox)["volumes"][0]
    assert (stored["claim"], stored["is_made_if_missing"], stored["is_read_only"]) == ("c", True, False)


def test_unknown_keys_are_ignored_everywhere(api):
    made(
        api,
        colour="red",
        image={"uri": "a", "digest": "x"},
        platform={"os": "linux", "arch": "amd64", "v": 1},
    )


def test_numbers_as_text_are_taken_as_the_original_takes_them(api):
    sandbox = made(api, timeout="600")
    assert "expiresAt" in sandbox


@pytest.mark.parametrize(
    ("changes", "loc", "kind"),
    [
        ({"timeout": 59}, ["body", "timeout"], "greater_than_equal"),
        ({"timeout": "x"}, ["body", "timeout"], "int_parsing"),
        ({"image": {}}, ["body", "image", "uri"], "missing"),
        ({"image": {"uri": ""}}, ["body", "image", "uri"], "string_too_short"),
        ({"image": {"uri": "a", "auth": {"username": "u"}}}, ["body", "image", "auth", "password"], "missing"),
        ({"image": "a"}, ["body", "image"], "model_type"),
        ({"metadata": {"a": 1}}, ["body", "metadata", "a"], "string_type"),
        ({"entrypoint": []}, ["body", "entrypoint"], "too_short"),
        ({"entrypoint": ["a", 1]}, ["body", "entrypoint", 1], "string_type"),
        ({"platform": {"os": "linux"}}, ["body", "platform", "arch"], "missing"),
        ({"volumes": [{"name": "v"}]}, ["body", "volumes", 0, "mountPath"], "missing"),
        ({"env": {"A": 1}}, ["body", "env", "A"], "string_type"),
        ({"networkPolicy": {"defaultAction": "maybe"}}, ["body", "networkPolicy", "defaultAction"], "literal_error"),
        (
            {"networkPolicy": {"egress": [{"action": "deny", "target": ""}]}},
            ["body", "networkPolicy", "egress", 0, "target"],
            "string_too_short",
        ),
    ],
    ids=str,
)  # fmt: skip
def test_wrong_form_is_told_by_place(api, changes, loc, kind):
    response = post(api, **changes)
    assert response.status_code == 422, response.text
    (detail,) = response.json()["detail"]
    assert (detail["loc"], detail["type"]) == (loc, kind)
    assert detail["msg"]
    assert api.count("sandbox_sessions") == 0


@pytest.mark.parametrize("body", [b"{", b"", b"null", b"[]", b'"x"', b"\xff"], ids=str)
def test_body_that_is_no_object_is_refused(api, body):
    response = api.client.post("/v1/sandboxes", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code in {400, 422}
    assert response.json()["code"] == INVALID
    if response.status_code == 422:
        assert response.json()["detail"][0]["loc"] == ["body"]


def test_chunked_body_and_byte_order_mark_are_honoured(api):
    """B-017: without a length, and as some editors save it; what is compressed is refused, never half read."""
    import json  # noqa: PLC0415

    body = json.dumps({**PLAIN, "metadata": {"seen": "yes"}}).encode()
    headers = {"Content-Type": "application/json"}
    chunked = api.client.post("/v1/sandboxes", content=iter([body[:10], body[10:]]), headers=headers)
    marked = api.client.post("/v1/sandboxes", content=b"\xef\xbb\xbf" + body, headers=headers)
    for response in (chunked, marked):
        assert response.status_code == 202, response.text
        assert response.json()["metadata"] == {"seen": "yes"}
    packed = api.client.post(
        "/v1/sandboxes", content=b"\x1f\x8b", headers={**headers, "Content-Encoding": "gzip"}
    )
    assert packed.status_code == 400
    assert "Content-Encoding" in packed.json()["message"]


def test_exactly_one_source_is_needed(api):
    refused(api, 400, INVALID, "image", drop=("image",))
    refused(api, 400, INVALID, "snapshotId", snapshotId="0" * 8 + "-0000-0000-0000-" + "0" * 12)
    refused(api, 501, "FSB::API_NOT_SUPPORTED", "templateId", templateId="tpl-x")
    refused(api, 400, INVALID, "lifecycle", lifecycle={"preStart": {"command": ["a"]}})


@pytest.mark.parametrize(
    "name",
    ["python", "host:5000/a/b", "host:5000/a/b:tag", "[::1]:5000/x", "ghcr.io/a/b@sha256:" + "0" * 64, "localhost/x"],
)  # fmt: skip
def test_image_names_are_kept_as_given(api, name):
    """B-140."""
    sandbox = made(api, image={"uri": name})
    assert api.client.get(f"/v1/sandboxes/{sandbox['id']}").json()["image"] == {"uri": name}


@pytest.mark.parametrize(
    "name", ["UPPER", "a b", "a:b:c", "a@sha256:1", "-a", "x" * 300, "host:99999/x", "snapshot:mine", "../x"]
)
def test_bad_image_name_is_refused_at_once(api, name):
    """B-010, B-140: by the field, and not after a start timeout."""
    refused(api, 400, INVALID, "image.uri", image={"uri": name})


def test_credentials_are_sealed_and_never_told(api):
    """B-134, T57."""
    sandbox = made(api, image={"uri": "a", "auth": {"username": "u", "password": "s3cr3t-canary"}})
    (row,) = api.rows("SELECT image_auth FROM sandbox_sessions WHERE trial_id = %(id)s", id=sandbox["id"])
    assert row["image_auth"] is not None
    assert b"s3cr3t-canary" not in bytes(row["image_auth"])
    for path in ("", "/record"):
        assert "canary" not in api.client.get(f"/v1/sandboxes/{sandbox['id']}{path}").text
    found = api.rows("SELECT 1 FROM jobs WHERE spec::text LIKE '%%canary%%'")
    assert found == []


def test_platform_is_told_only_if_it_was_asked_for(api):
    sandbox = made(api, platform={"os": "linux", "arch": "amd64"})
    assert sandbox["platform"] == {"os": "linux", "arch": "amd64"}
    assert api.client.get(f"/v1/sandboxes/{sandbox['id']}").json()["platform"] == sandbox["platform"]
    refused(api, 400, INVALID, "platform.os", platform={"os": "macos", "arch": "amd64"})
    refused(api, 400, INVALID, "platform.arch", platform={"os": "linux", "arch": "riscv"})
    refused(api, 400, INVALID, "platform.os", platform={"os": "windows", "arch": "amd64"})


@pytest.mark.parametrize(
    ("limits", "wanted"),
    [
        ({"cpu": "500m"}, {"cpu_millicores": 500}),
        ({"cpu": "0.5"}, {"cpu_millicores": 500}),
        ({"cpu": "2"}, {"cpu_millicores": 2000}),
        ({"memory": "512Mi"}, {"memory_bytes": 512 << 20}),
        ({"memory": "1G"}, {"memory_bytes": 10**9}),
        ({"memory": "1gb"}, {"memory_bytes": 10**9}),
        ({"memory": "2gi"}, {"memory_bytes": 2 << 30}),
        ({"memory": "0.5Gi"}, {"memory_bytes": 1 << 29}),
        ({"memory": "134217728"}, {"memory_bytes": 1 << 27}),
        ({"memory": "134217728b"}, {"memory_bytes": 1 << 27}),
        ({"gpu": "2"}, {"gpu": 2}),
        ({"disk": "5Gi"}, {"disk_bytes": 5 << 30}),
        ({}, {"cpu_millicores": 1000, "memory_bytes": 2 << 30}),
    ],
    ids=str,
)
def test_limits_are_read(api, limits, wanted):
    resources = spec_of(api, made(api, resourceLimits=limits))["resources"]
    assert {name: resources[name] for name in wanted} == wanted


@pytest.mark.parametrize(
    "limits",
    [
        {"cpu": "0"}, {"cpu": "-1"}, {"cpu": "x"}, {"cpu": ""}, {"cpu": "1e3"}, {"cpu": "999999999"}, {"cpu": "٢"},
        {"memory": "0"}, {"memory": "-1Gi"}, {"memory": "1Xi"}, {"memory": "9999999Ti"}, {"memory": "1"},
        {"gpu": "-1"}, {"gpu": "all"}, {"gpu": "1.5"}, {"gpu": "99"}, {"gppu": "1"}, {"disk": "x"},
    ],
    ids=str,
)  # fmt: skip
def test_limits_that_are_none_are_refused(api, limits):
    """T24: never unlimited."""
    refused(api, 400, INVALID, f"resourceLimits.{next(iter(limits))}", resourceLimits=limits)


def test_limits_are_required(api):
    refused(api, 400, INVALID, "resourceLimits", drop=("resourceLimits",))


def test_a_pull_has_its_own_time_beside_the_start(api):
    """B-139."""
    with changed_settings(api.app, sandbox_start_timeout_seconds=50.0, sandbox_pull_timeout_seconds=3000.0):
        timeouts = spec_of(api, made(api))["timeouts"]
    assert (timeouts["queue"], timeouts["start"]) == (50.0, 3050.0)


def test_longest_timeout_of_the_installation_holds(api):
    with changed_settings(api.app, max_sandbox_timeout_seconds=300):
        refused(api, 400, INVALID, "timeout", timeout=301)
        made(api, timeout=300)


@pytest.mark.parametrize(
    "key", ["a", "A.b_c-1", "example.com/name", "x" * 63, "a" * 63 + ".example/n"], ids=len
)
@pytest.mark.parametrize("value", ["", "v", "a.b_c-D", "x" * 63], ids=len)
def test_labels_that_are_good(api, key, value):
    assert made(api, metadata={key: value})["metadata"] == {key: value}


@pytest.mark.parametrize(
    "key", ["", "-a", "a-", "a b", "x" * 64, "/a", "a/", "A.com/x", "a" * 254 + "/n", "ä", "a/b/c", "a\n"]
)
def test_name_of_a_label_that_is_bad(api, key):
    refused(api, 400, "SANDBOX::INVALID_METADATA_LABEL", metadata={key: "v"})


@pytest.mark.parametrize("value", ["-a", "a-", "a b", "x" * 64, "ä", "a/b", "a\n"])
def test_value_of_a_label_that_is_bad(api, value):
    refused(api, 400, "SANDBOX::INVALID_METADATA_LABEL", "metadata.k", metadata={"k": value})


def test_our_own_labels_are_reserved(api):
    refused(api, 400, "INVALID_METADATA_LABEL", metadata={"opensandbox.io/id": "x"})


def test_entrypoint(api):
    refused(api, 400, INVALID, "entrypoint", drop=("entrypoint",))
    one = made(api, entrypoint=["python -c 'print(1)'"])
    assert one["entrypoint"] == ["python", "-c", "print(1)"]
    assert spec_of(api, one)["entrypoint"] == ["python", "-c", "print(1)"]
    # Two words are two words, whatever is in them.
    assert made(api, entrypoint=["a b", "c d"])["entrypoint"] == ["a b", "c d"]
    # To keep a container alive is execd's own business.
    assert spec_of(api, made(api))["entrypoint"] == []
    refused(api, 400, "DOCKER::INVALID_ENTRYPOINT", entrypoint=["   "])
    refused(api, 400, "DOCKER::INVALID_ENTRYPOINT", entrypoint=["echo 'open"])


def test_environment(api):
    env = spec_of(api, made(api, env={"A": "1", "B": None, "C": "", "d.e": "ü\n"}))["env"]
    assert env == {"A": "1", "C": "", "d.e": "ü\n"}
    refused(api, 400, INVALID, "env.A=B", env={"A=B": "1"})
    refused(api, 400, INVALID, "OPENSANDBOX_LIFECYCLE", env={"OPENSANDBOX_LIFECYCLE": "{}"})
    refused(api, 400, INVALID, "OPENSANDBOX_EGRESS_X", env={"OPENSANDBOX_EGRESS_X": "1"})


def test_what_denies_every_way_out_is_what_there_is(api):
    for policy in ({}, {"defaultAction": "deny"}, {"defaultAction": "deny", "egress": []},
                   {"egress": [{"action": "deny", "target": "a.com"}]}):  # fmt: skip
        made(api, networkPolicy=policy)
    code = "SANDBOX::API_NOT_SUPPORTED"
    refused(api, 501, code, "networkPolicy", "allow", networkPolicy={"defaultAction": "allow"})
    refused(
        api, 501, code, "a.example",
        networkPolicy={"defaultAction": "deny", "egress": [{"action": "allow", "target": "a.example"}]},
    )  # fmt: skip
    for policy in (None, {"defaultAction": "deny"}):
        refused(
            api, 400, INVALID, "credentialProxy: credentials are not put into requests in this release",
            networkPolicy=policy, credentialProxy={"enabled": True},
        )  # fmt: skip
    made(api, credentialProxy={"enabled": False})


def test_extensions(api):
    sandbox = made(
        api, extensions={"opensandbox.extensions.x": "any thing", "access.renew.extend.seconds": "300"}
    )
    assert sandbox["extensions"]["opensandbox.extensions.x"] == "any thing"
    (row,) = api.rows("SELECT renew_seconds FROM sandbox_sessions WHERE trial_id = %(id)s", id=sandbox["id"])
    assert row["renew_seconds"] == 300
    for bad in ("299", "86401", "x", "", "3e2", " 300"):
        refused(api, 400, INVALID, "extensions.access", extensions={"access.renew.extend.seconds": bad})


@pytest.mark.parametrize("others", [{}, {"poolRef": "p"}], ids=["new", "pool"])
@pytest.mark.parametrize("name", ["sandmill.runtme", "sandmill.", "Sandmill.Runtime", "sandmill.for"])
def test_an_extension_that_only_looks_like_ours_is_refused(api, name, others):
    field = f"extensions.{name}: is none of a sandbox: there are sandmill.oci-runtime, sandmill.runtime"
    refused(api, 400, INVALID, field, extensions={**others, name: "local"})
    assert made(api, extensions={"sandmill": "x", "x.sandmill.runtme": "y"})["extensions"] == {
        "sandmill": "x", "x.sandmill.runtme": "y"
    }  # fmt: skip


VOLUME = {"name": "v", "mountPath": "/m", "pvc": {"claimName": "c"}}


@pytest.mark.parametrize(
    ("change", "code", "field"),
    [
        ({"name": "V"}, "INVALID_NAME", "volumes[0].name"),
        ({"name": "x" * 64}, "INVALID_NAME", "volumes[0].name"),
        ({"mountPath": "m"}, "INVALID_MOUNT_PATH", "volumes[0].mountPath"),
        ({"mountPath": "/a/../b"}, "INVALID_MOUNT_PATH", "volumes[0].mountPath"),
        ({"mountPath": "/"}, "INVALID_MOUNT_PATH", "volumes[0].mountPath"),
        ({"mountPath": "/proc/x"}, "INVALID_MOUNT_PATH", "volumes[0].mountPath: is in /proc"),
        ({"mountPath": "/sys"}, "INVALID_MOUNT_PATH", "volumes[0].mountPath: is in /sys"),
        ({"mountPath": "//./dev/shm"}, "INVALID_MOUNT_PATH", "volumes[0].mountPath: is in /dev"),
        ({"mountPath": "/.sbx/x"}, "INVALID_MOUNT_PATH", "volumes[0].mountPath: is in /.sbx"),
        ({"subPath": "/x"}, "INVALID_SUB_PATH", "volumes[0].subPath"),
        ({"subPath": "a/../b"}, "INVALID_SUB_PATH", "volumes[0].subPath"),
        ({"pvc": None}, "INVALID_BACKEND", "volumes[0]"),
        ({"host": {"path": "/x"}}, "INVALID_BACKEND", "volumes[0]"),
        ({"pvc": None, "host": {"path": "x"}}, "INVALID_HOST_PATH", "volumes[0].host.path"),
        ({"pvc": None, "host": {"path": "/a/../etc"}}, "INVALID_HOST_PATH", "volumes[0].host.path"),
        ({"pvc": {"claimName": "-a"}}, "INVALID_PVC_NAME", "volumes[0].pvc.claimName"),
        ({"pvc": None, "ossfs": {"bucket": "abc"}}, "UNSUPPORTED_BACKEND", "volumes[0].ossfs"),
    ],
    ids=str,
)
def test_volume_that_is_wrong_is_refused(api, change, code, field):
    refused(api, 400, f"VOLUME::{code}", field, volumes=[{**VOLUME, **change}])


def test_volumes(api):
    refused(
        api, 400, "VOLUME::DUPLICATE_NAME", "volumes[1].name", volumes=[VOLUME, {**VOLUME, "mountPath": "/n"}]
    )
    volumes = spec_of(
        api,
        made(
            api, volumes=[VOLUME, {"name": "w", "mountPath": "/w", "host": {"path": "/x"}, "readOnly": True}]
        ),
    )["volumes"]
    assert [(v["name"], v["mount_path"], v["host_path"], v["claim"], v["is_read_only"]) for v in volumes] == [
        ("v", "/m", None, "c", False),
        ("w", "/w", "/x", None, True),
    ]


def test_repeated_create_under_one_key_makes_one(api):
    """T83."""
    headers = {"Idempotency-Key": "k1"}
    first = api.client.post("/v1/sandboxes", json=PLAIN, headers=headers)
    second = api.client.post("/v1/sandboxes", json=PLAIN, headers=headers)
    assert first.json()["id"] == second.json()["id"]
    assert second.headers["Idempotent-Replayed"] == "true"
    other = api.client.post("/v1/sandboxes", json={**PLAIN, "timeout": 700}, headers=headers)
    assert other.status_code == 409
    assert other.json()["code"] == "SANDBOX::CONFLICT"
    assert api.count("sandbox_sessions") == 1


def test_queue_that_is_full_says_so_at_once(api):
    """B-011: its own code and when to come back, never a readiness timeout."""
    api.rows("UPDATE tenants SET max_queued = 1 WHERE id = %(me)s RETURNING id")
    made(api)
    response = post(api)
    assert response.status_code == 429
    assert response.json()["code"] == "SANDBOX::QUOTA_EXCEEDED"
    assert int(response.headers["Retry-After"]) > 0
    assert api.count("sandbox_sessions") == 1
