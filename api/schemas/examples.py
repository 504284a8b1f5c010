"""Bodies shown in the published document; a test submits each of them."""

from typing import Any

__all__ = ["APPEND_EXAMPLE", "BATCH_EXAMPLE", "JOB_EXAMPLE", "SCHEDULE_EXAMPLE"]

JOB_EXAMPLE: dict[str, Any] = {
    "image": "host",
    "inputs": [{"path": "/workspace/main.py", "text": "print(6 * 7)\n"}],
    "steps": [{"name": "run", "run": 'test "$(python3 main.py)" = 42', "timeout": 10}],
    "verdict": {"from": "exit_code"},
}

APPEND_EXAMPLE: dict[str, Any] = {
    "matrix": {"python": ["python3", "python3.11"]},
    "jobs": [
        {
            "key": "prompt-2",
            "image": "host",
            "steps": [{"name": "run", "argv": ["${matrix.python}", "-c", "print(1)"]}],
            "trials": {"count": 16, "stop": "first_pass"},
        }
    ],
}

BATCH_EXAMPLE: dict[str, Any] = {
    "name": "two predictions",
    "labels": {"model": "example-1"},
    "defaults": {
        "image": {"ref": "host"},
        "resources": {"cpu": 1, "memory_mb": 512},
        "workdir": "/testbed",
        "steps": [
            {"name": "apply", "role": "setup", "patch": {"path": "/inputs/patch.diff"}, "timeout": 60},
            {
                "name": "verify",
                "role": "verify",
                "run": "python3 -m unittest -v",
                "timeout": 600,
                "streams": "merged",
            },
        ],
        "verdict": {"from": "log", "parser": "unittest", "fail_to_pass": ["test_sum.Sums.test_negative"]},
        "trials": {"count": 2, "seed": 7},
    },
    "jobs": [
        {
            "key": "gold",
            "inputs": [
                {"path": "/testbed/sums.py", "text": "def add(a, b):\n    return a + abs(b)\n"},
                {
                    "path": "/testbed/test_sum.py",
                    "text": "import unittest\nimport sums\n\n\nclass Sums(unittest.TestCase):\n"
                    "    def test_negative(self):\n        self.assertEqual(sums.add(1, -1), 0)\n",
                    "before": "verify",
                },
                {
                    "path": "/inputs/patch.diff",
                    "text": "--- a/sums.py\n+++ b/sums.py\n@@ -1,2 +1,2 @@\n def add(a, b):\n"
                    "-    return a + abs(b)\n+    return a + b\n",
                },
            ],
        }
    ],
}

SCHEDULE_EXAMPLE: dict[str, Any] = {
    "name": "nightly",
    "cron": "0 3 * * *",
    "timezone": "Europe/Berlin",
    "catch_up": "one",
    "overlap": "skip",
    "batch": {"name": "nightly", "jobs": [{"key": "hello", **JOB_EXAMPLE}]},
}
