"""Which of an image's builds fits a machine."""

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from core.errors import SpecInvalidError

__all__ = ["Platform"]

_MACHINES = {
    "x86_64": "amd64",
    "aarch64": "arm64",
    "armv7l": "arm/v7",
    "i686": "386",
    "ppc64le": "ppc64le",
    "s390x": "s390x",
    "riscv64": "riscv64",
}
_IMPLIED = {"arm64": "v8", "arm": "v7"}
"""What is meant where no variant is said."""


@dataclass(frozen=True, slots=True)
class Platform:
    """An operating system, an architecture as registries spell it, and its variant or nothing."""

    os: str
    architecture: str
    variant: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `linux/arm64`, `linux/arm/v7` or `arm64`. Raises SpecInvalidError."""
        parts = [_MACHINES.get(part, part) for part in text.lower().split("/")]
        if len(parts) == 1:
            parts.insert(0, "linux")
        parts = "/".join(parts).split("/")
        if not 2 <= len(parts) <= 3 or not all(part.isascii() and part.isalnum() for part in parts):
            message = f"{text[:100]!r} is no platform: write it as linux/amd64 or linux/arm/v7"
            raise SpecInvalidError(message, field="platform")
        return cls(*parts)

    @classmethod
    def of_this_machine(cls) -> Self:
        """Give the one that runs here without emulation."""
        machine = platform.machine()
        return cls.parse(f"linux/{_MACHINES.get(machine, machine)}")

    def choose(self, among: Sequence["Platform"]) -> int | None:
        """Give the index of the best fit: the same variant, else one that says none; None if nothing fits."""
        wanted = self.variant or _IMPLIED.get(self.architecture, "")
        fits = [
            (other.variant != wanted, index)
            for index, other in enumerate(among)
            if (other.os, other.architecture) == (self.os, self.architecture)
            and (other.variant or wanted) == wanted
        ]
        return min(fits)[1] if fits else None

    def __str__(self) -> str:
        """The form that `parse` reads."""
        return "/".join(part for part in (self.os, self.architecture, self.variant) if part)
