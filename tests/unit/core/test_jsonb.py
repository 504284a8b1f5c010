import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.jsonb import to_jsonb


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ("a\x00b", "a\ufffdb"),
        ("\\u0000", "\\u0000"),
        ("\\\x00", "\\\ufffd"),
        ("\ud800", "?"),
        ("ü\n", "ü\n"),
    ],
)
def test_what_postgres_refuses_is_replaced_and_nothing_else(value, stored):
    assert json.loads(to_jsonb({"k": value})) == {"k": stored}


@given(st.text())
def test_any_text_gives_valid_json_without_nul(value):
    assert "\x00" not in json.loads(to_jsonb(value))
