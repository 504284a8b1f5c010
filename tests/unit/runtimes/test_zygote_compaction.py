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
    def method(self, word: str = "a", *, end="b"):
        "Join."
        return word + end

    method.note = "kept"

def keyed():
    return "by itself"

live, thing = outer(1), Thing()
held, by_identity, bound = [live], {keyed: "found"}, thing.method
originals = (live, Thing.method, keyed, idle)
codes = [function.__code__ for function in (live, Thing.method, outer)]
thing.method()

def asked():
    return helper()

def helper():
    return "first"

def caller(count):
    return [asked() for _ in range(count)]

def make():
    def inner():
        return "inner"
    def uses():
        return inner()
    return inner, uses

inner, uses = make()
caller(50), [thing.method() for _ in range(50)]
running = [live.__code__, Thing.method.__code__, keyed.__code__, asked.__code__, helper.__code__, inner.__code__]
print(gather_code(running))
print([now.__code__ is code for now, code in zip((live, Thing.method, outer), codes)])
print([now is original for now, original in zip((live, Thing.method, keyed, idle), originals)])
print(live(2), thing.method(), thing.method("c", end="d"), bound(), outer(5)(0), idle()(), by_identity[keyed])
copied, original = vars(Thing)["method"], originals[1]
facts = ("__name__", "__qualname__", "__module__", "__doc__", "__defaults__", "__kwdefaults__", "__annotations__",
         "__closure__", "__globals__", "__dict__", "__code__")
print([name for name in facts if getattr(copied, name) != getattr(original, name)])
print(uses.__closure__[0].cell_contents is inner, uses(), set(caller(50)))
def helper():
    return "second"
print(set(caller(50)))
Thing.method = lambda self: "third"
print(thing.method(), [thing.method() for _ in range(50)][-1])
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


def test_what_runs_is_copied_and_works_as_before():
    assert run(GATHER) == [
        "6",
        "[False, False, True]",
        "[False, False, True, True]",
        "[3, 4, 5] ab cd ab [5, 6, 7] 1 found",
        "[]",
        "True inner {'first'}",
        "{'second'}",
        "third third",
    ]


def test_what_is_made_after_gaps_were_filled_is_together():
    assert run(GAPS) == ["True", "True True"]
