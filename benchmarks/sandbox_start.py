"""What a sandbox costs: start until execd answers, a command, the end, memory; each way of starting one.

References, taken in turn with the rest: fork and exec of /bin/true, and `docker run` of it where there is an engine.
"""

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.timing import fork_exec, median, summary, timed, timed_into
from core.errors import ExecdUnreachableError, RunFailure
from core.ids import new_id
from runtimes.base import EXECD_PORT, Command, ResourceLimits, Runtime, SandboxHandle, SandboxSpec
from runtimes.docker import DockerConfig, DockerRuntime
from runtimes.local.config import LocalConfig
from runtimes.local.runtime import LocalRuntime
from tests.support.images import BUSYBOX_IMAGE, docker_problem, ensure_images

LIMITS = ResourceLimits(cpu_millicores=1000, memory_bytes=256 << 20, disk_bytes=64 << 20, pids=64)
CREATE_SECONDS = 60
PAUSE_SECONDS = 0.05
"""Before a create of the sequence, so that the zygote has a fork ready, as it has on a node that is not overrun."""

COMMANDS_PER_SANDBOX = 10
AT_A_TIME = 8
CROWD = 4 * AT_A_TIME
IDLE_SANDBOXES = (20, 100)
"""At the same time: what all have in common is shared by as many."""

_BODY = b'{"argv":["/bin/true"]}'
_REQUEST = (
    b"POST /command HTTP/1.1\r\nHost: execd\r\nContent-Type: application/json\r\nAccept: text/event-stream\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(_BODY), _BODY)
)


@dataclass
class Subject:
    """A runtime under test, and the milliseconds measured so far. image: what its sandboxes start from."""

    name: str
    runtime: Runtime
    image: str
    creates: list[float] = field(default_factory=list)
    raw_commands: list[float] = field(default_factory=list)
    commands: list[float] = field(default_factory=list)
    removes: list[float] = field(default_factory=list)

    def create(self) -> SandboxHandle:
        """Start a sandbox; returns when its execd has answered."""
        spec = SandboxSpec(name=f"sm-{new_id()}-1", image=self.image, limits=LIMITS)
        return self.runtime.create(spec, timeout_seconds=CREATE_SECONDS)

    def one_life(self) -> None:
        """Start one, run commands in it both ways, end it."""
        time.sleep(PAUSE_SECONDS)
        with timed_into(self.creates):
            handle = self.create()
        try:
            if self.name != "docker":  # whose execd wants a token that the runtime alone knows
                self.raw_commands += run_raw(self.runtime, handle, COMMANDS_PER_SANDBOX)
            client = self.runtime.executions(handle)
            command = Command(argv=("/bin/true",))
            self.commands += timed(
                lambda: client.run(command, on_output=lambda *_: None), COMMANDS_PER_SANDBOX
            )
            client.close()
        finally:
            with timed_into(self.removes):
                self.runtime.remove(handle)


def main() -> None:
    """Measure each way this host offers and print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=30, help="sandboxes one after another, of each kind")
    parser.add_argument("--only", action="append", help="zygote, bwrap or docker; may be given several times")
    parser.add_argument("--docker-image", help="an image the local engine has; default: one of the tests")
    arguments = parser.parse_args()
    image = arguments.docker_image or default_image()
    result: dict[str, object] = {
        "benchmark": "sandbox_start",
        "cpus": os.cpu_count(),
        "load": os.getloadavg()[0],
    }
    with (
        tempfile.TemporaryDirectory(prefix="sandmill-bench-") as folder,
        subjects(Path(folder), image, arguments.only, result) as measured,
    ):
        result |= measure(measured, image, arguments.repeat)
    print(json.dumps(result))


def default_image() -> str | None:
    """Give an image of the tests; None without an engine."""
    if docker_problem() is not None:
        return None
    ensure_images()
    return BUSYBOX_IMAGE


@contextmanager
def subjects(
    folder: Path, image: str | None, only: list[str] | None, result: dict[str, object]
) -> Iterator[list[Subject]]:
    """Give those that work here, started once; why another does not goes into the result."""
    bundles = folder / "bundles"
    runtimes: dict[str, tuple[Runtime, str]] = {
        name: (LocalRuntime(LocalConfig(state_dir=folder / name, bundle_dir=bundles, executor=name)), "host")
        for name in ("zygote", "bwrap")
        if not only or name in only
    }
    if image is not None and (not only or "docker" in only):
        runtimes["docker"] = (
            DockerRuntime(DockerConfig(bundle_dir=bundles, state_dir=folder / "docker")),
            image,
        )
    working = []
    try:
        for name, (runtime, its_image) in runtimes.items():
            try:
                runtime.check()
                working.append(Subject(name, runtime, its_image))
            except RunFailure as error:
                result[name] = {"skipped": error.message}
        yield working
    finally:
        for runtime, _ in runtimes.values():
            runtime.close()


def measure(measured: list[Subject], image: str | None, repeat: int) -> dict[str, object]:
    """Live so many lives in turn, then the crowds; give the figures by name of the subject."""
    bare: list[float] = []
    containers: list[float] = []
    for _ in range(repeat):
        bare += timed(fork_exec)
        if image is not None:
            containers += timed(lambda: docker_run(image))
        for subject in measured:
            subject.one_life()
    references = {"fork_exec": median(bare)} | ({"docker_run": median(containers)} if containers else {})
    result: dict[str, object] = {f"{name}_ms_p50": round(value, 2) for name, value in references.items()}
    for subject in measured:
        result[subject.name] = {
            **summary("create", subject.creates, references),
            **crowd(subject, max(8, repeat)),
            **(
                summary("command_keep_alive", subject.raw_commands, references)
                if subject.raw_commands
                else {}
            ),
            **summary("command", subject.commands, references),
            **summary("remove", subject.removes, references),
            **idle(subject),
        }
    return result


def docker_run(image: str) -> None:
    """Run /bin/true in a container, and remove it."""
    argv = ["docker", "run", "--rm", "--network=none", "--memory=256m", "--cpus=1", "--pids-limit=64"]
    subprocess.run([*argv, image, "/bin/true"], check=True, capture_output=True)


def crowd(subject: Subject, count: int) -> dict[str, float]:
    """Start so many without a pause, one by one and then eight at a time."""
    bare: list[float] = []
    times: list[float] = []
    handles: list[SandboxHandle] = []

    def create() -> None:
        handles.append(subject.create())

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        try:
            for _ in range(count):
                bare += timed(fork_exec)
                with timed_into(times):
                    create()
        finally:
            remove_all(subject, handles)
        try:
            started = time.perf_counter()
            for future in [pool.submit(create) for _ in range(CROWD)]:
                future.result()
            seconds = time.perf_counter() - started
        finally:
            remove_all(subject, handles)
    return {
        **summary("back_to_back_create", times, {"fork_exec": median(bare)}),
        "eight_at_a_time_creates_per_second": round(CROWD / seconds, 1),
    }


def remove_all(subject: Subject, handles: list[SandboxHandle]) -> None:
    """Remove them, and empty the list."""
    while handles:
        subject.runtime.remove(handles.pop())


def idle(subject: Subject) -> dict[str, float]:
    """Give the memory of a sandbox that has answered and waits: its share of all its processes' pages, in 10^6 bytes.

    By the number of sandboxes that there are.
    """
    handles: list[SandboxHandle] = []
    found = {}
    try:
        for number in IDLE_SANDBOXES:
            while len(handles) < number:
                handles.append(subject.create())
            shares = [sum(pss_bytes(pid) for pid in processes_of(subject, handle)) for handle in handles]
            found[f"idle_pss_mb_of_{number}"] = round(sum(shares) / len(shares) / 1e6, 2)
    finally:
        remove_all(subject, handles)
    return found


def processes_of(subject: Subject, handle: SandboxHandle) -> set[int]:
    """Give the numbers of all processes of a sandbox on this host."""
    if subject.name == "docker":
        argv = ["docker", "inspect", "--format", "{{.State.Pid}}", handle.name]
        init = int(subprocess.run(argv, check=True, capture_output=True).stdout)
    else:
        init = int(handle.ref.split(".")[0])
    group = Path(f"/proc/{init}/cgroup").read_text()
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (folder / "cgroup").read_text() == group:
                found.add(int(folder.name))
    return found


def pss_bytes(pid: int) -> int:
    """Give a process's proportional share of memory, where it still runs."""
    with suppress(ProcessLookupError, FileNotFoundError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    return 0


def run_raw(runtime: Runtime, handle: SandboxHandle, times: int) -> list[float]:
    """Run /bin/true through execd over one connection that stays open; milliseconds of each."""
    with runtime.connect(handle, EXECD_PORT, timeout_seconds=CREATE_SECONDS) as connection:

        def run() -> None:
            connection.sendall(_REQUEST)
            answer = b""
            while not answer.endswith(b"\r\n0\r\n\r\n"):
                piece = connection.recv(65536)
                if not piece:
                    raise ExecdUnreachableError(f"execd hung up after {answer!r}")
                answer += piece

        return timed(run, times)


if __name__ == "__main__":
    main()
