"""Bounds with room for a busy machine; what they are for is to notice a change of kind, not of degree."""

import time

from tests.integration.api.conftest import make_job, submit


def test_a_thousand_jobs_are_stored_within_a_second(api):
    step = {"name": "verify", "role": "verify", "run": "python3 -m unittest -v", "timeout": 60}
    jobs = [
        make_job(
            key=f"instance-{number}",
            steps=[{"name": "setup", "role": "setup", "run": "true"}, step],
            inputs=[{"path": "/testbed/patch.diff", "text": "x" * 500, "before": "verify"}],
            verdict={
                "from": "log",
                "parser": "unittest",
                "fail_to_pass": [f"t.T.test_{n}" for n in range(20)],
            },
        )
        for number in range(1000)
    ]
    submit(api.client)
    assert min(seconds_to_submit(api, {"jobs": jobs}) for _ in range(3)) < 1.0


def seconds_to_submit(api, body) -> float:
    started = time.monotonic()
    assert submit(api.client, body)["trials"]["total"] == len(body["jobs"])
    return time.monotonic() - started
