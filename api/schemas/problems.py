"""Turns what Pydantic found into fields and sentences of ours."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import ErrorDetails

from api.schemas.fields import PATTERN_WORDS
from services.problems import Problem

__all__ = ["MAX_FIELD_CHARS", "describe", "to_field", "to_problem"]

MAX_FIELD_CHARS = 200

NOT_YET = frozenset({
    "build", "dedupe", "fresh", "on_timeout", "secrets", "snapshot", "stdin", "user", "verify",
})  # fmt: skip
"""Fields of the job model that this release does not have: told apart from a slip of the pen."""

_VERDICT_KINDS = frozenset({"exit_code", "reward", "junit", "log"})
_WORDS = {
    "extra_forbidden": "unknown field",
    "missing": "required",
    "string_type": "must be text",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "finite_number": "must be a finite number",
    "int_parsing": "must be a whole number",
    "int_parsing_size": "is too large a number",
    "bool_parsing": "must be true or false",
    "uuid_parsing": "must be a UUID",
    "union_tag_not_found": "needs the field 'from': exit_code, reward, junit or log",
    # What Pydantic puts between braces comes from the field itself, so it is ours.
    "literal_error": "must be {expected}",
    "union_tag_invalid": "'from' must be one of {expected_tags}",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "may have at most {max_length} characters",
    "too_short": "needs at least {min_length}",
    "too_long": "may have at most {max_length} entries",
}
_ONE_NEEDED = {
    "argv": "at least one word is needed",
    "jobs": "at least one job is needed",
    "pass": "at least one exit code is needed",
    "steps": "at least one step is needed",
}


def to_problem(error: ErrorDetails, *, prefix: Sequence[str | int] = ()) -> Problem:
    """Give one problem. prefix: where the checked value lies in the request."""
    location = [*prefix, *_strip_tags(error["loc"])]
    return Problem(to_field(location), describe(error))


def to_field(location: Sequence[str | int]) -> str:
    """Write a place as `jobs[3].steps[0].timeout`; the whole body is `body`."""
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text[:MAX_FIELD_CHARS] or "body"


def describe(error: ErrorDetails) -> str:
    """Say in words what is wrong, never repeating the value itself."""
    kind = error["type"]
    context: Mapping[str, Any] = error.get("ctx", {})
    if kind == "value_error":
        return str(context["error"])
    name = str(error["loc"][-1]) if error["loc"] else ""
    words = _words_of_field(kind, name, context) or _WORDS.get(kind)
    if words is None:
        return _lower_first(error["msg"].replace("Input should", "must"))
    return words.format_map({name: _plain(value) for name, value in context.items()})


def _words_of_field(kind: str, name: str, context: Mapping[str, Any]) -> str | None:
    """Give the words for what depends on the field; None where those of the kind do."""
    if kind == "extra_forbidden" and name in NOT_YET:
        return "not supported yet"
    if kind == "literal_error" and name in {"kind", "mode"} and "or" not in context["expected"]:
        return "not supported yet: only {expected}"
    if kind == "string_pattern_mismatch":
        return PATTERN_WORDS[context["pattern"]]
    if kind in {"too_short", "string_too_short"} and context["min_length"] == 1:
        return _ONE_NEEDED.get(name, "must not be empty")
    return None


def _plain(value: Any) -> Any:
    """Write 60.0 as 60."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]


def _strip_tags(location: Sequence[str | int]) -> list[str | int]:
    """Drop what Pydantic adds to a place: the chosen kind of a union, and the mark of a key."""
    parts: list[str | int] = []
    for part in location:
        is_tag = bool(parts) and parts[-1] == "verdict" and part in _VERDICT_KINDS
        if not is_tag and part != "[key]":
            parts.append(part)
    return parts
