import pytest

from core.errors import UnauthenticatedError
from core.ids import new_id
from services.tenants import CONFIGURED_KEY_ID, Authenticator, Principal

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


@pytest.fixture
def default_tenant(monkeypatch):
    names = []
    monkeypatch.setattr("services.tenants.ensure_tenant", lambda _connection, name: names.append(name) or 7)
    return names


@pytest.mark.parametrize("key", ["a key of any form", KEY, "ключ"])
def test_the_key_of_the_settings_acts_for_the_default_tenant(lookups, default_tenant, key):
    engine, _ = lookups
    authenticator = Authenticator(engine, configured_key=key)
    for _ in range(3):
        assert authenticator.authenticate(key) == Principal(7, CONFIGURED_KEY_ID)
    assert (default_tenant, engine.begun) == (["default"], 1)
    assert key not in str(vars(authenticator))


def test_other_keys_hold_beside_the_one_of_the_settings(lookups, default_tenant):
    engine, answers = lookups
    authenticator = Authenticator(engine, configured_key="mine")
    assert authenticator.authenticate(KEY) == answers[KEY]
    for bad in ("", "min", "mine ", "MINE"):
        with pytest.raises(UnauthenticatedError):
            authenticator.authenticate(bad)
    assert default_tenant == []


def test_without_a_key_in_the_settings_the_empty_one_is_bad(lookups):
    engine, _ = lookups
    with pytest.raises(UnauthenticatedError):
        Authenticator(engine).authenticate("")


def test_callers_that_need_no_key_are_the_default_tenant_and_are_not_checked_again(lookups, default_tenant):
    engine, _ = lookups
    authenticator = Authenticator(engine)
    assert [authenticator.anonymous() for _ in range(3)] == [Principal(7, CONFIGURED_KEY_ID)] * 3
    assert engine.begun == 1
    authenticator.recheck(None)
    with pytest.raises(UnauthenticatedError):
        authenticator.recheck("gone")
    # What is remembered of them is no key.
    with pytest.raises(UnauthenticatedError):
        authenticator.authenticate("")
