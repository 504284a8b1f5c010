"""Structured logs: a fixed event name and fields, one line each, to stderr."""

import logging
import sys
from typing import Literal, TextIO, cast

import structlog

__all__ = ["configure_logging", "get_logger"]


def configure_logging(*, level: str = "info", style: Literal["json", "console"] = "json") -> None:
    """Set up structlog and the standard library's logging for this process."""
    renderer = structlog.processors.JSONRenderer() if style == "json" else structlog.dev.ConsoleRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(file=cast("TextIO", _Stderr())),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(name)s: %(message)s")


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """Give the logger of one module."""
    logger: structlog.stdlib.BoundLogger = structlog.get_logger(component=name)
    return logger


class _Stderr:
    """Whatever is stderr when a line is written: loggers are kept, and a redirection lasts a while only."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()
