"""Keeping together in memory what forks write to. In processes of their own: it changes all that is loaded."""

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]

GATHER = """
from runtimes.local.zygote.compaction import gather_code

def outer(x):
    def inner(y):
        return [x + y + n for n in range(3)]
    return inner

def idle():
    return lambda: 1

class Thing:
    def method(self, word="a", *, end="b"):
        return word + end

live, thing = outer(1), Thing()
functions = {"outer": outer, "idle": idle, "live": live, "m": Thing.method}
before = {name: value.__code__ for name, value in functions.items()}

def work():
    live(1)
    thing.method()

count = gather_code(work, ())
print(count >= 2, live.__code__ is before["live"], Thing.method.__code__ is before["m"])
print(outer.__code__ is before["outer"], idle.__code__ is before["idle"])
print(live(2), thing.method(), thing.method("c", end="d"), outer(5)(0), idle()())
gather_code(lambda: outer(0), ["__main__"])
print(idle.__code__ is before["idle"], outer(5)(0), idle()())
"""

GAPS = """
from runtimes.local.zygote.compaction import fill_gaps

SIZE, POOL = 200, 16 << 10
kept = [bytes(SIZE - 33 + 8) for _ in range(20_000)]
old = {id(value) // POOL for value in kept}
del kept[::2]
reused = [bytes(SIZE - 33 + 8) for _ in range(100)]
print(all(id(value) // POOL in old for value in reused))
fill_gaps()
new = [bytes(SIZE - 33 + 8) for _ in range(1_000)]
print(sum(id(value) // POOL in old for value in new) < 50, len({id(value) // 4096 for value in new}) < 100)
"""


def run(script):
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_code_that_runs_is_copied_and_works_as_before():
    assert run(GATHER) == [
        "True False False",
        "True True",
        "[3, 4, 5] ab cd [5, 6, 7] 1",
        "False [5, 6, 7] 1",
    ]


def test_what_is_made_after_gaps_were_filled_is_together():
    assert run(GAPS) == ["True", "True True"]
