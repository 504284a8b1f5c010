"""Verdicts: from step results and stored bytes to an outcome, outside the sandbox and without side effects."""

# The built-in parsers register themselves when they are imported.
from services.verdicts import parser_pytest as _pytest
from services.verdicts import parser_unittest as _unittest
from services.verdicts.grading import grade
from services.verdicts.registry import LogParser, ParsedLog, get_parser, known_parsers, register_parser
from services.verdicts.steps import should_continue

__all__ = [
    "LogParser",
    "ParsedLog",
    "get_parser",
    "grade",
    "known_parsers",
    "register_parser",
    "should_continue",
]

del _pytest, _unittest
