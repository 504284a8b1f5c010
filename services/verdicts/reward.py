"""Reads a reward file: one finite number, or a JSON object of them."""

import json
import math
from typing import Any, NoReturn

from services.outcomes import clean_text

__all__ = ["InvalidRewardError", "parse_reward"]

MAX_REWARD_BYTES = 1 << 20
MAX_REWARDS = 100
MAX_NAME_CHARS = 200


class InvalidRewardError(ValueError):
    """The file holds no usable reward. code: `reward_unparsable` or `reward_non_finite`."""

    def __init__(self, code: str, message: str) -> None:
        """Keep the failure code beside the text for people."""
        super().__init__(message)
        self.code = code


def parse_reward(content: bytes, key: str) -> dict[str, float]:
    """Read all numbers of the file by name; `key` is among them, and is the name of a bare number.

    Raises InvalidRewardError. Other members of an object that are no numbers are passed over; any number that is not
    finite makes the file invalid, since a mean over it would be worthless.
    """
    value = _load(content)
    if isinstance(value, dict):
        rewards = {
            _checked_name(name): _finite(number) for name, number in value.items() if _is_number(number)
        }
        if key not in rewards:
            raise InvalidRewardError("reward_unparsable", f"the reward file has no number {key!r}")
        if len(rewards) > MAX_REWARDS:
            raise InvalidRewardError(
                "reward_unparsable", f"the reward file has more than {MAX_REWARDS} numbers"
            )
        return rewards
    if not _is_number(value):
        raise InvalidRewardError(
            "reward_unparsable", "the reward file holds neither a number nor a JSON object"
        )
    return {key: _finite(value)}


def _load(content: bytes) -> Any:
    if len(content) > MAX_REWARD_BYTES:
        raise InvalidRewardError(
            "reward_unparsable", f"the reward file is larger than {MAX_REWARD_BYTES} bytes"
        )
    try:
        text = content.decode("utf-8-sig").strip()
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except InvalidRewardError:
        raise
    except (ValueError, RecursionError) as error:
        # ValueError covers bad UTF-8, bad JSON and integers of more digits than Python converts.
        raise InvalidRewardError(
            "reward_unparsable", "the reward file is neither a number nor JSON"
        ) from error


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidRewardError("reward_non_finite", f"the reward file holds {name}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise InvalidRewardError("reward_unparsable", "the reward file names a member twice")
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _finite(value: int | float) -> float:  # noqa: PYI041 -- JSON gives either, and an int may be too large for a float
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InvalidRewardError("reward_non_finite", "the reward file holds a number that is not finite")
    return number


def _checked_name(name: str) -> str:
    if name != clean_text(name, MAX_NAME_CHARS):
        raise InvalidRewardError("reward_unparsable", f"the reward file has a bad name {name[:40]!r}")
    return name
