"""Workers killed with an attempt under way, and the next one of the node that goes on with it: nothing runs twice."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from runtimes.base import FileUpload
from runtimes.registry import build_runtime
from services.jobspec import ArtifactRule, Input, PatchStep, RewardVerdict, Step, StepRole
from services.reaping import Reaper
from tests.support.images import BUSYBOX_IMAGE, ensure_images, require_docker
from tests.support.nursery import Nursery, running_nursery
from tests.support.queue import QueueWorld, make_spec
from tests.support.sandboxes import is_root

pytestmark = pytest.mark.timeout(180)

LINES = 30
SCRIPT = (
    f"i=0; while [ $i -lt {LINES} ]; do echo out $i; echo err $i >&2; i=$((i+1)); sleep 0.02; done; exit 3"
)

STEPS = (
    Step(name="before", role=StepRole.SETUP, run="echo begun > /tmp/mark; echo before"),
    Step(name="long", run=SCRIPT),
    Step(name="after", role=StepRole.VERIFY, run="cat /tmp/mark /tmp/late; echo after; exit 4"),
)


POINTS = {
    "claimed, no sandbox yet": "worker.after_claim:kill9",
    "sandbox made, nothing run": "worker.after_create:kill9",
    "first step written down, not started": "worker.after_start:kill9",
    "second step written down, not started": "worker.after_start:kill9:2",
    "output stored": "worker.mid_log:kill9:2",
    "first step ended": "worker.after_exit:kill9",
    "last step ended": "worker.after_exit:kill9:3",
    "sandbox removed, end not written": "worker.before_finish:kill9",
}

POINTS_OF_THE_RUNTIME = {
    name: POINTS[name] for name in ("claimed, no sandbox yet", "sandbox made, nothing run")
}


class Node:
    """One home, and whoever works in it. worker: who was started last; 0: nobody."""

    def __init__(self, world: QueueWorld, nursery: Nursery, home: Path, runtime: str, image: str) -> None:
        self.world, self.nursery, self.home = world, nursery, home
        self.runtime, self.image = runtime, image
        self.tenant = world.tenant()
        self.points = POINTS
        self.worker = 0
        self.reaper = Reaper(world.engine, lease_grace_seconds=5.0)

    def start(self, **options: str) -> int:
        self.worker = self.nursery.worker(self.home, **options)
        return self.worker

    def submit(self, **changes: Any) -> UUID:
        defaults = {
            "image": self.image,
            "runtime": self.runtime,
            "steps": STEPS,
            "inputs": (Input("/tmp/late", text="late\n", before="after"),),
        }
        (trial,) = self.world.trials(
            self.tenant, spec=make_spec(**{**defaults, **changes}), runtime=self.runtime
        )
        self.until(lambda: self.world.dispatcher.tick() > 0)
        return trial

    def until(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        pause = threading.Event()
        for _ in range(int(seconds / 0.05)):
            if condition():
                return
            pause.wait(0.05)
        pytest.fail("not in time")

    def await_end(self, trial: UUID) -> dict[str, Any]:
        """Reap as the scheduler does, until the trial has ended; gives its row."""

        def has_ended() -> bool:
            self.reaper.reap()
            self.reaper.sweep()
            self.world.dispatcher.tick()
            return self.world.trial(trial)["state"] == "finished"

        self.until(has_ended)
        return self.world.trial(trial)

    def put(self, path: str) -> None:
        """Make a file in the one sandbox there is, from outside."""
        runtime = build_runtime(self.runtime, self.home / "runtimes")
        (handle,) = (each for each in runtime.list() if "sandmill.trial" in each.labels)
        runtime.executions(handle).upload([FileUpload(path, b"")])

    def log(self, trial: UUID, step: str, stream: str = "stdout") -> bytes:
        rows = self.world.execute(
            "SELECT seq, bytes FROM log_chunks WHERE trial_id = %(t)s AND step = %(p)s AND stream = %(s)s ORDER BY seq",
            t=trial, p=step, s=stream,
        )  # fmt: skip
        return b"".join(row["bytes"] for row in rows)


@contextlib.contextmanager
def node_of(world: QueueWorld, folder: Path, bundles: Path, **settings: str) -> Iterator[Node]:
    runtime = settings.pop("runtime", "local")
    image = BUSYBOX_IMAGE if runtime == "docker" else "host"
    home = folder / "home"
    (home / "runtimes").mkdir(parents=True)
    bundles.mkdir(exist_ok=True)
    (home / "runtimes" / "bundles").symlink_to(bundles)
    log = folder / "workers.log"
    common = {
        "runtimes": f'["{runtime}"]',
        "lease_seconds": "60",
        "lease_margin_seconds": "10",
        "heartbeat_seconds": "0.1",
        "rering_seconds": "0.05",
    }
    with running_nursery(log, **{**common, **settings}) as nursery:
        try:
            yield Node(world, nursery, home, runtime, image)
        finally:
            # What a test that failed has left ends with an orderly stop.
            nursery.end(nursery.worker(home), signal.SIGINT)
    # Of an engine others may have containers, too.
    nodes = {str(row["id"]) for row in world.execute("SELECT id FROM nodes")}
    left = build_runtime(runtime, home / "runtimes").list()
    assert [each for each in left if each.labels.get("sandmill.node") in nodes] == []


@pytest.fixture
def make_node(world: QueueWorld, database_url, redis_url, tmp_path, runtime_folder):
    urls = {"database_url": database_url, "redis_url": redis_url}
    bundles = runtime_folder / "bundles"
    return lambda **settings: node_of(world, tmp_path, bundles, **urls, **settings)


EXECUTORS = ["zygote", "bwrap"] if is_root() else ["bwrap"]


@pytest.fixture(params=EXECUTORS)
def node(request, make_node) -> Iterator[Node]:
    with make_node(local_executor=request.param) as made:
        # What the runner does is the same on both: the second is tried where the runtime has a part in it.
        made.points = POINTS if request.param == EXECUTORS[0] else POINTS_OF_THE_RUNTIME
        yield made


def check(node: Node, trial: UUID, *, adoptions: int = 1) -> None:
    """One attempt, the right verdict, every line once."""
    row = node.await_end(trial)
    assert (row["outcome"], row["failure"]["step"], row["failure"]["exit_code"]) == ("failed", "after", 4)
    assert (row["attempts_used"], row["infra_losses"]) == (1, 0)
    attempt = node.world.attempt(trial, 1)
    assert [(step["name"], step["exit_code"]) for step in attempt["steps"]] == [
        ("before", 0),
        ("long", 3),
        ("after", 4),
    ]
    assert attempt["adoptions"] == adoptions
    assert node.log(trial, "before") == b"before\n"
    assert node.log(trial, "long") == b"".join(b"out %d\n" % i for i in range(LINES))
    assert node.log(trial, "long", "stderr") == b"".join(b"err %d\n" % i for i in range(LINES))
    assert node.log(trial, "after") == b"begun\nlate\nafter\n"
    (head,) = node.world.execute("SELECT next_seq, closed FROM log_heads WHERE trial_id = %(t)s", t=trial)
    (count,) = node.world.execute("SELECT count(*) AS n FROM log_chunks WHERE trial_id = %(t)s", t=trial)
    assert (head["closed"], head["next_seq"]) == (True, count["n"])


def test_attempt_goes_on_wherever_its_worker_is_killed(node: Node):
    """All points in one home, one after the other: what each leaves is there when the next begins."""
    for point in node.points.values():
        dying = node.start(failpoints=point)
        trial = node.submit()
        node.nursery.wait(dying)
        assert node.reaper.reap() == 0
        successor = node.start()
        check(node, trial)
        node.nursery.end(successor)
    assert list((node.home / "node" / "attempts").iterdir()) == []


GATED = SCRIPT.replace(
    "i=$((i+1));",
    "for g in 5 12; do [ $i != $g ] || until [ -e /tmp/go$g ]; do sleep 0.02; done; done; i=$((i+1));",
)


def test_attempt_goes_on_in_the_middle_of_a_step_and_more_than_once(node: Node):
    worker = node.start()
    trial = node.submit(steps=(STEPS[0], Step(name="long", run=GATED), STEPS[2]))
    for gate, number in ((5, signal.SIGKILL), (12, signal.SIGTERM)):
        node.until(lambda gate=gate: b"out %d\n" % gate in node.log(trial, "long"))
        node.nursery.end(worker, number)
        worker = node.start()
        node.put(f"/tmp/go{gate}")
    check(node, trial, adoptions=2)


def test_step_that_ended_while_nobody_looked_is_judged(node: Node):
    worker = node.start()
    trial = node.submit()
    node.until(lambda: b"out 2\n" in node.log(trial, "long"))
    node.nursery.end(worker)
    threading.Event().wait(0.04 * LINES)
    node.start()
    check(node, trial)


def test_timeout_of_a_step_counts_on_while_nobody_looks(node: Node):
    worker = node.start()
    trial = node.submit(steps=(Step(name="run", run="echo begun; sleep 60", timeout_seconds=1.0),), inputs=())
    node.until(lambda: node.log(trial, "run") == b"begun\n")
    node.nursery.end(worker)
    node.start()
    row = node.await_end(trial)
    assert (row["failure"]["code"], row["attempts_used"]) == ("step_timeout", 1)
    (step,) = node.world.attempt(trial, 1)["steps"]
    assert step["duration_ms"] >= 900


def test_collection_is_made_again(node: Node):
    worker = node.start(dies_in="services.attempt_steps:ArtifactCollector.collect")
    trial = node.submit(
        steps=(Step(name="run", run="echo '{\"reward\": 0.5}' > /tmp/r; echo x > /tmp/a"),),
        inputs=(),
        verdict=RewardVerdict("/tmp/r", pass_at=0.5),
        artifacts=(ArtifactRule("/tmp/a"), ArtifactRule("/tmp/none/**")),
    )
    node.nursery.wait(worker)
    assert node.world.attempt(trial, 1)["state"] == "collecting"
    node.start()
    row = node.await_end(trial)
    assert (row["outcome"], row["rewards"], row["attempts_used"]) == ("passed", {"reward": 0.5}, 1)
    paths = node.world.execute("SELECT path FROM artifacts WHERE trial_id = %(t)s ORDER BY path", t=trial)
    assert [each["path"] for each in paths] == ["/tmp/a", "/tmp/r"]


PATCH = "--- a/f.txt\n+++ b/f.txt\n@@ -1 +1 @@\n-old\n+new\n"
PATCHING = {
    "inputs": (Input("/tmp/p.diff", text=PATCH), Input("/tmp/f.txt", text="old\n")),
    "steps": (
        Step(name="apply", role=StepRole.SETUP, patch=PatchStep("/tmp/p.diff"), cwd="/tmp"),
        Step(name="show", run="cat /tmp/f.txt"),
    ),
}


def test_patch_is_never_put_in_twice(node: Node):
    """Before it began and after it was noted the attempt goes on; in between nobody can say how far it came."""
    cases = [
        ({"failpoints": "worker.after_start:kill9"}, 1),
        ({"dies_in": "services.attempt_steps:StepRunner._put_in"}, 2),
        ({"dies_in": "services.attempt_steps:StepRunner._say"}, 1),
    ]
    for dying, attempts in cases:
        worker = node.start(**dying)
        trial = node.submit(**PATCHING)
        node.nursery.wait(worker)
        successor = node.start()
        row = node.await_end(trial)
        assert (row["outcome"], row["attempts_used"]) == ("passed", attempts), dying
        assert node.log(trial, "show") == b"new\n"
        assert node.log(trial, "apply") == b"patched f.txt\n"
        node.nursery.end(successor)


def test_cancel_that_came_while_nobody_was_there_is_obeyed(node: Node):
    worker = node.start()
    script = "trap 'echo stopped; exit 0' TERM; echo begun; while :; do sleep 0.05; done"
    trial = node.submit(steps=(Step(name="run", run=script),), inputs=())
    node.until(lambda: node.log(trial, "run") == b"begun\n")
    node.nursery.end(worker)
    node.world.execute("UPDATE trials SET desired = 'cancel', cancel_mode = 'graceful'")
    node.start()
    row = node.await_end(trial)
    assert (row["outcome"], row["attempts_used"]) == ("cancelled", 1)
    assert node.log(trial, "run") == b"begun\nstopped\n"


def test_sandbox_that_is_gone_costs_an_attempt(node: Node):
    worker = node.start()
    trial = node.submit(steps=(Step(name="run", run="echo begun; sleep 1"),), inputs=())
    node.until(lambda: node.log(trial, "run") == b"begun\n")
    node.nursery.end(worker)
    runtime = build_runtime("local", node.home / "runtimes")
    for handle in runtime.list():
        runtime.remove(handle)
    node.start()
    node.until(lambda: node.world.attempt(trial, 1)["state"] == "finished")
    assert node.world.attempt(trial, 1)["failure"]["code"] == "node_lost"


def test_orderly_stop_ends_every_sandbox_and_gives_back(node: Node):
    worker = node.start()
    trial = node.submit(steps=(Step(name="run", run="echo begun; sleep 60"),), inputs=())
    node.until(lambda: node.log(trial, "run") == b"begun\n")
    node.nursery.end(worker, signal.SIGINT)
    assert node.world.trial(trial)["state"] in {"retry_wait", "queued"}
    assert build_runtime("local", node.home / "runtimes").list() == []
    lock = node.home / "node" / "watchdog.lock"
    assert holders_of(lock) == []
    node.world.execute("UPDATE trials SET desired = 'cancel'")


def holders_of(path: Path) -> list[int]:
    found = []
    for descriptor in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if descriptor.samefile(path):
                found.append(int(descriptor.parts[2]))
    return found


@pytest.mark.docker
def test_containers_are_gone_on_with_as_well(make_node):
    require_docker()
    ensure_images()
    with make_node(runtime="docker") as node:
        worker = node.start(failpoints="worker.mid_log:kill9:2")
        trial = node.submit()
        node.nursery.wait(worker)
        node.start()
        check(node, trial)
