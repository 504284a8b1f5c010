"""What a terminal's client may say, by the reader of its text frames."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from execd.pty_client import _FIELDS, _FrameError, _read_frame

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(document=JSON | st.fixed_dictionaries({"type": st.sampled_from(sorted(_FIELDS)) | JSON}))
def test_no_document_breaks_the_reader_in_another_way(document: object) -> None:
    try:
        frame = _read_frame(json.dumps(document))
    except _FrameError:
        return
    assert frame["type"] in _FIELDS


@pytest.mark.parametrize("kind", sorted(_FIELDS))
def test_an_unknown_field_is_named_without_its_strange_characters(kind: str) -> None:
    with pytest.raises(_FrameError, match=r"sp\\xe4t: unknown field"):
        _read_frame(json.dumps({"type": kind, "spät": 1}))
