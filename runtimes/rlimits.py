"""Limits per process, as far as this host lets anybody set them."""

import resource
import sys
from collections.abc import Mapping

__all__ = ["lowered"]


def lowered(values: Mapping[str, int]) -> dict[str, int]:
    """Give the limits, none above this process's own hard limit: no child may raise that, on some hosts not even root.

    values: by name, as in `nofile`.
    """
    return {name: min(value, _hard_limit(name)) for name, value in values.items()}


def _hard_limit(name: str) -> int:
    hard: int = resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))[1]
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard
