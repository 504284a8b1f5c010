import os
import signal

import pytest

from launcher import termination
from launcher.termination import Termination


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_first_signal_interrupts_and_its_echo_does_nothing(number):
    with Termination() as ending:
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
        os.kill(os.getpid(), signal.SIGINT)
        assert not ending.is_hurried()


def test_later_signal_hurries(monkeypatch):
    monkeypatch.setattr(termination, "_ECHO_SECONDS", -1.0)
    with Termination() as ending:
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert ending.is_hurried()


def test_former_handlers_come_back():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    with Termination():
        assert signal.getsignal(signal.SIGTERM) != before[signal.SIGTERM]
    assert {number: signal.getsignal(number) for number in before} == before
