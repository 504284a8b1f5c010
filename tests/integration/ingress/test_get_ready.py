"""A connection to execd is there before the first request for it comes."""

import threading
from uuid import uuid4

import pytest

from models.live_sandboxes import WireState
from tests.support.backends import answer_with, scripted_backend
from tests.support.execd import wait_for
from tests.support.ingress import EXECD_PORT, NODE, TOKEN, status_of

SHOWN = f"OpenSandbox-Secure-Access: {TOKEN}\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@pytest.fixture
def execd(ingress):
    with scripted_backend(answer_with(ANSWER)) as backend:
        ingress.runtime.ports[EXECD_PORT] = backend.port
        yield backend


def test_first_request_takes_the_connection_that_was_made_before(ingress, execd):
    ingress.get_ready(ingress.target.id, NODE)
    wait_for(lambda: ingress.runtime.connects == [EXECD_PORT])
    assert status_of(ingress.ask(EXECD_PORT, headers=SHOWN)) == 200
    assert ingress.runtime.connects == [EXECD_PORT]
    assert len(execd.received) == 1


def test_request_that_comes_meanwhile_waits_for_it(ingress, execd, monkeypatch):
    gate, connect = threading.Event(), ingress.runtime.connect
    began = threading.Event()

    def slowly(*arguments, **options):
        began.set()
        assert gate.wait(10)
        return connect(*arguments, **options)

    monkeypatch.setattr(ingress.runtime, "connect", slowly)
    ingress.get_ready(ingress.target.id, NODE)
    assert began.wait(10)
    answers = []
    asking = threading.Thread(target=lambda: answers.append(ingress.ask(EXECD_PORT, headers=SHOWN)))
    asking.start()
    wait_for(lambda: ingress.accessed)
    gate.set()
    asking.join(10)
    assert [status_of(answer) for answer in answers] == [200]
    assert ingress.runtime.connects == [EXECD_PORT]


def test_nothing_is_made_for_what_is_elsewhere_unknown_or_does_not_run(ingress, execd):
    ingress.get_ready(ingress.target.id, uuid4())
    ingress.get_ready(uuid4(), NODE)
    ingress.change(state=WireState.PAUSED)
    ingress.get_ready(ingress.target.id, NODE)
    ingress.change(state=WireState.RUNNING)
    assert status_of(ingress.ask(EXECD_PORT, headers=SHOWN)) == 200
    assert ingress.runtime.connects == [EXECD_PORT]
    assert ingress.accessed == [ingress.target.id]


def test_request_gets_through_when_nothing_listened_a_moment_before(ingress, execd):
    (port,) = ingress.runtime.ports.values()
    ingress.runtime.ports[EXECD_PORT] = 1
    ingress.get_ready(ingress.target.id, NODE)
    wait_for(lambda: ingress.runtime.connects)
    ingress.runtime.ports[EXECD_PORT] = port
    assert status_of(ingress.ask(EXECD_PORT, headers=SHOWN)) == 200
