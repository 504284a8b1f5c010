"""Asks the database whether its rows are right. The questions are in `invariants.sql`; nothing is changed."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from repositories.base import SqlRepository

__all__ = ["Invariant", "InvariantRepository", "Violation", "all_invariants"]

_FILE = Path(__file__).with_suffix(".sql")
_HEADING = re.compile(r"^-- (I\d+) ([a-z_]+) (always|live): (.+)$", re.MULTILINE)
_SHOWN_ROWS = 20
"""Of one question: the first rows tell what happened, and a broken table may have millions."""


@dataclass(frozen=True, slots=True)
class Invariant:
    """One question. group: I1 to I16. mode: see the head of `invariants.sql`. meaning: of a row that it gives."""

    group: str
    name: str
    mode: Literal["always", "live"]
    meaning: str
    sql: str


@dataclass(frozen=True, slots=True)
class Violation:
    """A row that should not be. subject: an id, of what the meaning speaks of."""

    invariant: Invariant
    subject: str
    detail: str

    def __str__(self) -> str:
        """One line for people."""
        return f"{self.invariant.group} {self.invariant.name}: {self.invariant.meaning}: {self.subject}: {self.detail}"


@cache
def all_invariants() -> tuple[Invariant, ...]:
    """Give all questions in the order of the file."""
    text = _FILE.read_text(encoding="utf-8")
    headings = list(_HEADING.finditer(text))
    ends = [heading.start() for heading in headings[1:]] + [len(text)]
    return tuple(
        Invariant(
            group=heading[1],
            name=heading[2],
            mode="always" if heading[3] == "always" else "live",
            meaning=heading[4],
            sql=text[heading.end() : end].strip().removesuffix(";"),
        )
        for heading, end in zip(headings, ends, strict=True)
    )


class InvariantRepository(SqlRepository):
    """Reads over all tenants."""

    def violations(
        self,
        invariants: Sequence[Invariant],
        *,
        slack_seconds: float,
        lease_seconds: float,
        window_seconds: float,
        pool_age_seconds: float = 7200.0,
    ) -> list[Violation]:
        """Ask some questions; gives at most 20 rows for each.

        slack_seconds: how late the scheduler may be. lease_seconds: as in the settings. window_seconds: how far back
        starts are judged by quotas and capacities. pool_age_seconds: after which free members of pools are ended.
        """
        parameters = {
            "slack": slack_seconds,
            "lease": lease_seconds,
            "window": window_seconds,
            "pool_age": pool_age_seconds,
        }
        found: list[Violation] = []
        for invariant in invariants:
            rows = self._rows(f"SELECT * FROM ({invariant.sql}) v LIMIT {_SHOWN_ROWS}", parameters)
            found += [Violation(invariant, row["subject"], row["detail"]) for row in rows]
        return found
