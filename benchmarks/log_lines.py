"""Log lines per second, stored and read live, against XADD of the same chunks in the same run."""

import argparse
import asyncio
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from multiprocessing.queues import Queue
from pathlib import Path
from uuid import UUID

import psycopg
import redis

from core.database import create_database_engine
from core.ids import new_id
from launcher.embedded import EmbeddedServices, embedded_services
from migrations.migrate import upgrade
from services.live_log import LivePublisher
from services.log_hub import LogHub
from services.log_pump import LogWriter
from services.log_reading import LogChunkRow, LogFollower, LogKey

LINE = b"x" * 119 + b"\n"
LINES_PER_CHUNK = 64
CHUNK = LINE * LINES_PER_CHUNK
ATTEMPTS = 64
DEADLINE_SECONDS = 120.0
TENANT = 1
READY = 0


def main() -> None:
    """Run all measurements and print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--chunks", type=int, default=100, help="chunks of 64 lines that each of 64 attempts prints"
    )
    parser.add_argument("--repeat", type=int, default=5, help="rounds of each side, taken in turn")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="sandmill-bench-") as home,
        embedded_services(Path(home)) as services,
    ):
        upgrade(services.database_url)
        print(json.dumps(measure(services, arguments.chunks, arguments.repeat)))


def measure(services: EmbeddedServices, chunks: int, repeat: int) -> dict[str, object]:
    """Take the sides in turn, so that a busy minute hits all."""
    lines = ATTEMPTS * chunks * LINES_PER_CHUNK
    stored, live, reference = [], [], []
    print_all(services, 10, is_watched=False)  # warm
    for _ in range(repeat):
        reference.append(lines / xadd_seconds(services.redis_url, chunks))
        stored.append(lines / print_all(services, chunks, is_watched=False)[0])
        live.append(lines / max(print_all(services, chunks, is_watched=True)))
    return {
        "benchmark": "log_lines",
        "lines": lines,
        "attempts": ATTEMPTS,
        "xadd_64_line_chunks_lines_per_s": [round(value) for value in reference],
        "stored_lines_per_s": [round(value) for value in stored],
        "stored_and_live_lines_per_s": [round(value) for value in live],
        "stored_per_xadd": ratio(stored, reference),
        "stored_and_live_per_xadd": ratio(live, reference),
    }


def ratio(ours: list[float], reference: list[float]) -> float:
    """Give the middle of the ratios of each round."""
    return round(statistics.median(a / b for a, b in zip(ours, reference, strict=True)), 3)


def xadd_seconds(redis_url: str, chunks: int) -> float:
    """Put the chunks into one capped stream, a call each."""
    with closing(redis.Redis.from_url(redis_url)) as client:
        client.delete("reference")
        started = time.monotonic()
        for number in range(ATTEMPTS * chunks):
            client.xadd("reference", {"q": number, "d": CHUNK}, maxlen=1000, approximate=True)
        took = time.monotonic() - started
        client.delete("reference")
    return took


def print_all(services: EmbeddedServices, chunks: int, *, is_watched: bool) -> tuple[float, float]:
    """Let all attempts print; seconds until all is stored, and until a reader of all in another process has it all."""
    keys = [LogKey(new_id(), new_id(), 1) for _ in range(ATTEMPTS)]
    expected = ATTEMPTS * chunks * len(CHUNK)
    node_id = new_id()
    insert_attempts(services.database_url, keys, node_id)
    engine = create_database_engine(
        services.database_url, actor="worker:bench", pool_size=4, by_key_only=True
    )
    with closing(redis.Redis.from_url(services.redis_url, socket_timeout=2)) as client:
        publisher = LivePublisher(client)
        writer = LogWriter(engine, publisher.publish, node_id=node_id)
        pumps = [writer.open(key.attempt_id, key.trial_id, key.fence, cap_bytes=1 << 30) for key in keys]
        publisher.start()
        writer.start()
        with reading(services, keys if is_watched else []) as reader:
            started = time.monotonic()
            for _ in range(chunks):
                for pump in pumps:
                    pump.write("run", "stdout", CHUNK)
            summaries = [pump.close() for pump in pumps]
            stored_seconds = time.monotonic() - started
            close_logs(services.database_url, keys)
            heard = reader.get(timeout=DEADLINE_SECONDS)
            live_seconds = time.monotonic() - started
        writer.stop()
        publisher.stop()
    engine.dispose()
    if sum(summary.stored_bytes for summary in summaries) != expected or heard != expected * is_watched:
        raise RuntimeError("not all was stored, or read")
    return stored_seconds, live_seconds


def insert_attempts(database_url: str, keys: list[LogKey], node_id: UUID) -> None:
    """Make rows for the reader to find, without the trials that they belong to."""
    sql = (
        "INSERT INTO attempts (trial_id, fence, id, number, tenant_id, node_id, cpu_millicores, memory_bytes,"
        " start_deadline) VALUES (%s, %s, %s, 1, %s, %s, 1, 1, clock_timestamp())"
    )
    with psycopg.connect(database_url) as database, database.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")  # no foreign keys
        cursor.executemany(sql, [(key.trial_id, key.fence, key.attempt_id, TENANT, node_id) for key in keys])


def close_logs(database_url: str, keys: list[LogKey]) -> None:
    """Write the ends of the logs."""
    sql = "INSERT INTO log_heads (trial_id, fence, closed) VALUES (%s, %s, true)"
    with psycopg.connect(database_url) as database, database.cursor() as cursor:
        cursor.executemany(sql, [(key.trial_id, key.fence) for key in keys])


@contextmanager
def reading(services: EmbeddedServices, keys: list[LogKey]) -> Iterator["Queue[int]"]:
    """Follow all these logs in a process as the API is one; its queue gives the number of bytes after their ends."""
    context = multiprocessing.get_context("spawn")
    read: Queue[int] = context.Queue()
    arguments = (services.database_url, services.redis_url, keys, read)
    process = context.Process(target=follow_all, args=arguments, daemon=True)
    process.start()
    if read.get(timeout=DEADLINE_SECONDS) != READY:
        raise RuntimeError("the reader did not start")
    try:
        yield read
    finally:
        process.join(10)
        process.kill()


def follow_all(database_url: str, redis_url: str, keys: list[LogKey], read: "Queue[int]") -> None:
    """Be that process."""
    read.put(asyncio.run(_follow_all(database_url, redis_url, keys, read)))


async def _follow_all(database_url: str, redis_url: str, keys: list[LogKey], read: "Queue[int]") -> int:
    engine = create_database_engine(database_url, actor="bench", pool_size=10)
    hub = LogHub(redis_url)
    hub.start()
    listening = asyncio.Semaphore(0)

    async def follow(key: LogKey) -> int:
        size = 0
        async for item in LogFollower(engine, hub, TENANT, key).follow(after=-1):
            if item is None:
                listening.release()
            elif isinstance(item, LogChunkRow):
                size += len(item.data)
        return size

    tasks = [asyncio.create_task(follow(key)) for key in keys]
    for _ in tasks:
        await listening.acquire()
    read.put(READY)
    sizes = await asyncio.gather(*tasks)
    await hub.aclose()
    engine.dispose()
    return sum(sizes)


if __name__ == "__main__":
    main()
