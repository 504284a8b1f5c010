"""Entry point: `python -m examples.swe_eval [--json] [--no-cache] [--logs]`."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from examples.swe_eval.display import Display
from examples.swe_eval.errors import ExampleError
from examples.swe_eval.evaluation import (
    TRIALS,
    Evaluator,
    TestLists,
    cancelled_on_error,
    find_python,
    load_or_validate,
)
from examples.swe_eval.instance import Instance, build_instance
from examples.swe_eval.progress import BatchFollower
from examples.swe_eval.sdist import NEW, OLD, Download
from examples.swe_eval.server import connect, describe_server, home_folder
from launcher.errors import StartupError
from launcher.termination import Termination
from sandmill import BatchInfo, Client, SandmillError, TrialDetail

_WAIT_SECONDS = 600.0
_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Result:
    """What came of the run. figures: the JSON line. is_expected: it is what a sound evaluation gives."""

    figures: dict[str, Any]
    is_expected: bool


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the example. Returns 0 when the expected figures came out, 1 otherwise, 130 when interrupted."""
    options = _parse(arguments)
    with Termination() as termination:
        try:
            display = Display(to_stderr=options.json, all_lines=options.logs)
            result = _run(display, refresh=options.no_cache, is_hurried=termination.is_hurried)
        except KeyboardInterrupt:
            return _fail("interrupted", code=_INTERRUPTED)
        except (ExampleError, StartupError, SandmillError) as error:
            return _fail(str(error))
        except ValueError as error:
            # A setting in the environment that is none.
            return _fail(str(error))
    if options.json:
        sys.stdout.write(f"{json.dumps(result.figures)}\n")
        sys.stdout.flush()
    return 0 if result.is_expected else _fail("these are not the expected figures: see the table")


def _run(display: Display, *, refresh: bool, is_hurried: Callable[[], bool]) -> Result:
    began = time.monotonic()
    cache = home_folder() / "cache" / "swe_eval"
    display.say(f"fetching {OLD.project} {OLD.version} and {NEW.version}, {describe_server()}")
    # The packages arrive while the servers start.
    with (
        Download(cache, (OLD, NEW), refresh=refresh) as download,
        connect(is_hurried=is_hurried) as client,
    ):
        instance = build_instance(*download.wait())
        evaluator = Evaluator(client, instance)
        python = find_python(client)
        display.say(f"ready after {time.monotonic() - began:.1f} s; python of the sandbox: {python}")
        lists = load_or_validate(evaluator, instance, python, cache, refresh=refresh)
        display.say(
            f"{instance.name}: {len(lists.fail_to_pass)} tests must start to pass, "
            f"{len(lists.pass_to_pass)} must go on passing"
        )
        setup_seconds = time.monotonic() - began
        return _evaluate(display, client, evaluator, instance, lists, setup_seconds=setup_seconds)


def _evaluate(
    display: Display,
    client: Client,
    evaluator: Evaluator,
    instance: Instance,
    lists: TestLists,
    *,
    setup_seconds: float,
) -> Result:
    submitted = time.monotonic()
    batch = evaluator.submit_predictions(lists)
    display.say(f"batch {batch.id}: {len(instance.predictions)} predictions, {TRIALS} trials each")
    with cancelled_on_error(client, batch.id):
        batch = _follow(display, client, batch.id)
    wall_seconds = time.monotonic() - submitted
    trials = [client.get_trial(trial.id) for trial in client.iter_trials(batch.id)]
    report = client.report(batch.id)
    display.show_results(trials)
    display.show_report(report)
    display.say(f"evaluated in {wall_seconds:.1f} s, after {setup_seconds:.1f} s of setting up")
    return _to_result(batch, instance, trials, report, wall_seconds=wall_seconds, setup_seconds=setup_seconds)


def _follow(display: Display, client: Client, batch_id: str) -> BatchInfo:
    follower = BatchFollower(client, batch_id, on_line=display.show_line, on_change=display.show_change)
    with display.live(follower.views):
        return follower.wait(timeout_seconds=_WAIT_SECONDS)


def _to_result(
    batch: BatchInfo,
    instance: Instance,
    trials: Sequence[TrialDetail],
    report: dict[str, Any],
    *,
    wall_seconds: float,
    setup_seconds: float,
) -> Result:
    outcomes = batch.trials.by_outcome
    figures = {
        "batch": batch.id,
        "trials": batch.trials.total,
        "passed": outcomes.get("passed", 0),
        "failed": outcomes.get("failed", 0),
        "error": outcomes.get("error", 0),
        "pass_at_1": report["all"]["pass_at_k"]["1"],
        "wall_s": round(wall_seconds, 2),
        "setup_s": round(setup_seconds, 2),
    }
    expected = {prediction.name: prediction.expected for prediction in instance.predictions}
    is_expected = len(trials) == TRIALS * len(expected) and all(
        trial.outcome == expected.get(trial.job_key) for trial in trials
    )
    return Result(figures, is_expected)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./run demo",
        description="Evaluate four patches to more-itertools in sandboxes, as SWE-bench does.",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON line on stdout, all else on stderr"
    )
    parser.add_argument("--no-cache", action="store_true", help="download and validate again")
    parser.add_argument("--logs", action="store_true", help="show the logs of the trials whole")
    return parser.parse_args(arguments)


def _fail(message: str, *, code: int = 1) -> int:
    sys.stderr.write(f"demo: {' '.join(message.split())}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
