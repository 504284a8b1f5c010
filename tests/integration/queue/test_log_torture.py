"""One attempt prints as fast as it can beside a hundred that print slowly, while readers come and go, the live channel
is cut, paused and flushed, and one reader does not read: every log is whole, and every reader has it once, in order."""

import base64
import hashlib
import itertools
import json
import random
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit
from uuid import UUID

import httpx
import pytest
from redis import Redis

from core.database import create_database_engine
from launcher.logs import rotate_log
from launcher.service import stop_services, wait_until_ready
from launcher.state import Home
from launcher.valkey import EmbeddedValkey
from repositories.log_chunks import Chunk
from runtimes.fake import FakeOutcome, FakeRuntime
from services import log_pump
from services.jobspec import Step
from services.live_log import LivePublisher
from tests.integration.api.conftest import ApiWorld, make_settings, open_api
from tests.support.queue import QueueWorld, make_spec
from tests.support.worker import Bench, running_bench

SLOW = 100
LINES = 20
LOUD_BYTES = 30 << 20
CAP_BYTES = 10 << 20
Run = tuple[str, bytes]


def loud_runs() -> Iterator[Run]:
    """Pieces as a pipe gives them, of both streams, up to LOUD_BYTES."""
    rng = random.Random(1)
    block = b"".join(b"%07d what a program prints that nobody stops\n" % number for number in range(4000))
    left = LOUD_BYTES
    while left:
        start = rng.randrange(len(block) - 65536)
        piece = block[start : start + min(left, rng.randint(1, 65536))]
        yield rng.choice(("stdout", "stderr")), piece
        left -= len(piece)


def slow_runs(number: int) -> Iterator[Run]:
    for line in range(LINES):
        yield ("stderr" if line % 3 == 2 else "stdout"), b"attempt %d line %d\n" % (number, line)


def joined(runs: Sequence[Run]) -> list[Run]:
    """Put together what follows each other in the same stream."""
    groups = itertools.groupby(runs, key=lambda run: run[0])
    return [(stream, b"".join(data for _, data in group)) for stream, group in groups]


@dataclass
class Source:
    """What the attempts print. A slow line notes after how many statements of the writer it was printed."""

    statements: int = 0
    largest: int = 0
    printed_at: dict[bytes, int] = field(default_factory=dict, repr=False)
    latest: int = 0

    def script(self, image: str, command) -> FakeOutcome:
        if command.shell == "loud":
            return FakeOutcome(output=loud_runs())
        return FakeOutcome(output=self.slow(int(command.env["TRIAL_INDEX"])))

    def slow(self, number: int) -> Iterator[Run]:
        for stream, data in slow_runs(number):
            self.printed_at[data] = self.statements
            yield stream, data
            time.sleep(0.15)

    def note(self, chunks: Sequence[Chunk]) -> None:
        """Called by the writer after each statement."""
        self.statements += 1
        self.largest = max(self.largest, sum(len(chunk.data) for chunk in chunks))
        for chunk in chunks:
            for line in chunk.data.splitlines(keepends=True) if chunk.data.startswith(b"attempt") else ():
                self.latest = max(self.latest, self.statements - self.printed_at[line])


@dataclass
class Reader:
    """Follows one log over and over until its end, from where it was cut off."""

    api: ApiWorld
    attempt_id: UUID
    rng: random.Random
    cuts_left: int = 12
    seqs: list[int] = field(default_factory=list)
    digest: "hashlib._Hash" = field(default_factory=hashlib.sha256)
    truncated: int | None = None

    def run(self) -> None:
        with self.api.new_client(key=self.api.key) as client:
            while self.truncated is None:
                headers = {"Last-Event-ID": str(self.seqs[-1])} if self.seqs else {}
                url = f"/v1/attempts/{self.attempt_id}/logs?follow=1"
                with client.stream("GET", url, headers=headers) as response:
                    assert response.status_code == 200
                    self._read(response)

    def _read(self, response: httpx.Response) -> None:
        cut_after = self.rng.randint(1, 40) if self.cuts_left > 0 else None
        for number, line in enumerate(line for line in response.iter_lines() if line.startswith("data: ")):
            if number == cut_after:
                self.cuts_left -= 1
                return  # in the middle of an event, with more on its way
            self.take(json.loads(line[6:]))

    def take(self, data: dict) -> None:
        if "seq" in data:
            self.seqs.append(data["seq"])
            self.digest.update(base64.b64decode(data["b64"]))
        else:
            self.truncated = data["truncated_bytes"]


class StalledReader(Reader):
    """Asks, and does not read until all is over."""

    def ask(self) -> None:
        address = urlsplit(self.api.url)
        self.socket = socket.create_connection((address.hostname, address.port), timeout=60)
        self.socket.sendall(
            f"GET /v1/attempts/{self.attempt_id}/logs?follow=1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            f"Authorization: Bearer {self.api.key}\r\n\r\n".encode()
        )

    def run(self) -> None:
        with self.socket, self.socket.makefile("rb") as stream:
            body = b"".join(_without_chunk_sizes(stream))
        for line in body.splitlines():
            if line.startswith(b"data: "):
                self.take(json.loads(line[6:]))


def _without_chunk_sizes(stream) -> Iterator[bytes]:
    while stream.readline() != b"\r\n":
        pass
    while size := int(stream.readline(), 16):
        yield stream.read(size)
        stream.readline()


@dataclass
class Saboteur:
    """Cuts all subscriptions, flushes, and lets the server stand still for a moment, again and again."""

    url: str
    done: threading.Event = field(default_factory=threading.Event)
    killed: int = 0

    def run(self) -> None:
        with closing(Redis.from_url(self.url)) as redis:
            while not self.done.wait(0.2):
                self.killed += redis.client_kill_filter(_type="pubsub")
                redis.flushall()
                redis.client_pause(100)


@pytest.fixture
def own_redis_url(tmp_path: Path) -> Iterator[str]:
    with Home(tmp_path / "redis") as home:
        valkey = EmbeddedValkey(home)
        rotate_log(home.logs / "valkey.log")
        try:
            valkey.start()
            wait_until_ready([valkey])
            yield valkey.url
        finally:
            stop_services([valkey])


@pytest.fixture
def torture_api(database_url: str, own_redis_url: str, tmp_path: Path) -> Iterator[ApiWorld]:
    with (
        open_api(make_settings(database_url, own_redis_url, tmp_path / "home")) as running,
        running.new_tenant() as api,
    ):
        yield api


def dispatched(bench: Bench, tenant: int) -> list[threading.Thread]:
    """Start the loud attempt and the slow ones; gives their threads."""
    for run, count in (("loud", 1), ("slow", SLOW)):
        spec = make_spec(key=run, steps=(Step(name="run", run=run),))
        bench.world.many_trials(tenant, count * [{"cpu_millicores": 10, "memory_bytes": 1 << 20}], spec=spec)
    while len(bench.world.bells.rung) <= SLOW:
        assert bench.world.dispatcher.tick()
    threads = [threading.Thread(target=bench.answer, args=(bell,)) for bell in bench.world.bells.rung]
    for thread in threads:
        thread.start()
    return threads


def join_all(threads: list[threading.Thread], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
        assert not thread.is_alive()


def peak_memory_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split("VmHWM:")[1].split()[0])


@pytest.mark.timeout(120)
def test_every_log_is_whole_and_every_reader_has_it_once_in_order(torture_api: ApiWorld, tmp_path: Path):
    api, source, rng = torture_api, Source(), random.Random(7)
    redis_url = api.settings.redis_url.get_secret_value()
    client = Redis.from_url(redis_url, socket_timeout=2)
    publisher = LivePublisher(client)
    untold = []

    def publish(chunks: Sequence[Chunk]) -> None:
        source.note(chunks)
        publisher.publish(chunks)
        untold.append(publisher.waiting_bytes)

    engine = create_database_engine(
        api.settings.database_url.get_secret_value(), actor="worker", pool_size=16
    )
    publisher.start()
    saboteur = Saboteur(redis_url)
    memory = peak_memory_bytes()
    with running_bench(
        QueueWorld(engine),
        FakeRuntime(source.script),
        tmp_path,
        publish=publish,
        log_cap_bytes=CAP_BYTES,
        slots=SLOW + 1,
    ) as bench:
        attempts = dispatched(bench, api.tenant_id)
        rows = api.rows(
            "SELECT a.id, a.trial_id, t.index FROM attempts a JOIN trials t ON t.id = a.trial_id"
            " JOIN jobs j ON j.id = t.job_id ORDER BY j.spec->'key', t.index"
        )
        loud, slow = rows[0], rows[1:]
        followed = [loud, loud, *slow[:12]]
        readers = [Reader(api, row["id"], random.Random(rng.random())) for row in followed]
        stalled = StalledReader(api, loud["id"], rng)
        stalled.ask()
        threads = [threading.Thread(target=reader.run) for reader in (saboteur, *readers)]
        for thread in threads:
            thread.start()
        join_all(attempts, 60)
        join_all(threads[1:], 60)
        saboteur.done.set()
        threads[0].join()
        stalled.run()
    publisher.stop()
    client.close()

    stored = {row["id"]: whole_log(api, row["trial_id"]) for row in rows}
    for row in slow:
        log = stored[row["id"]]
        assert joined(log.runs) == joined(list(slow_runs(row["index"])))
        assert log.truncated == 0
    printed = b"".join(data for _, data in loud_runs())
    kept = printed[: CAP_BYTES // 2] + printed[-CAP_BYTES // 2 :]
    assert stored[loud["id"]].digest == hashlib.sha256(kept).hexdigest()
    assert stored[loud["id"]].truncated == LOUD_BYTES - CAP_BYTES
    assert saboteur.killed > 0
    for reader in (*readers, stalled):
        log = stored[reader.attempt_id]
        assert reader.seqs == list(range(len(log.runs)))
        assert (reader.digest.hexdigest(), reader.truncated) == (log.digest, log.truncated)

    # A line waits for the statement that is under way, and is in the next: the loud attempt cannot push it back.
    assert source.latest <= 2
    assert source.largest <= log_pump._BATCH_BYTES + log_pump._CHUNK_BYTES * (SLOW + 1)
    assert max(untold) <= 8 << 20
    assert peak_memory_bytes() - memory < 400 << 20
    engine.dispose()


@dataclass(frozen=True)
class StoredWhole:
    runs: list[Run]
    digest: str
    truncated: int


def whole_log(api: ApiWorld, trial_id: UUID) -> StoredWhole:
    """Read a log from its table and check that its end says what is there."""
    chunks = api.rows(
        "SELECT seq, stream, bytes FROM log_chunks WHERE trial_id = %(t)s ORDER BY seq", t=trial_id
    )
    (head,) = api.rows("SELECT * FROM log_heads WHERE trial_id = %(t)s", t=trial_id)
    data = b"".join(chunk["bytes"] for chunk in chunks)
    assert [chunk["seq"] for chunk in chunks] == list(range(head["next_seq"]))
    assert (head["closed"], head["bytes"]) == (True, len(data))
    runs = [(chunk["stream"], chunk["bytes"]) for chunk in chunks]
    return StoredWhole(runs, hashlib.sha256(data).hexdigest(), head["truncated_bytes"])
