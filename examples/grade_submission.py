"""Grade one submission, as an online judge does: run it, and judge it by its exit code and its output.

    .venv/bin/python -m examples.grade_submission [FILE]

Needs a running server (`./run up`) named by SANDMILL_API_URL and SANDMILL_API_KEY. Without FILE it grades a sample.
"""

import sys
from pathlib import Path

from sandmill import Client, ExitCodeVerdict, Input, Job, Resources, SandmillError, Step, Timeouts

SAMPLE = """\
def fibonacci(n):
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a

print(fibonacci(10))
"""

CHECK = """\
import os, sys
def words(path):
    # The submission may have left a link to the expected output, or a pipe, in the place of its own.
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), errors="replace") as file:
        return file.read(1 << 20).split()
expected, printed = map(words, sys.argv[1:])
sys.exit(0 if expected == printed else f"expected {expected}, printed {printed[:20]}")
"""


def make_job(source: str, expected: str) -> Job:
    """Make the job. The expected output and the checker come in after the submission has ended."""
    return Job(
        key="submission",
        image="host",
        workdir="/submission",
        inputs=[
            Input("/submission/main.py", text=source),
            Input("/judge/expected", text=expected, before="check"),
            Input("/judge/check.py", text=CHECK, before="check"),
        ],
        steps=[
            # -I: neither the folder nor the environment of the submission can change what python itself loads.
            Step("run", "python3 -I main.py > /submission/output", role="run", timeout=5),
            Step(
                "check",
                argv=["python3", "-I", "/judge/check.py", "/judge/expected", "/submission/output"],
                role="verify",
                cwd="/judge",
                timeout=5,
            ),
        ],
        resources=Resources(cpu=1, memory_mb=128, disk_mb=16, pids=32),
        timeouts=Timeouts(total=30, grace=0),
        verdict=ExitCodeVerdict(step="check"),
    )


def main() -> int:
    """Submit, wait, print the output and the verdict. Returns 0 when the submission passed."""
    source = Path(sys.argv[1]).read_text(encoding="utf-8") if len(sys.argv) > 1 else SAMPLE
    with Client() as client:
        batch_id = client.submit_job(make_job(source, expected="55\n")).batch_id
        client.wait(batch_id, timeout_seconds=60)
        trial = client.get_trial(next(client.iter_trials(batch_id)).id)
        for chunk in client.iter_logs(trial.attempts[-1].id) if trial.attempts else ():
            print(f"{chunk.step}: {chunk.text!a}")
    reason = f" ({trial.failure.code}: {trial.failure.message})" if trial.failure else ""
    print(f"{trial.outcome}{reason}")
    return 0 if trial.outcome == "passed" else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (SandmillError, ValueError, OSError) as problem:
        sys.exit(f"grade_submission: {problem}")
