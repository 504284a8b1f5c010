"""Plain Celery on Redis, the reference: a task that does nothing, and one that answers for round trips.

Started by `queue.py` as `celery -A benchmarks.celery_reference worker`; the broker comes by BENCH_REDIS_URL.
"""

import os
import time

import redis
from celery import Celery

app = Celery("reference", broker=os.environ["BENCH_REDIS_URL"])
app.conf.update(
    task_ignore_result=True,
    broker_transport_options={"global_keyprefix": "reference:"},
    worker_prefetch_multiplier=1,
    worker_hijack_root_logger=False,
)
_answers = redis.Redis.from_url(os.environ["BENCH_REDIS_URL"])


@app.task(name="noop")
def noop() -> None:
    """Do nothing."""


@app.task(name="answer")
def answer(key: str) -> None:
    """Tell the caller that the task started."""
    _answers.lpush(key, "1")


@app.task(name="wait")
def wait(seconds: float) -> None:
    """Hold a slot."""
    time.sleep(seconds)
