import pytest

from core.errors import UnauthenticatedError
from core.ids import new_id
from services.tenants import Authenticator, Principal

KEY = "sm_" + "a" * 40


class FakeEngine:
    """Counts look-ups; `authenticate` is replaced, so the connection is never used."""

    def __init__(self) -> None:
        self.begun = 0

    def begin(self):
        self.begun += 1
        return self

    def __enter__(self):
        return None

    def __exit__(self, *_):
        return None


@pytest.fixture
def lookups(monkeypatch):
    engine = FakeEngine()
    answers = {KEY: Principal(1, new_id())}

    def find(_connection, key):
        if key not in answers:
            raise UnauthenticatedError("no")
        return answers[key]

    monkeypatch.setattr("services.tenants.authenticate", find)
    return engine, answers


def test_a_good_key_is_remembered_for_five_seconds_only(lookups):
    engine, answers = lookups
    now = [100.0]
    authenticator = Authenticator(engine, monotonic=lambda: now[0])
    for _ in range(3):
        assert authenticator.authenticate(KEY) == answers[KEY]
    assert engine.begun == 1
    answers.clear()
    now[0] += 4.9
    authenticator.authenticate(KEY)
    now[0] += 0.2
    with pytest.raises(UnauthenticatedError):
        authenticator.authenticate(KEY)


def test_a_bad_key_is_never_remembered_and_a_malformed_one_never_looked_up(lookups):
    engine, answers = lookups
    known = answers.pop(KEY)
    authenticator = Authenticator(engine)
    with pytest.raises(UnauthenticatedError):
        authenticator.authenticate(KEY)
    answers[KEY] = known
    assert authenticator.authenticate(KEY) == known
    for bad in ("", "sm_", KEY + "\n", KEY[:-1] + "é", "x" * 100_000):
        with pytest.raises(UnauthenticatedError):
            authenticator.authenticate(bad)
    assert engine.begun == 2


def test_the_memory_is_bounded(lookups, monkeypatch):
    engine, answers = lookups
    monkeypatch.setattr("services.tenants._CACHE_ENTRIES", 10)
    authenticator = Authenticator(engine)
    for number in range(50):
        key = f"sm_{number:040d}"
        answers[key] = Principal(number, new_id())
        authenticator.authenticate(key)
    assert len(authenticator._known) <= 10
