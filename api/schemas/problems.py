"""Turns what Pydantic found into fields and sentences of ours."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import ErrorDetails

from services.problems import Problem

__all__ = ["describe", "to_field", "to_problem"]

MAX_FIELD_CHARS = 200

NOT_YET = frozenset({
    "avoid_node", "build", "concurrency", "dedupe", "fresh", "gpu", "matrix", "needs", "on_complete", "on_timeout",
    "open", "secrets", "snapshot", "stdin", "stop", "user", "verify",
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
    "union_tag_not_found": "needs the field 'from': exit_code, reward, junit or log",
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
    kind, location = error["type"], error["loc"]
    context: Mapping[str, Any] = error.get("ctx", {})
    if kind == "extra_forbidden" and location[-1] in NOT_YET:
        return "not supported yet"
    if kind == "value_error":
        return str(context["error"])
    if kind == "literal_error" and location[-1] in {"kind", "mode"} and "or" not in str(context["expected"]):
        return f"not supported yet: only {context['expected']}"
    if kind == "literal_error":
        return f"must be {context['expected']}"
    if kind == "union_tag_invalid":
        return f"'from' must be one of {context['expected_tags']}"
    return _WORDS.get(kind) or _lower_first(error["msg"])


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
