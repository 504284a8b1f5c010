from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.cursors import CursorScope
from core.errors import InvalidRequestError


@given(st.binary(max_size=100))
def test_a_cursor_leads_back_to_its_position(position):
    scope = CursorScope("batches", 1)
    assert scope.decode(scope.encode(position)) == position


@pytest.mark.parametrize(
    "other",
    [
        CursorScope("jobs", 1, "a"),
        CursorScope("batches", 2, "a"),
        CursorScope("batches", 1, "b"),
        CursorScope("batches", 1),
        CursorScope("batches", 1, None),
    ],
    ids=["route", "tenant", "filter", "no filter", "empty filter"],
)
def test_a_cursor_of_another_list_is_refused(other):
    cursor = CursorScope("batches", 1, "a").encode_id(uuid4())
    with pytest.raises(InvalidRequestError):
        other.decode_id(cursor)


@given(st.text(max_size=100))
def test_made_up_cursors_are_refused(text):
    with pytest.raises(InvalidRequestError):
        CursorScope("batches", 1).decode_id(text)


def test_a_position_of_another_kind_is_refused():
    scope = CursorScope("batches", 1)
    with pytest.raises(InvalidRequestError):
        scope.decode_id(scope.encode(b"short"))
