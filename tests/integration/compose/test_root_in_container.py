"""Our own servers as root in an ordinary container, which may not make user namespaces."""

import json
import subprocess

import pytest

from tests.support.compose import SERVER_IMAGE, engine_environment

pytestmark = [pytest.mark.docker, pytest.mark.slow, pytest.mark.timeout(900)]

SCRIPT = """
import json
from pathlib import Path
import psycopg, redis
from launcher.embedded import embedded_services
for _ in range(2):
    with embedded_services(Path("/root/my home")) as services:
        with psycopg.connect(services.database_url) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS kept (n int)")
            connection.execute("INSERT INTO kept VALUES (1)")
            rows = connection.execute("SELECT count(*) FROM kept").fetchone()[0]
        with redis.Redis.from_url(services.redis_url) as client:
            client.append("kept", "x")
            text = client.get("kept").decode()
        owner = Path(f"/proc/{services.postgres.child.pid}").stat().st_uid
copies = [path.name for path in Path("/var/tmp").iterdir()]
print(json.dumps({"label": services.postgres.label, "owner": owner, "rows": rows, "text": text, "copies": copies}))
"""


@pytest.mark.parametrize(
    "mode", ["0755", "0700"], ids=["programs open to all", "programs in a closed folder"]
)
def test_root_in_a_container_drops_to_nobody(built_images, mode):
    inner = f'chmod 0700 /root && chmod {mode} /opt/sandmill/venv && exec python -c "$0"'
    words = ["docker", "run", "--rm", "--user", "0", "--network", "none", "--entrypoint", "sh"]
    done = subprocess.run(
        [*words, SERVER_IMAGE, "-c", inner, SCRIPT],
        env=engine_environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts.pop("label").endswith("root dropped to nobody")
    assert facts == {"owner": 65534, "rows": 2, "text": "xx", "copies": []}
