import itertools

from core.errors import DaemonError
from services.attempt_control import AttemptControl, StopReason


def test_graceful_cancel_stops_without_a_kill():
    kills = []
    control = AttemptControl()
    control.arm(lambda: kills.append(1))
    control.request(StopReason.CANCEL)
    assert control.stop.is_set()
    assert kills == []


def test_forced_cancel_kills_once():
    kills = []
    control = AttemptControl()
    control.arm(lambda: kills.append(1))
    control.request(StopReason.FORCE_CANCEL)
    control.request(StopReason.DISOWNED)
    assert kills == [1]


def test_kill_that_came_before_the_sandbox_is_carried_out_when_it_exists():
    kills = []
    control = AttemptControl()
    control.request(StopReason.DISOWNED)
    control.arm(lambda: kills.append(1))
    assert kills == [1]


def test_lost_lease_stays_the_reason():
    control = AttemptControl()
    control.request(StopReason.DISOWNED)
    control.request(StopReason.CANCEL)
    assert control.disowned


def test_deadline_kills_when_over_and_not_before():
    kills = []
    control = AttemptControl()
    control.arm(lambda: kills.append(1))
    control.set_deadline(60.0)
    control.check_deadline()
    assert kills == []
    control.set_deadline(-1.0)
    control.check_deadline()
    control.check_deadline()
    assert kills == [1]
    assert control.reason is StopReason.DEADLINE


def test_deadline_taken_back_does_not_kill():
    control = AttemptControl()
    control.set_deadline(-1.0)
    control.set_deadline(None)
    control.check_deadline()
    assert not control.stop.is_set()


def test_strongest_reason_stays_whatever_the_order():
    for reasons in itertools.permutations(StopReason):
        control = AttemptControl()
        control.arm(lambda: None)
        for reason in reasons:
            control.request(reason)
        assert control.reason is StopReason.DISOWNED
    control = AttemptControl()
    control.request(StopReason.FORCE_CANCEL)
    control.request(StopReason.CANCEL)
    assert control.reason is StopReason.FORCE_CANCEL
    control = AttemptControl()
    control.request(StopReason.CANCEL)
    control.request(StopReason.SHUTDOWN)
    assert control.reason is StopReason.CANCEL


def test_kill_that_failed_is_tried_again_and_troubles_nobody_else():
    tries = []

    def kill() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise DaemonError("engine away")

    control = AttemptControl()
    control.arm(kill)
    control.request(StopReason.DISOWNED)
    control.request(StopReason.DISOWNED)
    control.request(StopReason.DISOWNED)
    assert len(tries) == 2
