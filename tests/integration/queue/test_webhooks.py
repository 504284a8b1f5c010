"""Messages are written with what they tell of, and reach a real receiver that checks their signature."""

import socket
import threading
from datetime import datetime

import pytest
from psycopg.types.json import Jsonb

from core.ids import new_id
from core.outbound import AddressGuard, parse_url
from core.sealing import SecretBox
from services.webhook_delivery import WebhookPolicy, WebhookSender
from services.webhook_events import WebhookEvent
from services.webhooks import NewWebhook, WebhookService
from tests.support.batches import BatchWorld, job
from tests.support.queue import QueueWorld
from tests.support.receiver import Receiver, wait_until

BOX = SecretBox("a key of at least thirty-two characters")
LOOPBACK = AddressGuard(["127.0.0.0/8"])
BOTH = (WebhookEvent.TRIAL_FINISHED, WebhookEvent.BATCH_FINISHED)


@pytest.fixture
def make_sender(world: QueueWorld):
    made = []

    def make(guard: AddressGuard = LOOPBACK, **policy) -> WebhookSender:
        sender = WebhookSender(world.engine, BOX, guard, WebhookPolicy(**{"timeout_seconds": 5.0, **policy}))
        made.append(sender)
        return sender

    yield make
    for sender in made:
        sender.close()


def add_webhook(world: QueueWorld, tenant: int, url: str, *, events=BOTH, name: str = "hook", secret=None):
    with world.engine.begin() as connection:
        return WebhookService(connection, tenant, box=BOX).create(NewWebhook(name, url, events, secret))


def finish(world: QueueWorld, tenant: int, *, count: int = 1, **end) -> list:
    trials = world.trials(tenant, count)
    seat = world.session(slots=100) if not hasattr(world, "seat") else world.seat
    world.seat = seat
    world.bells.rung.clear()
    world.dispatcher.tick()
    for bell in world.bells.rung:
        claimed = seat.claim(bell)
        assert seat.start(claimed)
        assert seat.finish(claimed, **end)
    return trials


def deliveries(world: QueueWorld) -> list[dict]:
    return world.execute("SELECT * FROM webhook_deliveries ORDER BY id")


def make_due(world: QueueWorld) -> None:
    world.execute("UPDATE webhook_deliveries SET next_try_at = clock_timestamp() WHERE state = 'pending'")


def settle(world: QueueWorld, sender: WebhookSender) -> None:
    """Send what is due and wait until it is written down."""
    sent = sender.tick()
    assert sent
    wait_until(lambda: not sender._in_flight)


def test_end_of_a_trial_and_of_its_batch_arrive_signed(world, make_sender):
    tenant = world.tenant()
    with Receiver() as receiver:
        made = add_webhook(world, tenant, receiver.url())
        trial = finish(world, tenant, rewards='{"reward": 1.0}')[0]
        world.end_batches()
        settle(world, make_sender(public_url="https://mill.example.org"))
        by_type = {m.verify(made.secret)["type"]: m for m in receiver.wait(2)}
        data = by_type["trial.finished"].verify(made.secret)["data"]
        assert (data["trial_id"], data["outcome"], data["job_key"], data["rewards"]) == (
            str(trial),
            "passed",
            "job",
            {"reward": 1.0},
        )
        assert data["links"]["trial"] == f"https://mill.example.org/v1/trials/{trial}"
        batch = by_type["batch.finished"].verify(made.secret)["data"]
        assert (batch["trials"], batch["outcomes"]) == (1, {"passed": 1})
        message = by_type["trial.finished"]
        assert (message.path, message.headers["Host"]) == ("/hooks?from=test", f"127.0.0.1:{receiver.port}")
    assert [(row["state"], row["tries"], row["last_status"]) for row in deliveries(world)] == [
        ("delivered", 1, 204)
    ] * 2


def test_batch_tells_the_outcomes_that_count_and_is_told_again_after_a_retry(world):
    batches = BatchWorld.make(world)
    add_webhook(world, batches.tenant, "http://127.0.0.1:9/", events=(WebhookEvent.BATCH_FINISHED,))
    batch = batches.submit(job("steady"), job("shaky"))
    batches.run(shaky="error")
    batches.verb("retry", "batch", batch, outcomes=("error",))
    batches.run()
    told = [row["payload"]["data"] for row in deliveries(world)]
    assert [(data["trials"], data["outcomes"]) for data in told] == [
        (2, {"passed": 1, "error": 1}),
        (2, {"passed": 2}),
    ]


def test_message_and_end_are_committed_together_or_not_at_all(world):
    tenant = world.tenant()
    add_webhook(world, tenant, "http://127.0.0.1:9/")
    trial = world.trials(tenant)[0]
    connection = world.engine.connect()
    end = "UPDATE trials SET state = 'finished', outcome = 'cancelled', finished_at = now() WHERE id = %(id)s"
    connection.exec_driver_sql(end, {"id": trial})
    connection.rollback()
    assert deliveries(world) == []
    connection.exec_driver_sql(end, {"id": trial})
    connection.commit()
    connection.close()
    assert [row["subject_id"] for row in deliveries(world)] == [trial]


def test_only_who_asked_for_it_hears_of_it(world):
    mine, other = world.tenant("mine"), world.tenant("other")
    add_webhook(world, mine, "http://127.0.0.1:9/", events=(WebhookEvent.BATCH_FINISHED,))
    add_webhook(world, mine, "http://127.0.0.1:9/", events=(), name="secret alone")
    add_webhook(world, other, "http://127.0.0.1:9/")
    finish(world, mine)
    assert deliveries(world) == []
    world.end_batches()
    assert [(row["tenant_id"], row["event"]) for row in deliveries(world)] == [(mine, "batch.finished")]


def test_failed_message_is_tried_again_with_the_same_id_and_body(world, make_sender):
    tenant = world.tenant()
    sender = make_sender()
    with Receiver((500, {}), (503, {"Retry-After": "3600"}), (200, {})) as receiver:
        made = add_webhook(world, tenant, receiver.url(), events=BOTH[:1])
        finish(world, tenant)
        waits = []
        for _ in range(3):
            settle(world, sender)
            waits += world.execute(
                "SELECT state, tries, last_status,"
                " extract(epoch FROM next_try_at - clock_timestamp())::float8 AS wait FROM webhook_deliveries"
            )
            make_due(world)
        assert [(row["state"], row["tries"], row["last_status"]) for row in waits] == [
            ("pending", 1, 500),
            ("pending", 2, 503),
            ("delivered", 3, 200),
        ]
        assert 0 < waits[0]["wait"] <= 6.25
        assert 3500 < waits[1]["wait"] <= 3600
        messages = receiver.wait(3)
        assert len({(m.headers["webhook-id"], m.body) for m in messages}) == 1
        messages[-1].verify(made.secret)


def test_message_nobody_takes_becomes_a_dead_letter_that_can_be_sent_again(world, make_sender):
    tenant = world.tenant()
    sender = make_sender()
    with Receiver((400, {})) as receiver:
        add_webhook(world, tenant, receiver.url(), events=BOTH[:1])
        finish(world, tenant)
        for _ in range(11):
            make_due(world)
            settle(world, sender)
        row = deliveries(world)[0]
        assert (row["state"], row["tries"], row["last_error"]) == ("dead", 11, "the receiver answered 400")
        assert sender.tick() == 0
        receiver.answers = [(200, {})]
        with world.engine.begin() as connection:
            again = WebhookService(connection, tenant, box=BOX).redeliver(row["id"])
        assert (again.state, again.tries) == ("pending", 0)
        settle(world, sender)
        assert [(r["id"], r["state"]) for r in deliveries(world)] == [(row["id"], "delivered")]


def test_receiver_that_is_gone_is_told_nothing_more(world, make_sender):
    tenant = world.tenant()
    with Receiver((410, {})) as receiver:
        made = add_webhook(world, tenant, receiver.url(), events=BOTH[:1])
        finish(world, tenant, count=2)
        settle(world, make_sender(parallel=4))
        assert {row["state"] for row in deliveries(world)} == {"dead"}
        finish(world, tenant)
        assert len(deliveries(world)) == 2
        with world.engine.begin() as connection:
            assert WebhookService(connection, tenant, box=BOX).enable(made.row.id).disabled_at is None
        finish(world, tenant)
        assert len(deliveries(world)) == 3


def test_redirect_is_a_failure_and_is_not_followed(world, make_sender):
    tenant = world.tenant()
    with Receiver() as inner, Receiver((307, {"Location": inner.url()})) as receiver:
        add_webhook(world, tenant, receiver.url(), events=BOTH[:1])
        finish(world, tenant)
        settle(world, make_sender())
        assert deliveries(world)[0]["last_status"] == 307
        assert (len(receiver.messages), inner.messages) == (1, [])


def test_address_is_checked_again_at_every_delivery(world, make_sender):
    tenant = world.tenant()
    with Receiver() as receiver:
        # Taken while the operator allowed it; since then the name, or the settings, have changed.
        add_webhook(world, tenant, receiver.url("localhost"), events=BOTH[:1])
        finish(world, tenant)
        settle(world, make_sender(AddressGuard()))
        assert deliveries(world)[0]["last_error"] == "must begin with https://"
        assert receiver.messages == []


def test_connection_goes_to_the_address_that_was_checked(world, make_sender):
    class Rebound(AddressGuard):
        """As if the name led here when it was looked up, and elsewhere afterwards."""

        def resolve(self, url, *, field=None):
            assert url.host == "rebinding.invalid"
            return "127.0.0.1"

    tenant = world.tenant()
    with Receiver() as receiver:
        add_webhook(world, tenant, receiver.url("rebinding.invalid"), events=BOTH[:1])
        finish(world, tenant)
        settle(world, make_sender(Rebound()))
        assert receiver.wait(1)[0].headers["Host"] == f"rebinding.invalid:{receiver.port}"


def test_slow_receiver_delays_no_other(world, make_sender):
    slow_tenant, quick_tenant = world.tenant("slow"), world.tenant("quick")
    release = threading.Event()
    sender = make_sender(parallel=8, timeout_seconds=30.0)
    with Receiver() as slow, Receiver() as quick:
        slow.before_answer = lambda: release.wait(20)
        add_webhook(world, slow_tenant, slow.url(), events=BOTH[:1])
        finish(world, slow_tenant, count=30)
        sender.tick()
        slow.wait(2)
        # Everything is due, nobody has answered; what comes now is sent at once.
        add_webhook(world, quick_tenant, quick.url(), events=BOTH[:1])
        finish(world, quick_tenant, count=3)
        wait_until(lambda: (sender.tick(), len(quick.messages) == 3)[1])
        assert len(slow.messages) == 2
        release.set()
        wait_until(lambda: (sender.tick(), len(slow.messages) == 30)[1])
        wait_until(lambda: not sender._in_flight)
    assert {row["state"] for row in deliveries(world)} == {"delivered"}


def test_many_receivers_of_one_tenant_leave_room_for_others(world, make_sender):
    tenant = world.tenant("many")
    release = threading.Event()
    sender = make_sender(parallel=8, timeout_seconds=30.0)
    receivers = [Receiver() for _ in range(6)]
    for number, receiver in enumerate(receivers):
        receiver.before_answer = lambda: release.wait(20)
        receiver.__enter__()
        add_webhook(world, tenant, receiver.url(), events=BOTH[:1], name=f"hook{number}")
    finish(world, tenant, count=3)
    sender.tick()
    assert len(sender._in_flight) == 4
    release.set()
    wait_until(lambda: (sender.tick(), {row["state"] for row in deliveries(world)} == {"delivered"})[1])
    for receiver in receivers:
        receiver.__exit__()


def test_two_senders_send_each_message_once(world, make_sender):
    tenant = world.tenant()
    senders = [make_sender(parallel=8) for _ in range(2)]
    with Receiver() as receiver:
        add_webhook(world, tenant, receiver.url(), events=BOTH[:1])
        finish(world, tenant, count=12)
        wait_until(
            lambda: ([s.tick() for s in senders], all(r["state"] == "delivered" for r in deliveries(world)))[
                1
            ]
        )
        assert len(receiver.messages) == len({m.headers["webhook-id"] for m in receiver.messages}) == 12


def test_message_of_a_sender_that_died_is_sent_again_and_its_late_result_is_void(world, make_sender):
    tenant = world.tenant()
    dead, alive = make_sender(), make_sender()
    hang = threading.Event()
    with Receiver() as receiver:
        receiver.before_answer = lambda: hang.wait(5)
        add_webhook(world, tenant, receiver.url(), events=BOTH[:1])
        finish(world, tenant)
        dead.tick()
        receiver.wait(1)
        assert alive.tick() == 0
        make_due(world)
        receiver.answers = [(500, {})]
        alive.tick()
        receiver.wait(2)
        hang.set()
        wait_until(lambda: not dead._in_flight and not alive._in_flight)
    row = deliveries(world)[0]
    assert (row["state"], row["tries"], row["last_status"]) == ("pending", 2, 500)


def test_receiver_that_drips_is_cut_off(world, make_sender):
    tenant = world.tenant()
    server = socket.create_server(("127.0.0.1", 0))
    stop = threading.Event()

    def drip() -> None:
        peer, _ = server.accept()
        with peer:
            peer.sendall(b"HTTP/1.1 200 OK\r\n")
            while not stop.wait(0.05):
                try:
                    peer.sendall(b"X: y\r\n")
                except OSError:
                    return

    thread = threading.Thread(target=drip)
    thread.start()
    add_webhook(world, tenant, f"http://127.0.0.1:{server.getsockname()[1]}/", events=BOTH[:1])
    finish(world, tenant)
    settle(world, make_sender(timeout_seconds=0.5))
    assert deliveries(world)[0]["last_error"] == "no answer within 0.5 s"
    stop.set()
    thread.join()
    server.close()


def test_secret_is_sealed_at_rest_and_rotates_with_both_signing(world, make_sender):
    tenant = world.tenant()
    sender = make_sender()
    with Receiver() as receiver:
        made = add_webhook(world, tenant, receiver.url(), events=BOTH[:1])
        stored = world.execute("SELECT secret::text AS s, e::text AS all FROM webhook_endpoints e")[0]
        assert made.secret not in stored["all"]
        assert made.secret.encode().hex() not in stored["s"]
        with world.engine.begin() as connection:
            rotated = WebhookService(connection, tenant, box=BOX).rotate(made.row.id, None)
        finish(world, tenant)
        settle(world, sender)
        message = receiver.wait(1)[0]
        assert rotated.secret != made.secret
        message.verify(rotated.secret)
        message.verify(made.secret)
        world.execute("UPDATE webhook_endpoints SET previous_until = clock_timestamp()")
        finish(world, tenant)
        settle(world, sender)
        assert " " not in receiver.wait(2)[1].headers["webhook-signature"]


def test_sealed_secret_in_the_place_of_another_is_refused(world, make_sender):
    tenant = world.tenant()
    with Receiver() as receiver:
        add_webhook(world, tenant, receiver.url(), events=BOTH[:1])
        other = add_webhook(world, tenant, receiver.url(), events=(), name="other")
        world.execute(
            "UPDATE webhook_endpoints SET secret = (SELECT secret FROM webhook_endpoints WHERE id = %(id)s)",
            id=other.row.id,
        )
        finish(world, tenant)
        settle(world, make_sender())
        assert "SANDMILL_SECRET_KEY" in deliveries(world)[0]["last_error"]
        assert receiver.messages == []


def test_deleted_webhook_gives_up_what_waits(world, make_sender):
    tenant = world.tenant()
    made = add_webhook(world, tenant, "http://127.0.0.1:9/", events=BOTH[:1])
    finish(world, tenant)
    with world.engine.begin() as connection:
        WebhookService(connection, tenant, box=BOX).delete(made.row.id)
    assert [(row["state"], row["last_error"]) for row in deliveries(world)] == [("dead", "webhook deleted")]
    add_webhook(world, tenant, "http://127.0.0.1:9/")  # the name is free again


def test_ids_the_database_makes_ascend_as_ours_do(world):
    made = [new_id(), world.execute("SELECT new_uuid7() AS id")[0]["id"]]
    assert made[1].version == 7
    assert made[1].variant == made[0].variant
    assert abs((made[1].int >> 80) - (made[0].int >> 80)) < 5000


def test_payload_stays_as_it_was_written(world):
    tenant = world.tenant()
    add_webhook(world, tenant, "http://127.0.0.1:9/", events=BOTH[:1])
    failure = Jsonb({"class": "task", "code": "nonzero_exit", "message": "secret words of the step"})
    finish(world, tenant, outcome="failed", failure=failure)
    data = deliveries(world)[0]["payload"]["data"]
    assert data["failure"] == {"class": "task", "code": "nonzero_exit"}
    assert parse_url("http://127.0.0.1:9/", field="url").origin == deliveries(world)[0]["target"]


def test_a_message_that_a_delete_did_not_see_is_given_up_and_not_sent(world, make_sender):
    tenant = world.tenant()
    with Receiver() as receiver:
        add_webhook(world, tenant, receiver.url(), events=(WebhookEvent.TRIAL_FINISHED,))
        finish(world, tenant)
        world.execute("UPDATE webhook_endpoints SET deleted_at = clock_timestamp()")
        make_sender().tick()
        (row,) = deliveries(world)
        assert (row["state"], row["tries"], row["last_error"]) == ("dead", 0, "webhook deleted")
        assert row["finished_at"] is not None
        assert receiver.messages == []


def test_a_webhook_that_was_off_says_since_when_it_is_on_again(world):
    tenant = world.tenant()
    add_webhook(world, tenant, "http://127.0.0.1:9/")
    (row,) = world.execute("SELECT id, enabled_at FROM webhook_endpoints")

    def enable() -> datetime:
        with world.engine.begin() as connection:
            WebhookService(connection, tenant, box=BOX).enable(row["id"])
        return world.execute("SELECT enabled_at FROM webhook_endpoints")[0]["enabled_at"]

    assert enable() == row["enabled_at"]
    world.execute("UPDATE webhook_endpoints SET disabled_at = clock_timestamp(), disabled_reason = 'gone'")
    assert enable() > row["enabled_at"]
