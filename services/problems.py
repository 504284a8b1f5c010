"""Everything that is wrong with a request, told at once."""

from collections.abc import Sequence
from dataclasses import dataclass

from core.errors import InvalidRequestError

__all__ = ["MAX_PROBLEMS", "InvalidFieldsError", "Problem"]

MAX_PROBLEMS = 50
"""Most problems told in one answer: enough to repair a file, too few to flood a log."""


@dataclass(frozen=True, slots=True)
class Problem:
    """field: path in the request, as in `jobs[3].steps[0].timeout`. message: what is wrong, for a person."""

    field: str
    message: str


class InvalidFieldsError(InvalidRequestError):
    """One or several fields are wrong; `field` and the message are those of the first."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        """problems: not empty, in the order of the request. Equal ones count once; MAX_PROBLEMS are listed."""
        distinct = list(dict.fromkeys(problems))
        first = distinct[0]
        more = f" (and {len(distinct) - 1} more)" if len(distinct) > 1 else ""
        super().__init__(f"{first.field}: {first.message}{more}", field=first.field)
        self.problems = tuple(distinct[:MAX_PROBLEMS])
