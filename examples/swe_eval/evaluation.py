"""Turns an instance into jobs, finds out which tests count, and submits the predictions."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from examples.swe_eval.errors import ExampleError
from examples.swe_eval.instance import TESTS, Instance
from sandmill import (
    BatchInfo,
    Client,
    ExitCodeVerdict,
    Input,
    Job,
    JobDefaults,
    LogVerdict,
    PatchStep,
    SandmillError,
    Step,
    Timeouts,
    TrialInfo,
    Trials,
    Verdict,
)

__all__ = ["TRIALS", "Evaluator", "TestLists", "cancelled_on_error", "find_python", "load_or_validate"]

TRIALS = 2
"""Samples of each prediction; of each validation run too, so that a test that passes now and then is found out."""

_WORKDIR = "/testbed"
_PATCH = "/tmp/patch.diff"
_TEST_PATCH = "/tmp/tests.diff"
_WAIT_SECONDS = 300.0

_ENVIRONMENT = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0", "TZ": "UTC"}

_FAIL_TO_PASS_RANGE = range(10, 41)
_MIN_PASS_TO_PASS = 600


@dataclass(frozen=True, slots=True)
class TestLists:
    """Ids of the tests that a solution must make pass, and of those that it must not break."""

    __test__ = False

    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]

    def check(self) -> None:
        """Raise ExampleError when the lists cannot be those of these two releases."""
        found = f"{len(self.fail_to_pass)} fail-to-pass and {len(self.pass_to_pass)} pass-to-pass tests"
        if len(self.fail_to_pass) not in _FAIL_TO_PASS_RANGE or len(self.pass_to_pass) < _MIN_PASS_TO_PASS:
            raise ExampleError(
                f"the validation found {found}, but about 18 and over 600 are expected: "
                "does the sandbox's python3 run the library's tests?"
            )


class Evaluator:
    """Makes jobs of one instance whose files lie on the server."""

    def __init__(self, client: Client, instance: Instance) -> None:
        """Upload the files; what the server has already is not sent again."""
        self._client = client
        self._instance = instance
        self._digests = {path: client.upload_blob(content) for path, content in instance.files.items()}
        self._test_patch = client.upload_blob(instance.test_patch)

    def submit_predictions(self, lists: TestLists) -> BatchInfo:
        """Submit one batch with a job per prediction."""
        verdict = LogVerdict("unittest", "verify", lists.fail_to_pass, lists.pass_to_pass)
        jobs = [
            Job(
                key=prediction.name,
                labels={"instance": self._instance.name, "prediction": prediction.name},
                inputs=self._inputs(prediction.patch),
            )
            for prediction in self._instance.predictions
        ]
        return self._submit("swe-eval", jobs, verdict)

    def validate(self) -> TestLists:
        """Run the new tests on the old code and on the new, and sort them. Raises ExampleError, SandmillError.

        Fail-to-pass: failed in every run on the old code, passed in every run on the new. Pass-to-pass: passed in all.
        """
        jobs = [
            Job(key="base", inputs=self._inputs(b"")),
            Job(key="gold", inputs=self._inputs(self._instance.gold)),
        ]
        # All candidates are named, so that the verdict itself tells which of them did not pass.
        verdict = LogVerdict("unittest", "verify", self._instance.candidates)
        batch = self._submit("swe-eval-validation", jobs, verdict)
        with cancelled_on_error(self._client, batch.id):
            self._client.wait(batch.id, timeout_seconds=_WAIT_SECONDS)
        base = self._failed_tests(batch.id, "base")
        gold = self._failed_tests(batch.id, "gold")
        failed_never_on_gold = set(self._instance.candidates).difference(*gold)
        return TestLists(
            fail_to_pass=tuple(sorted(failed_never_on_gold.intersection(*base))),
            pass_to_pass=tuple(sorted(failed_never_on_gold.difference(*base))),
        )

    def _failed_tests(self, batch_id: str, key: str) -> list[Sequence[str]]:
        """Give the candidates that did not pass, per trial."""
        found: list[Sequence[str]] = []
        for trial in self._client.iter_trials(batch_id, job=key):
            tests = self._client.get_trial(trial.id).attempts[-1].tests
            ran = trial.outcome == "passed" or (trial.failure and trial.failure.code == "tests_failed")
            if not ran or tests is None or tests.fail_to_pass is None:
                raise ExampleError(f"the validation run {key} gave no test results: {_describe(trial)}")
            found.append(tests.fail_to_pass.failed)
        return found

    def _submit(self, name: str, jobs: Sequence[Job], verdict: Verdict) -> BatchInfo:
        defaults = JobDefaults(
            image="host",
            workdir=_WORKDIR,
            env=_ENVIRONMENT,
            steps=[
                PatchStep("apply", _PATCH, role="setup", on_reject="fail", timeout=60),
                PatchStep("tests", _TEST_PATCH, role="verify", timeout=60),
                Step(
                    "verify",
                    argv=["python3", "-m", "unittest", "-v", *self._instance.test_modules],
                    role="verify",
                    # One file descriptor for both, since unittest reports on stderr and tests print to stdout.
                    streams="merged",
                    timeout=240,
                ),
            ],
            verdict=verdict,
            trials=Trials(TRIALS, seed=1),
            timeouts=Timeouts(total=280),
        )
        return self._client.submit_batch(jobs, name=name, defaults=defaults)

    def _inputs(self, patch: bytes) -> list[Input]:
        """List the files of one job. Tests are put back, and changed, only after the submission was applied."""
        at_start = [
            Input(f"{_WORKDIR}/{path}", blob=digest, mode="0644") for path, digest in self._digests.items()
        ]
        late = [
            Input(f"{_WORKDIR}/{path}", blob=digest, mode="0644", before="tests")
            for path, digest in self._digests.items()
            if path.startswith(f"{TESTS}/")
        ]
        return [
            *at_start,
            *late,
            Input(_PATCH, blob=self._client.upload_blob(patch)),
            Input(_TEST_PATCH, blob=self._test_patch, before="tests"),
        ]


def find_python(client: Client) -> str:
    """Ask a sandbox for its python3; gives implementation and full version. Raises ExampleError if it has none."""
    probe = "import platform as p; print(p.python_implementation(), p.python_version(), p.machine())"
    job = Job(
        key="python",
        image="host",
        steps=[Step("python", argv=["python3", "-c", probe], timeout=30)],
        verdict=ExitCodeVerdict(),
        timeouts=Timeouts(total=60),
    )
    batch_id = client.submit_job(job).batch_id
    with cancelled_on_error(client, batch_id):
        client.wait(batch_id, timeout_seconds=60)
    trial = client.get_trial(next(client.iter_trials(batch_id)).id)
    if trial.outcome != "passed":
        raise ExampleError(
            f"no python3 runs in a sandbox of the image host, which shows this machine's /usr: {_describe(trial)}"
        )
    output = b"".join(chunk.data for chunk in client.iter_logs(trial.attempts[-1].id))
    return output.decode("utf-8", "replace").strip()


@contextmanager
def cancelled_on_error(client: Client, batch_id: str) -> Iterator[None]:
    """Take the batch back when the block is broken off: it would run to its end, now or at the server's next start."""
    try:
        yield
    except BaseException:
        with suppress(SandmillError):
            client.cancel(batch_id, mode="force")
        raise


def load_or_validate(
    evaluator: Evaluator, instance: Instance, python: str, cache: Path, *, refresh: bool
) -> TestLists:
    """Give the test lists of this instance under this Python: those found earlier, or those of a validation now."""
    path = cache / "validation.json"
    key = {"instance": instance.digest, "python": python}
    if not refresh:
        known = _load(path, key)
        if known is not None:
            return known
    lists = evaluator.validate()
    lists.check()
    _store(path, key, lists)
    return lists


def _load(path: Path, key: Mapping[str, str]) -> TestLists | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        lists = TestLists(tuple(found["fail_to_pass"]), tuple(found["pass_to_pass"]))
        lists.check()
    except (OSError, ValueError, KeyError, TypeError, ExampleError):
        # Missing, cut short or from another release of this example: it is made anew.
        return None
    return lists if found.get("key") == key else None


def _store(path: Path, key: Mapping[str, str], lists: TestLists) -> None:
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft.write_text(json.dumps({"key": key, **asdict(lists)}), encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        raise ExampleError(f"cannot write {path}: {error.strerror}") from error
    finally:
        draft.unlink(missing_ok=True)


def _describe(trial: TrialInfo) -> str:
    failure = trial.failure
    return f"{trial.outcome}" if failure is None else f"{trial.outcome}, {failure.code}: {failure.message}"
