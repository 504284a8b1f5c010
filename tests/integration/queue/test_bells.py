import base64
import json
from typing import Any
from uuid import UUID

import redis

from core.broker import ATTEMPT_TASK, create_celery, node_queue
from core.ids import new_id
from core.metrics import BELLS_RUNG
from launcher.ports import find_free_port
from repositories.dispatch import Bell
from scheduler.bells import CeleryBellRinger


def messages(redis_url: str, node: UUID) -> list[dict[str, Any]]:
    """All messages in the queue of a node, oldest first."""
    with redis.Redis.from_url(redis_url) as client:
        return [json.loads(entry) for entry in reversed(client.lrange(f"sandmill:{node_queue(node)}", 0, -1))]


def body(message: dict[str, Any]) -> list[Any]:
    return json.loads(base64.b64decode(message["body"]))


def count(kind: str) -> float:
    return BELLS_RUNG.labels(kind)._value.get()


def test_each_bell_is_a_message_in_the_queue_of_its_node_in_order(redis_url: str):
    one, two = new_id(), new_id()
    bells = [Bell(new_id(), number, one if number % 3 else two) for number in range(200)]
    before = count("first")
    CeleryBellRinger(create_celery(redis_url)).ring(bells)
    for node in (one, two):
        rung = [[str(bell.trial_id), bell.fence] for bell in bells if bell.node_id == node]
        assert [body(message)[0] for message in messages(redis_url, node)] == rung
    assert count("first") == before + 200


def test_a_bell_is_the_message_that_celery_would_send(redis_url: str):
    app, node, trial = create_celery(redis_url), new_id(), new_id()
    CeleryBellRinger(app).ring([Bell(trial, 7, node)])
    app.send_task(ATTEMPT_TASK, args=(str(trial), 7), queue=node_queue(node), ignore_result=True)
    ours, celerys = messages(redis_url, node)
    assert body(ours) == body(celerys)
    for message in (ours, celerys):
        task = message["headers"].pop("id")
        assert message["headers"].pop("root_id") == task
        assert message["properties"].pop("correlation_id") == task
        # Where a result would go; there is none.
        message["properties"].pop("reply_to")
        message["properties"].pop("delivery_tag")
    assert ours == celerys


def test_a_broker_that_is_away_costs_the_bells_and_nothing_else():
    ringer = CeleryBellRinger(create_celery(f"redis://127.0.0.1:{find_free_port()}/0"))
    before = count("failed")
    ringer.ring([Bell(new_id(), 1, new_id()), Bell(new_id(), 1, new_id())])
    assert count("failed") == before + 2
