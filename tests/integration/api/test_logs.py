import asyncio
import base64
import contextlib
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from uuid import UUID

import httpx
import pytest
from redis import Redis

from core.ids import new_id
from repositories.log_chunks import Chunk, LogChunkRepository
from services.log_hub import CHANNEL, LogHub
from tests.integration.api.conftest import ApiWorld, RunningApi, first_trial, make_settings, open_api, submit
from tests.support.services import new_database

pytestmark = pytest.mark.breaks_invariants(
    "attempts_miscounted",
    "log_has_gap",
    "running_without_attempt",
    reason="attempts and logs are written by hand",
)


@pytest.fixture(scope="module")
def apart(postgres_url, migrated_template, redis_url, tmp_path_factory) -> Iterator[RunningApi]:
    """An application of this module's own: attempts, logs and nodes written by hand would be others' to wonder at."""
    home = tmp_path_factory.mktemp("logs") / "home"
    with (
        new_database(postgres_url, template=migrated_template) as url,
        open_api(make_settings(url, redis_url, home)) as running,
    ):
        yield running


@pytest.fixture
def api(apart: RunningApi) -> Iterator[ApiWorld]:
    with apart.new_tenant() as opened:
        yield opened


@dataclass
class Writer:
    """Writes a log as a worker does: store, then publish; each can be left out."""

    api: ApiWorld
    attempt_id: UUID
    trial_id: UUID
    fence: int = 1
    seq: int = 0
    redis: Redis = field(init=False)

    def __post_init__(self) -> None:
        self.redis = Redis.from_url(self.api.settings.redis_url.get_secret_value())

    def write(
        self, data: bytes, *, store: bool = True, publish: bool = True, step="run", stream="stdout"
    ) -> None:
        chunk = Chunk(
            self.attempt_id, self.trial_id, self.fence, self.seq, step, stream, datetime.now(UTC), data
        )
        self.seq += 1
        if store:
            with self.api.engine.begin() as connection:
                LogChunkRepository(connection).append([chunk])
        if publish:
            self.publish(chunk)

    def publish(self, chunk: Chunk) -> None:
        message = {
            "seq": chunk.seq,
            "t": chunk.at.isoformat(),
            "stream": chunk.stream,
            "step": chunk.step,
            "b64": base64.b64encode(chunk.data).decode(),
        }
        self.redis.publish(CHANNEL.format(attempt_id=self.attempt_id), json.dumps(message))

    def close(self, truncated: int = 0) -> None:
        self.api.rows(
            "INSERT INTO log_heads (trial_id, fence, next_seq, truncated_bytes, closed)"
            " VALUES (%(t)s, %(f)s, %(n)s, %(x)s, true)",
            t=self.trial_id,
            f=self.fence,
            n=self.seq,
            x=truncated,
        )

    def wait_for_readers(self, count: int = 1) -> None:
        """Wait until so many API processes have subscribed."""
        channel = CHANNEL.format(attempt_id=self.attempt_id)
        deadline = time.monotonic() + 10
        while self.redis.pubsub_numsub(channel)[0][1] != count:
            assert time.monotonic() < deadline, "nobody subscribed"
            threading.Event().wait(0.01)


def make_writer(api: ApiWorld) -> Writer:
    """An attempt of a new trial, made without a scheduler."""
    trial = first_trial(api.client, submit(api.client)["id"])
    node = api.world.session().node_id
    attempt_id = new_id()
    api.rows("UPDATE trials SET state = 'running', fence = 1 WHERE id = %(t)s", t=trial["id"])
    api.rows(
        "INSERT INTO attempts (trial_id, fence, id, number, tenant_id, node_id, cpu_millicores, memory_bytes,"
        " start_deadline) VALUES (%(t)s, 1, %(a)s, 1, %(me)s, %(n)s, 1, 1, clock_timestamp())",
        t=trial["id"],
        a=attempt_id,
        n=node,
    )
    return Writer(api, attempt_id, UUID(trial["id"]))


@contextlib.contextmanager
def make_second(api: ApiWorld) -> Iterator[Writer]:
    made = make_writer(api)
    yield made
    made.redis.close()


@pytest.fixture
def writer(api: ApiWorld) -> Iterator[Writer]:
    made = make_writer(api)
    yield made
    made.redis.close()


def events(response: httpx.Response) -> Iterator[tuple[str | None, str, dict]]:
    """Parse server-sent events: (id, event, data)."""
    identity, name, data = None, "message", None
    for line in response.iter_lines():
        if line.startswith(":"):
            continue
        if not line:
            if data is not None:
                yield identity, name, data
            identity, name, data = None, "message", None
        elif line.startswith("id: "):
            identity = line[4:]
        elif line.startswith("event: "):
            name = line[7:]
        elif line.startswith("data: "):
            data = json.loads(line[6:])


@contextlib.contextmanager
def follow(client: httpx.Client, writer: Writer, query: str = "", **headers: str):
    url = f"/v1/attempts/{writer.attempt_id}/logs?follow=1{query}"
    with client.stream("GET", url, headers=headers) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        yield events(response)


def test_a_page_gives_chunks_in_order_with_exact_bytes(api, writer):
    writer.write(b"one\n")
    writer.write(b"\xff\xfe", stream="stderr", step="verify")
    page = api.client.get(f"/v1/attempts/{writer.attempt_id}/logs").json()

    assert [(c["seq"], c["stream"], c["step"], c["text"]) for c in page["items"]] == [
        (0, "stdout", "run", "one\n"),
        (1, "stderr", "verify", "\ufffd\ufffd"),
    ]
    assert base64.b64decode(page["items"][1]["b64"]) == b"\xff\xfe"
    assert (page["next_cursor"], page["closed"]) == ("1", False)


def test_pages_go_on_until_the_log_is_closed(api, writer):
    for number in range(5):
        writer.write(b"%d" % number)
    writer.close(truncated=7)
    seen, after, pages = [], "-1", 0
    while after is not None:
        page = api.client.get(f"/v1/attempts/{writer.attempt_id}/logs?limit=2&after={after}").json()
        seen += [c["text"] for c in page["items"]]
        after, pages = page["next_cursor"], pages + 1
    assert (seen, pages) == (["0", "1", "2", "3", "4"], 3)
    assert (page["closed"], page["truncated_bytes"]) == (True, 7)


def test_a_page_is_bounded_in_bytes(api, writer):
    for _ in range(40):
        writer.write(b"x" * 65536, publish=False)
    page = api.client.get(f"/v1/attempts/{writer.attempt_id}/logs").json()
    assert 16 <= len(page["items"]) < 40
    assert page["next_cursor"] == str(page["items"][-1]["seq"])


def test_pages_are_filtered_by_step_and_stream(api, writer):
    writer.write(b"a", step="setup")
    writer.write(b"b", step="verify", stream="stderr")
    writer.write(b"c", step="verify")
    path = f"/v1/attempts/{writer.attempt_id}/logs"
    assert [c["text"] for c in api.client.get(f"{path}?step=verify").json()["items"]] == ["b", "c"]
    assert [c["text"] for c in api.client.get(f"{path}?step=verify&stream=stdout").json()["items"]] == ["c"]
    assert api.client.get(f"{path}?step=setup").json()["next_cursor"] == "2"


def test_characters_cut_by_a_chunk_end_come_out_whole(api, writer):
    euro = "€".encode()
    writer.write(b"a" + euro[:1])
    writer.write(b"!", stream="stderr")
    writer.write(euro[1:] + b"b")
    items = api.client.get(f"/v1/attempts/{writer.attempt_id}/logs").json()["items"]
    assert [c["text"] for c in items] == ["a", "!", "€b"]


def test_text_format_gives_the_bytes_alone(api, writer):
    writer.write(b"out\n")
    writer.write(b"\xff err\n", stream="stderr")
    writer.close()
    response = api.client.get(f"/v1/attempts/{writer.attempt_id}/logs?format=text")
    assert response.content == b"out\n\xff err\n"
    assert response.headers["content-type"].startswith("text/plain")
    assert response.headers["x-content-type-options"] == "nosniff"


def test_a_follower_gets_backlog_live_chunks_and_the_end(api, writer):
    writer.write(b"before")
    with follow(api.client, writer) as stream:
        assert next(stream)[2]["text"] == "before"
        writer.wait_for_readers()
        writer.write(b"live")
        identity, name, data = next(stream)
        assert (identity, name, data["text"]) == ("1", "message", "live")
        writer.close(truncated=3)
        assert next(stream) == (None, "end", {"truncated_bytes": 3})
        assert list(stream) == []


def test_live_chunks_arrive_at_once(api, writer):
    with follow(api.client, writer) as stream:
        writer.wait_for_readers()
        writer.write(b"0")
        next(stream)
        delays = []
        for number in range(20):
            started = time.monotonic()
            writer.write(b"%d" % number)
            next(stream)
            delays.append(time.monotonic() - started)
        assert sorted(delays)[10] < 0.1


@pytest.mark.parametrize("by", ["Last-Event-ID", "after"])
def test_a_reader_that_comes_back_misses_nothing_and_sees_nothing_twice(api, writer, by):
    for number in range(4):
        writer.write(b"%d" % number)
    writer.close()
    headers, query = ({by: "1"}, "") if by == "Last-Event-ID" else ({}, "&after=1")
    with follow(api.client, writer, query, **headers) as stream:
        assert [data.get("text") for _, _, data in stream] == ["2", "3", None]


def test_chunks_whose_message_was_lost_are_read_from_the_store_in_order(api, writer):
    with follow(api.client, writer) as stream:
        writer.wait_for_readers()
        for number in range(30):
            writer.write(b"%d " % number, publish=number % 3 == 0)
        writer.close()
        texts = [data["text"] for _, name, data in stream if name == "message"]
    assert texts == [f"{number} " for number in range(30)]


def test_a_gap_is_filled_at_once_even_while_more_comes(api, writer):
    enough = threading.Event()

    def go_on_writing():
        while not enough.is_set():
            writer.write(b"more")
            enough.wait(0.02)

    with follow(api.client, writer) as stream:
        writer.wait_for_readers()
        writer.write(b"0")
        next(stream)
        writer.write(b"lost", publish=False)
        source = threading.Thread(target=go_on_writing)
        started = time.monotonic()
        source.start()
        try:
            # Silence, at which the store is asked anyway, never comes.
            assert next(stream)[2]["text"] == "lost"
            assert time.monotonic() - started < 5
        finally:
            enough.set()
            source.join()


def test_messages_that_come_twice_or_late_are_dropped(api, writer):
    with follow(api.client, writer) as stream:
        writer.wait_for_readers()
        for number in range(10):
            writer.write(b"%d" % number, publish=False)
            chunk = Chunk(
                writer.attempt_id,
                writer.trial_id,
                1,
                number,
                "run",
                "stdout",
                datetime.now(UTC),
                b"%d" % number,
            )
            writer.publish(chunk)
            writer.publish(chunk)
        writer.close()
        texts = [data["text"] for _, name, data in stream if name == "message"]
    assert texts == [str(number) for number in range(10)]


def test_what_a_killed_worker_stored_untold_and_its_successor_goes_on_behind_comes_once(api, writer):
    with follow(api.client, writer) as stream:
        writer.wait_for_readers()
        writer.write(b"0 ")
        assert next(stream)[2]["text"] == "0 "
        writer.write(b"1 ", publish=False)
        writer.write(b"2 ", publish=False)  # here it is killed
        with api.engine.begin() as connection:
            stored = LogChunkRepository(connection).stored(writer.trial_id, writer.fence)
        assert (stored.next_seq, dict(stored.step_bytes)) == (3, {"run": 6})
        successor = Writer(api, writer.attempt_id, writer.trial_id, seq=stored.next_seq)
        successor.write(b"3 ")
        successor.close()
        successor.redis.close()
        assert [data.get("text") for _, _, data in stream] == ["1 ", "2 ", "3 ", None]


def test_nonsense_on_the_channel_harms_no_reader(api, writer):
    with follow(api.client, writer) as stream:
        writer.wait_for_readers()
        for message in (
            b"\xff",
            b"[]",
            b"{}",
            b'{"seq": "x"}',
            b'{"seq":1,"t":"x","stream":"a","step":"b","b64":"!"}',
        ):
            writer.redis.publish(CHANNEL.format(attempt_id=writer.attempt_id), message)
        writer.write(b"fine")
        writer.close()
        assert [data.get("text") for _, _, data in stream] == ["fine", None]


def test_the_log_of_a_lost_attempt_ends(api, writer):
    writer.write(b"x")
    for state in ("starting", "lost"):
        api.rows("UPDATE attempts SET state = %(s)s WHERE trial_id = %(t)s", s=state, t=writer.trial_id)
    with follow(api.client, writer) as stream:
        assert [name for _, name, _ in stream] == ["message", "end"]


def test_text_can_be_followed(api, writer):
    writer.write(b"a")
    with api.client.stream("GET", f"/v1/attempts/{writer.attempt_id}/logs?follow=1&format=text") as response:
        stream = response.iter_raw()
        assert next(stream) == b"a"
        writer.write(b"b", stream="stderr")
        writer.close()
        assert b"".join(stream) == b"b"


def test_many_followers_share_one_subscription_which_ends_with_them(api, writer):
    def read(results):
        with api.new_client(key=api.key) as client, follow(client, writer) as stream:
            results.append([data.get("text") for _, _, data in stream])

    results: list[list[str]] = []
    readers = [threading.Thread(target=read, args=(results,)) for _ in range(5)]
    for reader in readers:
        reader.start()
    writer.wait_for_readers(1)
    writer.write(b"x")
    writer.close()
    for reader in readers:
        reader.join(20)
    assert results == [["x", None]] * 5
    writer.wait_for_readers(0)


def test_readers_are_subscribed_again_after_the_connection_broke_and_those_that_come_then_too(api, writer):
    with follow(api.client, writer), make_second(api) as second:
        writer.wait_for_readers(1)
        for _ in range(5):
            writer.redis.client_kill_filter(_type="pubsub")
            with api.new_client(key=api.key) as client, follow(client, second):
                second.wait_for_readers(1)
                writer.wait_for_readers(1)
            second.wait_for_readers(0)


def test_a_reader_that_comes_while_the_connection_is_broken_does_not_repair_it(redis_url):
    """The task that reads from it does: two at once would read each other's answers."""

    async def scenario():
        hub = LogHub(redis_url)
        async with hub._client.pubsub() as pubsub:
            await pubsub.subscribe("log:-")
            await pubsub.connection.disconnect()
            hub._pubsub = pubsub
            asked = await hub._subscribe("log:x")
            connected = pubsub.connection.is_connected
        await hub.aclose()
        return asked, connected

    assert asyncio.run(scenario()) == (False, False)


def test_a_client_that_leaves_ends_its_subscription(api, writer):
    with follow(api.client, writer):
        writer.wait_for_readers(1)
    writer.wait_for_readers(0)


def test_following_works_without_redis(database_url, tmp_path):
    settings = make_settings(database_url, "redis://127.0.0.1:1/0", tmp_path / "home")
    with open_api(settings) as running, running.new_tenant() as api:
        writer = make_writer(api)
        writer.write(b"a", publish=False)
        with follow(api.client, writer) as stream:
            assert next(stream)[2]["text"] == "a"
            writer.write(b"b", publish=False)
            assert next(stream)[2]["text"] == "b"
            writer.close()
            assert next(stream)[1] == "end"


@pytest.mark.parametrize("identity", ["x", "1.5", "-2", "99999999999", "\u0661"])
def test_a_bad_last_event_id_is_refused(api, writer, identity):
    response = api.client.get(
        f"/v1/attempts/{writer.attempt_id}/logs", headers={"Last-Event-ID": identity.encode("utf-8")}
    )
    assert (response.status_code, response.json()["field"]) == (422, "Last-Event-ID")
