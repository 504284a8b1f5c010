"""What live readers are told, over a real server and over one that does not answer."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from uuid import UUID

import pytest
from redis import Redis

from core.ids import new_id
from repositories.log_chunks import Chunk
from services.live_log import LivePublisher


def chunk(attempt: UUID, seq: int, data: bytes = b"x") -> Chunk:
    return Chunk(attempt, new_id(), 1, seq, "run", "stdout", datetime.now(UTC), data)


@contextmanager
def publishing(url: str) -> Iterator[LivePublisher]:
    with closing(Redis.from_url(url, socket_timeout=1, socket_connect_timeout=1)) as client:
        publisher = LivePublisher(client)
        publisher.start()
        try:
            yield publisher
        finally:
            publisher.stop()


def test_who_listens_gets_chunks_whole_and_who_comes_later_a_hint_first(redis_url):
    early, late = new_id(), new_id()
    with closing(Redis.from_url(redis_url)) as client, client.pubsub(ignore_subscribe_messages=True) as heard:

        def next_message(attempt: UUID) -> dict:
            message = heard.get_message(timeout=10)
            while message is None:
                message = heard.get_message(timeout=10)
            assert message["channel"] == f"log:{attempt}".encode()
            return json.loads(message["data"])

        heard.subscribe(f"log:{early}")
        with publishing(redis_url) as publisher:
            publisher.publish([chunk(early, 0), chunk(late, 0)])
            assert next_message(early)["seq"] == 0
            # The answers to that tell that nobody listens to the other one.
            publisher.publish([chunk(early, 1)])
            assert next_message(early)["b64"] == "eA=="
            heard.subscribe(f"log:{late}")
            while client.pubsub_numsub(f"log:{late}")[0][1] == 0:
                time.sleep(0.01)
            publisher.publish([chunk(late, 1), chunk(late, 2)])
            assert next_message(late) == {}
            publisher.publish([chunk(late, 3)])
            assert next_message(late)["seq"] == 3


@pytest.mark.timeout(30)
def test_a_server_that_does_not_answer_costs_neither_time_nor_memory():
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        port = deaf.getsockname()[1]
        with publishing(f"redis://127.0.0.1:{port}/0") as publisher:
            attempt = new_id()
            started = time.monotonic()
            for seq in range(2000):
                publisher.publish([chunk(attempt, seq, b"x" * 65536)])
                assert publisher.waiting_bytes <= 8 << 20
            # Each call would wait a second for its answer.
            assert time.monotonic() - started < 20
