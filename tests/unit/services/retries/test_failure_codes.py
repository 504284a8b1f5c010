"""The list of codes is what retry rules are checked against, and what the documentation explains: it must be whole."""

import ast
from collections.abc import Iterator
from pathlib import Path

from core import errors
from services import attempt_steps  # noqa: F401 -- defines a failure of its own
from services.failure_codes import ALL_CODES, FAILURE_CODES

ROOT = Path(__file__).parents[4]
MAKERS = {"Failure", "InvalidRewardError", "_exit_mismatch", "_no_verdict", "_task_failure"}


def codes_of_run_failures() -> Iterator[tuple[errors.FailureClass, str]]:
    waiting = [errors.RunFailure]
    while waiting:
        cls = waiting.pop()
        waiting += cls.__subclasses__()
        if cls.__module__.split(".")[0] in {"core", "services", "runtimes"}:
            yield cls.failure_class, cls.code


def codes_in_source() -> Iterator[str]:
    """Every text in the place of a code where a failure is made, and where one is chosen for it."""
    for path in sorted((ROOT / "services").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in MAKERS:
                place = 1 if node.func.id == "Failure" else 0
                texts = [node.args[place]] if len(node.args) > place else []
            elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).startswith("(code, text"):
                value = node.value
                tuples = [value] if isinstance(value, ast.Tuple) else getattr(value, "value", value)
                tuples = tuples if isinstance(tuples, list) else getattr(tuples, "values", [])
                texts = [found.elts[0] for found in tuples if isinstance(found, ast.Tuple)]
            else:
                continue
            yield from (
                text.value for text in texts if isinstance(text, ast.Constant) and isinstance(text.value, str)
            )


def test_every_code_that_the_source_makes_is_listed() -> None:
    found = set(codes_in_source())
    assert {
        "node_lost",
        "nonzero_exit",
        "start_timeout",
        "run_timeout",
        "tests_failed",
        "reward_missing",
    } <= found
    assert found - ALL_CODES == set()


def test_codes_of_raised_failures_are_listed_under_their_class() -> None:
    for cls, code in codes_of_run_failures():
        assert code in FAILURE_CODES[cls], (cls, code)


def test_no_code_is_in_two_classes() -> None:
    assert sum(len(codes) for codes in FAILURE_CODES.values()) == len(ALL_CODES)


def test_documentation_explains_every_code() -> None:
    text = (ROOT / "docs" / "jobs.md").read_text()
    assert {code for code in ALL_CODES if f"`{code}`" not in text} == set()
