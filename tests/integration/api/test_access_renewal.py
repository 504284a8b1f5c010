"""A sandbox that is used lives on, if it was made so."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import create_engine

from core.ids import new_id
from services.access_renewal import AccessRenewer
from tests.integration.api.conftest import ApiWorld
from tests.integration.api.test_wire_calls import make, put_in_state
from tests.support.invariants import SANDBOXES_BY_HAND

pytestmark = [pytest.mark.usefixtures("no_waiting"), SANDBOXES_BY_HAND]

RENEWED = {"extensions": {"access.renew.extend.seconds": "300"}}


def note(api: ApiWorld, *sandbox_ids: Any) -> None:
    renewer = AccessRenewer(api.engine)
    for sandbox_id in sandbox_ids:
        renewer.note(sandbox_id)
    renewer.close()


def seconds_left(api: ApiWorld, sandbox_id: str) -> float:
    until = datetime.fromisoformat(api.client.get(f"/v1/sandboxes/{sandbox_id}").json()["expiresAt"])
    return (until - datetime.now(UTC)).total_seconds()


def test_a_use_moves_the_expiry_on(api: ApiWorld) -> None:
    box = make(api, timeout=60, **RENEWED)
    put_in_state(api, box, "Running")
    note(api, box, box)
    assert 290 < seconds_left(api, box) <= 300


@pytest.mark.parametrize(
    ("state", "changes", "seconds"),
    [
        ("Running", {"timeout": 60}, 60),
        ("Running", {"timeout": 1000, **RENEWED}, 1000),
        ("Paused", {"timeout": 60, **RENEWED}, 60),
        ("Pending", {"timeout": 60, **RENEWED}, 60),
    ],
    ids=["not asked for", "never backwards", "paused", "not running yet"],
)
def test_nothing_else_moves_it(api: ApiWorld, state: str, changes: dict[str, Any], seconds: int) -> None:
    box = make(api, **changes)
    put_in_state(api, box, state)
    note(api, box)
    assert seconds - 20 < seconds_left(api, box) <= seconds


def test_one_without_an_expiry_gets_none(api: ApiWorld) -> None:
    box = make(api, timeout=None, **RENEWED)
    put_in_state(api, box, "Running")
    note(api, box, new_id())
    assert "expiresAt" not in api.client.get(f"/v1/sandboxes/{box}").json()


def test_a_database_that_is_away_costs_the_use_alone(api: ApiWorld) -> None:
    renewer = AccessRenewer(create_engine("postgresql+psycopg://nobody@127.0.0.1:1/none"))
    started = datetime.now(UTC)
    for _ in range(2000):
        renewer.note(new_id())
    assert datetime.now(UTC) - started < timedelta(seconds=30)
    renewer.close()
    renewer.note(new_id())
