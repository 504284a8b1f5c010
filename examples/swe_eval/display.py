"""Shows an evaluation: a live table and lines at a terminal, plain lines elsewhere, and the results at the end."""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from examples.swe_eval.progress import TrialView
from sandmill import AttemptInfo, TestSet, TrialDetail

__all__ = ["Display"]

_STYLES = {"passed": "green", "failed": "yellow", "error": "red", "cancelled": "dim"}
_TELLING_STARTS = ("patched ", "removed ", "Ran ", "OK", "FAILED (")
_TELLING_ENDS = (" ... ERROR", " ... FAIL")
_WIDTH_ELSEWHERE = 140


class Display:
    """Everything a person sees. to_stderr: leaves stdout to programs. all_lines: shows logs whole."""

    def __init__(self, *, to_stderr: bool, all_lines: bool) -> None:
        """Look at what the output is: a terminal gets a live table."""
        console = Console(stderr=to_stderr, highlight=False)
        if not console.is_terminal:
            console = Console(stderr=to_stderr, highlight=False, width=_WIDTH_ELSEWHERE)
        self._console = console
        self._all_lines = all_lines
        self._views: Mapping[str, TrialView] = {}

    def say(self, text: str) -> None:
        """Print one line."""
        self._console.print(Text(text), soft_wrap=True)

    def live(self, views: Mapping[str, TrialView]) -> AbstractContextManager[object]:
        """Show the trials while the block runs. views: changed by somebody else."""
        self._views = views
        if not self._console.is_terminal:
            return nullcontext()
        return Live(
            get_renderable=self._live_table, console=self._console, refresh_per_second=8, transient=True
        )

    def show_change(self, view: TrialView) -> None:
        """Say that a trial is in another state."""
        if not self._console.is_terminal:
            self.say(f"{view.name:<18} {view.info.outcome or view.info.state}")

    def show_line(self, view: TrialView, step: str, line: str) -> None:
        """Show a line of a log if it says something: passed tests and tracebacks only when all lines are wanted."""
        is_telling = step != "verify" or line.startswith(_TELLING_STARTS) or line.endswith(_TELLING_ENDS)
        if self._all_lines or is_telling:
            self.say(f"{view.name:<18} {step:<7}| {line}")

    def show_results(self, trials: Iterable[TrialDetail]) -> None:
        """Print a table with a line per trial."""
        table = Table("prediction", "trial", "outcome", "code", "F2P", "P2P", "attempts", "seconds", "node")
        for trial in trials:
            last = trial.attempts[-1] if trial.attempts else None
            table.add_row(
                Text(trial.job_key),
                str(trial.index),
                Text(trial.outcome or trial.state, style=_STYLES.get(trial.outcome or "", "")),
                Text(trial.failure.code if trial.failure else ""),
                *_test_cells(last),
                str(trial.attempts_used),
                _seconds(trial),
                Text((last.node or "") if last else ""),
            )
        self._console.print(table)

    def show_report(self, report: Mapping[str, Any]) -> None:
        """Print the figures of the batch's report."""
        outcomes = {name: count for name, count in report["trials_by_outcome"].items() if count}
        counts = ", ".join(f"{count} {name}" for name, count in outcomes.items())
        codes = ", ".join(f"{code} {count}" for code, count in report["failure_codes"].items())
        self.say(f"report   {report['trials']} trials of {report['jobs']} jobs: {counts}")
        self.say(
            f"         resolved {report['resolved_trials']} of {report['trials']}; reasons: {codes or 'none'}"
        )
        for title, name in (("all trials", "all"), ("trials with a verdict", "valid")):
            self.say(f"         {title}: {_estimate(report[name])}")
        self.say(f"         attempts {report['attempts']}, lost to infrastructure {report['infra_losses']}")

    def _live_table(self) -> Group:
        table = Table("trial", "state", "step", "tests", "last line", expand=True)
        for view in list(self._views.values()):
            state = view.info.outcome or view.info.state
            table.add_row(
                Text(view.name),
                Text(state, style=_STYLES.get(state, "cyan")),
                Text(view.step),
                str(view.tests or ""),
                Text(view.last_line, no_wrap=True, overflow="ellipsis"),
            )
        return Group(table)


def _test_cells(attempt: AttemptInfo | None) -> tuple[str, str]:
    tests = attempt.tests if attempt else None
    return (_test_cell(tests.fail_to_pass), _test_cell(tests.pass_to_pass)) if tests else ("-", "-")


def _test_cell(found: TestSet | None) -> str:
    return f"{found.passed}/{found.total}" if found else "-"


def _seconds(trial: TrialDetail) -> str:
    if trial.started_at is None or trial.finished_at is None:
        return "-"
    return f"{(trial.finished_at - trial.started_at).total_seconds():.2f}"


def _estimate(estimate: Mapping[str, Any]) -> str:
    parts = [f"pass@{k} {_ratio(value)}" for k, value in estimate["pass_at_k"].items()]
    if estimate["interval_95"]:
        low, high = estimate["interval_95"]
        parts.append(f"mean {_ratio(estimate['mean_at_n'])} (95 %: {low:.2f} to {high:.2f})")
    return ", ".join(parts)


def _ratio(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.3f}"
