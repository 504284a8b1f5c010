import contextlib
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.json_body import MAX_DEPTH, parse_json
from core.errors import InvalidRequestError, PayloadTooLargeError
from services.problems import InvalidFieldsError

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(codec="ascii", exclude_characters="\0")), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(json_values)
def test_any_json_value_is_read_as_the_standard_parser_does(value):
    assert parse_json(json.dumps(value).encode()) == value
    assert parse_json(json.dumps(value, ensure_ascii=False).encode()) == value


@given(st.binary(max_size=200) | st.text(alphabet='[]{}",:\\0123.eE+-truefalsn ').map(str.encode))
def test_no_bytes_raise_anything_but_a_refusal(body):
    with contextlib.suppress(InvalidRequestError):
        parse_json(body)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"{'a': 1}", "not JSON"),
        (b'{"a": 1,}', "not JSON"),
        (b'"\xff"', "not UTF-8"),
        (b"NaN", "NaN"),
        (b'{"a": -Infinity}', "-Infinity"),
        (b'{"a": 1, "b": 2, "a": 3}', "a: appears twice"),
        (b'{"x": [{"a": 1, "a": 1}]}', "appears twice"),
        (rb'["\u0000"]', "NUL"),
        (rb'{"\u0000": 1}', "NUL"),
        (rb'["\ud800"]', "surrogates"),
        (rb'{"a": {"\udfff": 1}}', "surrogates"),
        (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), "deeper"),
        (b'{"a":' * (MAX_DEPTH + 1) + b"1" + b"}" * (MAX_DEPTH + 1), "deeper"),
        (b"1" * 10_000, "10000 digits"),
    ],
)
def test_bad_bodies_are_refused_with_the_reason(body, words):
    with pytest.raises(InvalidRequestError, match=words):
        parse_json(body)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"{", "body"),
        (b'"\xff"', "body"),
        (b"NaN", "body"),
        (b'{"jobs": [{}, {"steps": [{}, {"timeout": NaN}]}]}', "jobs[1].steps[1].timeout"),
        (b'{"jobs": [{"steps": [{}, {"timeout": ' + b"9" * 5000 + b"}]}]}", "jobs[0].steps[1].timeout"),
        (b'{"a": -' + b"9" * 5000 + b"}", "a"),
        (b'{"jobs": [{"env": {"A": 1, "B": 2, "A": 3}}]}', "jobs[0].env.A"),
        (rb'{"jobs": [{}, {"env": {"A": "\u0000"}}]}', "jobs[1].env.A"),
        (rb'{"jobs": [{"env": {"A": "\ud800"}}]}', "jobs[0].env.A"),
        (rb'{"labels": {"\udfff": "x"}}', "labels.\udfff"),
        (b'{"a": [1, "[,", {"b": 1, "c":' + b"[" * 62 + b"]" * 62 + b"}]}", "a[2].c" + "[0]" * 61),
        (b'{"a\\"b":' + b'{"x": 1, "k":' * 64 + b"1", 'a\\"b' + ".k" * 63),
        (b"[" * (MAX_DEPTH + 1), ("[0]" * MAX_DEPTH)[:200]),
        (b"]],," + b"[" * (MAX_DEPTH + 9), ("[0]" * MAX_DEPTH)[:200]),
        (b"[" + b"1," * 2_000_001 + b"1]", "body"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_wrong_in_a_body_is_named_by_its_place(body, field):
    with pytest.raises(InvalidRequestError) as caught:
        parse_json(body)
    assert caught.value.field == field


def test_everything_that_no_parser_should_take_is_told_at_once():
    with pytest.raises(InvalidFieldsError) as caught:
        parse_json(rb'{"a": NaN, "b": "\u0000", "c": [-Infinity, "\ud800", {"d": 1, "d": 2}]}')
    assert [problem.field for problem in caught.value.problems] == ["a", "b", "c[0]", "c[1]", "c[2].d"]


@pytest.mark.parametrize(
    "body",
    [
        b"[" * MAX_DEPTH + b"]" * MAX_DEPTH,
        b'["' + b"[" * 1000 + b'"]',
        rb'["\\u0000 \\ud800 \ud83d\ude00"]',
        b'["\\"[[[[", "' + b"{" * 100 + b'"]',
    ],
    ids=["deepest", "brackets in text", "escaped escapes", "escaped quotes"],
)
def test_harmless_look_alikes_are_accepted(body):
    assert parse_json(body) == json.loads(body)


@pytest.mark.parametrize(
    "body",
    [
        b"[" + b"[]," * 5_000_000 + b"1]",
        b"[" + b"1," * 5_000_000 + b"1]",
        b"[" * 5_000_000,
        b'"' + b'\\"' * 4_000_000,
        b'"\\' * 4_000_000,
        b'["' + rb"\ud800" * 500_000 + b'"]',
        b"[" + b'"\\ud800",' * 500_000 + b"1]",
        b"[" + b"NaN," * 500_000 + b"1]",
        b"{" + b'"a":1,' * 500_000 + b'"a":1}',
        b"[" + b'"a",' * 200_000 + b"[" * 100,
    ],
    ids=[
        "empty lists",
        "numbers",
        "depth",
        "quotes",
        "backslashes",
        "surrogates",
        "faults",
        "constants",
        "equal keys",
        "depth after texts",
    ],
)
def test_hostile_bodies_are_refused_quickly(body):
    # Its own work, not what other programs take of the machine meanwhile.
    started = time.process_time()
    with pytest.raises(InvalidRequestError):
        parse_json(body)
    assert time.process_time() - started < 2


def test_too_many_values_is_a_matter_of_size():
    with pytest.raises(PayloadTooLargeError):
        parse_json(b"[" + b"1," * 2_000_001 + b"1]")


def test_object_with_too_many_names_is_refused_by_its_field():
    many = ", ".join(f'"k{number}": 1' for number in range(10_001))
    with pytest.raises(InvalidFieldsError) as caught:
        parse_json(f'{{"jobs": [{{"env": {{{many}}}}}]}}'.encode())
    assert caught.value.field == "jobs[0].env"
    assert "10001 names" in caught.value.message
