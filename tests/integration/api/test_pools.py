"""Pools over the wire, with a node beside it that keeps sandboxes of the fake runtime."""

import http.server
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.integration.api.conftest import ApiWorld
from tests.support.pools import PLAIN, PoolNode, eventually

IDLE = ["tail", "-f", "/dev/null"]
SDK = {"resourceLimits": {"cpu": "1", "memory": "2Gi"}, "entrypoint": IDLE, "secureAccess": False}
"""What official clients send when nobody asked for anything."""


@pytest.fixture
def node(own_api: ApiWorld) -> Iterator[PoolNode]:
    node = PoolNode(own_api.world)
    yield node
    node.close()


def capacity(**changes: int) -> dict[str, int]:
    return {"bufferMin": 2, "bufferMax": 2, "poolMin": 0, "poolMax": 10, **changes}


def make_pool(api: ApiWorld, name: str = "p", template: Any = None, **numbers: int) -> dict[str, Any]:
    body = {"name": name, "template": template or PLAIN, "capacitySpec": capacity(**numbers)}
    answer = api.client.post("/v1/pools", json=body)
    assert answer.status_code == 201, answer.text
    return answer.json()


def create(api: ApiWorld, pool: str | None = "p", **body: Any) -> httpx.Response:
    extensions = {} if pool is None else {"extensions": {"poolRef": pool}}
    return api.client.post("/v1/sandboxes", json={**extensions, **body})


def status(api: ApiWorld, name: str = "p") -> dict[str, Any]:
    return api.client.get(f"/v1/pools/{name}").json()["status"]


def error(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


def claims(api: ApiWorld) -> dict[str, float]:
    lines = api.client.get("/metrics").text.splitlines()
    prefix = 'sandmill_pool_claims_total{result="'
    return {
        line.removeprefix(prefix).partition('"')[0]: float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith(prefix)
    }


def test_too_many_pools_are_refused(own_api: ApiWorld, monkeypatch):
    monkeypatch.setattr("services.pools.MAX_POOLS", 2)
    for name in ("a", "b"):
        make_pool(own_api, name)
    answer = own_api.client.post(
        "/v1/pools", json={"name": "c", "template": PLAIN, "capacitySpec": capacity()}
    )
    assert error(answer) == (409, "KUBERNETES::POOL_API_ERROR")
    assert "there are 2 pools" in answer.json()["message"]


def test_a_pool_is_made_looked_at_changed_and_deleted(own_api: ApiWorld, node: PoolNode):
    made = make_pool(own_api)
    assert made["capacitySpec"] == capacity()
    assert made["status"] == {"total": 0, "allocated": 0, "available": 0, "starting": 0, "revision": "1"}
    assert made["template"] == PLAIN
    node.turn()
    assert status(own_api) == {"total": 2, "allocated": 0, "available": 2, "starting": 0, "revision": "1"}
    assert [pool["name"] for pool in own_api.client.get("/pools").json()["items"]] == ["p"]
    changed = own_api.client.put("/v1/pools/p", json={"capacitySpec": capacity(bufferMin=0, bufferMax=0)})
    assert changed.json()["capacitySpec"] == capacity(bufferMin=0, bufferMax=0)
    node.turn()
    assert status(own_api)["total"] == 0
    assert own_api.client.delete("/v1/pools/p").status_code == 204
    for call in (own_api.client.get, own_api.client.delete):
        assert error(call("/v1/pools/p")) == (404, "KUBERNETES::POOL_NOT_FOUND")
    assert own_api.client.get("/v1/pools").json() == {"items": []}


def test_a_name_in_use_and_another_tenants_pool(api: ApiWorld):
    make_pool(api)
    body = {"name": "p", "template": PLAIN, "capacitySpec": capacity()}
    assert error(api.client.post("/v1/pools", json=body)) == (409, "KUBERNETES::POOL_ALREADY_EXISTS")
    with api.new_client(f"other-{api.tenant_id}") as other:
        assert other.post("/v1/pools", json=body).status_code == 201
        assert other.delete("/v1/pools/p").status_code == 204
        assert error(other.get("/v1/pools/p")) == (404, "KUBERNETES::POOL_NOT_FOUND")
        assert error(other.put("/v1/pools/p", json={"capacitySpec": capacity()}))[0] == 404
        answer = other.post("/v1/sandboxes", json={"extensions": {"poolRef": "p"}})
        assert error(answer) == (404, "KUBERNETES::POOL_NOT_FOUND")
    assert api.client.get("/v1/pools/p").status_code == 200


@pytest.mark.parametrize("ref", ["p", "*"])
def test_a_create_that_names_a_pool_is_given_a_member_that_runs(own_api: ApiWorld, node: PoolNode, ref: str):
    make_pool(own_api, template={**PLAIN, "metadata": {"team": "a"}})
    node.turn()
    warm = {str(row["trial_id"]) for row in node.free()}
    answer = create(own_api, ref, timeout=600, metadata={"n": "1"}, image={"uri": "ubuntu"}, **SDK)
    assert answer.status_code == 202, answer.text
    body = answer.json()
    assert body["id"] in warm
    assert body["status"]["state"] == "Running"
    assert body["allocation"] == {"mode": "pool", "poolRef": "p", "state": "allocated"}
    assert body["metadata"] == {"team": "a", "n": "1"}
    assert body["entrypoint"] == IDLE
    assert own_api.client.get(f"/v1/sandboxes/{body['id']}").json()["allocation"] == body["allocation"]
    assert status(own_api)["allocated"] == 1
    assert claims(own_api)["hit"] == 1


def test_members_nobody_has_are_not_to_be_seen(own_api: ApiWorld, node: PoolNode):
    make_pool(own_api)
    node.turn()
    member = node.free()[0]["trial_id"]
    assert own_api.client.get("/v1/sandboxes").json()["items"] == []
    for method, path in (
        ("GET", ""), ("DELETE", ""), ("GET", "/record"), ("POST", "/pause"), ("GET", "/endpoints/44772"),
    ):  # fmt: skip
        answer = own_api.client.request(method, f"/v1/sandboxes/{member}{path}")
        assert error(answer) == (404, "DOCKER::SANDBOX_NOT_FOUND"), path
    assert len(node.free()) == 2


def test_a_create_of_just_what_a_pool_makes_is_given_a_member_without_asking(
    own_api: ApiWorld, node: PoolNode
):
    make_pool(own_api)
    node.turn()
    body = create(own_api, None, image={"uri": "ubuntu"}, timeout=600, **SDK).json()
    assert body["allocation"]["poolRef"] == "p"
    assert node.turn() == 1  # refilled
    assert status(own_api)["available"] == 2


def test_a_used_member_ends_with_its_sandbox_and_is_never_given_again(own_api: ApiWorld, node: PoolNode):
    make_pool(own_api, bufferMin=1, bufferMax=1, poolMax=1)
    node.turn()
    used = create(own_api).json()["id"]
    with ThreadPoolExecutor(1) as thread:
        deleting = thread.submit(own_api.client.delete, f"/v1/sandboxes/{used}")
        eventually(lambda: node.keeper.wake() or deleting.done())
    assert deleting.result().status_code == 204
    node.turn()
    assert [str(row["trial_id"]) for row in node.free()] != [used]
    assert len(node.free()) == 1


def test_an_empty_pool_starts_a_new_member_for_a_create_that_names_it(own_api: ApiWorld, node: PoolNode):
    make_pool(own_api, template={**PLAIN, "env": {"A": "1"}})
    with ThreadPoolExecutor(1) as thread:
        creating = thread.submit(create, own_api, "p", timeout=600)
        eventually(lambda: node.start_queued() or creating.done())
    body = creating.result().json()
    assert body["allocation"]["poolRef"] == "p"
    assert body["status"]["state"] == "Running"
    assert status(own_api)["allocated"] == 1
    assert claims(own_api) == {"hit": 0, "dead": 0, "miss": 1, "exhausted": 0}


def test_a_full_pool_answers_429_soon_and_says_what_to_do(own_api: ApiWorld, node: PoolNode):
    make_pool(own_api, bufferMin=1, bufferMax=1, poolMax=1)
    node.turn()
    create(own_api)
    began = time.monotonic()
    answer = own_api.client.post(
        "/v1/sandboxes", json={"extensions": {"poolRef": "p"}}, headers={"Idempotency-Key": "k"}
    )
    assert time.monotonic() - began < 20
    assert error(answer) == (429, "KUBERNETES::POOL_CAPACITY_EXHAUSTED")
    assert "poolMax" in answer.json()["message"]
    assert answer.headers["retry-after"]
    assert claims(own_api)["exhausted"] == 1
    # Nothing was made, so the key is free for the next try.
    own_api.client.put("/v1/pools/p", json={"capacitySpec": capacity(bufferMin=1, bufferMax=1, poolMax=2)})
    node.turn()
    again = own_api.client.post(
        "/v1/sandboxes", json={"extensions": {"poolRef": "p"}}, headers={"Idempotency-Key": "k"}
    )
    assert again.json()["status"]["state"] == "Running"
    assert "idempotent-replayed" not in again.headers


def test_a_create_that_waits_for_a_full_pool_gets_the_member_that_comes(own_api: ApiWorld, node: PoolNode):
    make_pool(own_api, bufferMin=1, bufferMax=1, poolMax=1)
    node.pools.tick()  # it is as large as it may be, and does not run yet
    with ThreadPoolExecutor(1) as thread:
        creating = thread.submit(create, own_api, "p")
        time.sleep(0.3)
        assert node.start_queued() == 1
    assert creating.result().json()["status"]["state"] == "Running"


def test_the_same_request_again_gives_the_same_member(own_api: ApiWorld, node: PoolNode):
    make_pool(own_api)
    node.turn()
    for body in ({"extensions": {"poolRef": "p"}}, {"image": {"uri": "ubuntu"}, **SDK}):
        headers = {"Idempotency-Key": str(len(body))}
        first, again = (own_api.client.post("/v1/sandboxes", json=body, headers=headers) for _ in range(2))
        assert first.json()["id"] == again.json()["id"]
        assert again.headers["idempotent-replayed"] == "true"
    assert status(own_api)["allocated"] == 2


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"snapshotId": "x"}, "snapshotId"),
        ({"lifecycle": {"preStart": {"command": ["x"]}}}, "lifecycle"),
        ({"networkPolicy": {"egress": []}}, "networkPolicy"),
        ({"credentialProxy": {"enabled": True}}, "credentialProxy"),
        ({"platform": {"os": "linux", "arch": "amd64"}}, "platform"),
        ({"volumes": [{"name": "v", "mountPath": "/v", "pvc": {"claimName": "c"}}]}, "volumes"),
        ({"image": {"uri": "debian"}}, "image.uri"),
        ({"resourceLimits": {"cpu": "2"}}, "resourceLimits"),
        ({"entrypoint": ["sleep", "1"]}, "entrypoint"),
        ({"env": {"B": "1"}}, "env.B"),
        ({"env": {"A": "2"}}, "env.A"),
        ({"metadata": {"opensandbox.io/x": "1"}}, "metadata.opensandbox.io/x"),
        ({"extensions": {"poolRef": "p", "sandmill.runtime": "docker"}}, "extensions.sandmill.runtime"),
        ({"extensions": {"poolRef": "p", "access.renew.extend.seconds": "1"}}, "extensions.access.renew"),
        ({"extensions": {"poolRef": "NO"}}, "extensions.poolRef"),
    ],
)
def test_what_a_pool_cannot_give_is_refused_by_name(api: ApiWorld, body: dict[str, Any], field: str):
    make_pool(api, template={**PLAIN, "env": {"A": "1"}})
    answer = create(api, **body)
    assert answer.status_code == 400
    assert answer.json()["message"].startswith(field)
    assert api.count("sandbox_sessions") == 0


def test_a_star_finds_the_pool_that_fits_and_says_when_none_does(own_api: ApiWorld, node: PoolNode):
    make_pool(own_api, "a", {"image": {"uri": "debian"}})
    make_pool(own_api, "b")
    node.turn()
    assert create(own_api, "*", image={"uri": "ubuntu"}, **SDK).json()["allocation"]["poolRef"] == "b"
    answer = create(own_api, "*", image={"uri": "alpine"}, **SDK)
    assert error(answer) == (404, "KUBERNETES::POOL_NOT_FOUND")


def test_a_pool_whose_members_do_not_start_says_why(own_api: ApiWorld, node: PoolNode):
    make_pool(own_api, template={"image": {"uri": "missing"}})
    node.turn()
    assert "no image 'missing'" in status(own_api)["message"]


class _Ingress(http.server.BaseHTTPRequestHandler):
    """Answers for the sandboxes of a node. answers: status by id; others are well."""

    answers: dict[str, int]
    seen: list[tuple[str, str | None]]

    def do_GET(self) -> None:
        self.seen.append((self.path, self.headers.get("OpenSandbox-Secure-Access")))
        self.send_response(self.answers.get(self.path.split("/")[1], 200))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def ingress(node: PoolNode) -> Iterator[type[_Ingress]]:
    handler = type("Ingress", (_Ingress,), {"answers": {}, "seen": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        node.world.execute(
            "UPDATE nodes SET ingress_url = %(url)s", url=f"http://127.0.0.1:{server.server_address[1]}"
        )
        yield handler
        server.shutdown()
        thread.join()


def test_a_member_is_asked_before_it_is_given_and_one_that_does_not_answer_is_ended(
    own_api: ApiWorld, node: PoolNode
):
    make_pool(own_api, bufferMin=3, bufferMax=3)
    node.turn()
    waiting = [str(row["trial_id"]) for row in sorted(node.free(), key=lambda row: row["running_at"])]
    with ingress(node) as asked:
        asked.answers.update({waiting[0]: 502, waiting[1]: 504})
        answer = own_api.client.post(
            "/v1/sandboxes", json={"extensions": {"poolRef": "p"}}, headers={"Idempotency-Key": "k"}
        )
        again = own_api.client.post(
            "/v1/sandboxes", json={"extensions": {"poolRef": "p"}}, headers={"Idempotency-Key": "k"}
        )
    assert answer.json()["id"] == again.json()["id"] == waiting[2]
    tokens = {str(row["trial_id"]): row["access_token"] for row in node.rows()}
    assert asked.seen == [(f"/{one}/44772/ping", tokens[one]) for one in waiting]
    node.settle()
    ends = {str(row["trial_id"]): row["end_reason"] for row in node.rows("ended_at IS NOT NULL")}
    assert ends == dict.fromkeys(waiting[:2], "POOL_MEMBER_DEAD")
    listed = own_api.client.get("/v1/sandboxes").json()["items"]
    assert [item["id"] for item in listed] == [waiting[2]]
    assert claims(own_api) == {"hit": 1, "dead": 2, "miss": 0, "exhausted": 0}


def test_where_no_member_answers_one_is_started_anew(own_api: ApiWorld, node: PoolNode):
    make_pool(own_api, bufferMin=1, bufferMax=1)
    node.turn()
    dead = str(node.free()[0]["trial_id"])
    with ingress(node) as asked, ThreadPoolExecutor(1) as thread:
        asked.answers[dead] = 502
        creating = thread.submit(create, own_api, None, image={"uri": "ubuntu"}, **SDK)
        eventually(lambda: node.start_queued() or creating.done())
    body = creating.result().json()
    assert body["id"] != dead
    assert body["status"]["state"] == "Running"
    assert "allocation" not in body
