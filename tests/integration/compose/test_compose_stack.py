"""docker-compose.yml on a real engine: up, healthy, one job, and away again."""

import http.client
from contextlib import closing
from urllib.parse import urlsplit

import httpx
import pytest

from sandmill import Artifact, Client, Input, Job, Step
from tests.support.compose import Project

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def key(project: Project) -> str:
    return project.output_of("run", "--rm", "--no-deps", "migrate", "key", "create", "test").strip()


@pytest.fixture(scope="module")
def client(project: Project, key: str):
    with Client(project.api_url, key) as made:
        yield made


def test_job_runs_with_its_input_its_log_and_its_artifact(client):
    job = Job(
        key="hello",
        image="host",
        inputs=[Input("/in/letter", blob=client.upload_blob(b"dear"))],
        steps=[Step("run", "cat /in/letter; mkdir /out; tr a-z A-Z </in/letter >/out/letter")],
        artifacts=[Artifact("/out/**")],
    )
    batch_id = client.submit_job(job).batch_id
    client.wait(batch_id, timeout_seconds=120)
    trial = client.get_trial(next(client.iter_trials(batch_id)).id)
    assert trial.outcome == "passed", trial.failure
    assert b"".join(chunk.data for chunk in client.iter_logs(trial.attempts[0].id)) == b"dear"
    assert client.read_artifact(trial.id, "/out/letter") == b"DEAR"


def test_sandbox_in_the_worker_is_still_a_sandbox(client):
    script = (
        "id -u; test ! -e /var/lib/sandmill/node; test ! -e /proc/1/root/opt/sandmill/src/api;"
        "cat /proc/net/dev | wc -l; env | grep -c -i password; true"
    )
    batch_id = client.submit_job(Job(key="look", image="host", steps=[Step("run", script)])).batch_id
    client.wait(batch_id, timeout_seconds=120)
    trial = client.get_trial(next(client.iter_trials(batch_id)).id)
    seen = b"".join(chunk.data for chunk in client.iter_logs(trial.attempts[0].id)).split()
    assert seen[1:] == [b"3", b"0"]  # two lines of heading and the loopback device; no secret


@pytest.mark.parametrize("by_api", [False, True], ids=["by the ingress", "by the API"])
def test_a_live_sandbox_is_reached_from_outside(project, key, by_api):
    headers = {"OPEN-SANDBOX-API-KEY": key}
    made = {
        "image": {"uri": "host"},
        "timeout": 300,
        "resourceLimits": {"cpu": "500m", "memory": "256Mi"},
        "entrypoint": ["sleep", "300"],
    }
    with httpx.Client(base_url=project.api_url, headers=headers, timeout=60) as api:
        answer = api.post("/v1/sandboxes", json=made)
        assert answer.status_code == 202, answer.text
        sandbox = answer.json()["id"]
        found = api.get(
            f"/v1/sandboxes/{sandbox}/endpoints/44772", params={"use_server_proxy": str(by_api).lower()}
        ).json()
        port = project.variables[
            "SANDMILL_API_PUBLISHED_PORT" if by_api else "SANDMILL_INGRESS_PUBLISHED_PORT"
        ]
        assert found["endpoint"].startswith(f"127.0.0.1:{port}/")
        answer = httpx.get(
            f"http://{found['endpoint']}/metrics", headers={**headers, **found["headers"]}, timeout=60
        )
        assert answer.status_code == 200, answer.text
        assert "cpu_count" in answer.json()
        assert api.delete(f"/v1/sandboxes/{sandbox}").status_code == 204


def test_programs_run_as_a_user_without_rights(project):
    for container in project.containers():
        assert container["Config"]["User"] not in {"", "0", "root"}, container["Name"]
        assert not container["HostConfig"]["Privileged"]


def test_flower_asks_for_the_password(project):
    with closing(http.client.HTTPConnection(urlsplit(project.flower_url).netloc, timeout=10)) as connection:
        connection.request("GET", "/workers")
        assert connection.getresponse().status == 401
