"""What an ingress counts."""

import pytest

from core.metrics import REGISTRY
from tests.support.backends import answer_with, scripted_backend
from tests.support.execd import wait_for
from tests.support.ingress import read_until, status_of


class Counted:
    """How far the counters are from where they were."""

    def __init__(self):
        self._before = dict(self._now())

    def __call__(self):
        return {
            name: value - self._before.get(name, 0.0)
            for name, value in self._now()
            if value != self._before.get(name, 0.0)
        }

    @staticmethod
    def _now():
        for family in REGISTRY.collect():
            for sample in family.samples:
                if sample.name.endswith(("relayed_total", "refused_total", "connect_seconds_count")):
                    name = sample.name.removeprefix("sandmill_ingress_")
                    yield (name, *sample.labels.values()), sample.value


@pytest.fixture
def counted():
    return Counted()


@pytest.mark.parametrize(
    ("answer", "name"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", "2xx"),
        (b"HTTP/1.1 418 Teapot\r\nContent-Length: 0\r\n\r\n", "4xx"),
        (b"HTTP/1.1 599 Own\r\nContent-Length: 0\r\n\r\n", "5xx"),
    ],
)
def test_answers_of_programs_are_counted_by_class(ingress, counted, answer, name):
    with scripted_backend(answer_with(answer)) as backend:
        ingress.ask(backend.port)
    assert counted() == {("relayed_total", name): 1.0, ("connect_seconds_count",): 1.0}


def test_refusals_are_counted_by_status(ingress, counted):
    assert status_of(ingress.say(b"GET /nobody HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")) == 404
    assert status_of(ingress.ask(1)) == 502
    assert status_of(ingress.say(b"nonsense\r\n\r\n")) == 400
    assert counted() == {("refused_total", status): 1.0 for status in ("400", "404", "502")}


def test_an_answer_that_breaks_is_not_a_success_of_two_kinds(ingress, counted):
    half = answer_with(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")
    with scripted_backend(half) as backend:
        ingress.ask(backend.port)
    assert counted()[("relayed_total", "2xx")] == 1.0
    assert not any(name[0] == "refused_total" for name in counted())


def test_open_connections_are_told(ingress):
    def opened():
        return REGISTRY.get_sample_value("sandmill_ingress_connections")

    with ingress.connect() as one, ingress.connect() as two:
        for client in (one, two):
            client.sendall(b"GET /status.ok HTTP/1.1\r\nHost: h\r\n\r\n")
            read_until(client, b"OK")
        assert opened() == 2.0
    wait_for(lambda: opened() == 0.0)
