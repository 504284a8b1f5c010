"""Another process that works in the memory of this one. In processes of their own: they must have one thread only."""

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]

WORK = """
import ctypes, os, signal
from runtimes import linux

PR_GET_DUMPABLE, PR_SET_DUMPABLE = 3, 4
libc = ctypes.CDLL(None)
me, learnt = os.getpid(), {}
read_end, write_end = os.pipe()
os.chdir("/usr")

def deep(n):
    return sum(deep(n - 1) for _ in range(1)) if n else len(learnt)

def work(number):
    learnt["number"], learnt["parent"] = number == os.getpid() != me, os.getppid() == me
    learnt["deep"] = deep(100)
    os.close(read_end)
    os.chdir("/")
    os.umask(0o777)
    libc.prctl(PR_SET_DUMPABLE, 0)
    return 3

status = linux.run_in_this_memory(work, 0)
print(os.waitstatus_to_exitcode(status), learnt)
os.fstat(read_end)
print(os.getcwd(), os.umask(0o22) != 0o777, libc.prctl(PR_GET_DUMPABLE))

def fail(number):
    raise KeyError("lost")

try:
    linux.run_in_this_memory(fail, 0)
except KeyError as error:
    print(repr(error))
print(len(os.listdir("/proc/self/task")), [os.waitstatus_to_exitcode(linux.run_in_this_memory(lambda _: n, 0))
      for n in range(3)])
"""


def run(script):
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_what_python_learns_there_stays_and_what_the_kernel_keeps_does_not():
    lines = run(WORK)
    assert lines[0] == "3 {'number': True, 'parent': True, 'deep': 2}"
    assert lines[1] == "/usr True 1"
    assert lines[-1] == "1 [0, 1, 2]"


def test_an_error_there_is_raised_here():
    assert run(WORK)[2] == "KeyError('lost')"


REFUSED = """
from runtimes import linux
CLONE_THREAD = 0x00010000  # without CLONE_SIGHAND
try:
    linux.run_in_this_memory(lambda _: 0, CLONE_THREAD)
except OSError as error:
    print(error.strerror)
"""


def test_flags_that_the_kernel_refuses_are_an_error():
    assert run(REFUSED) == ["Invalid argument"]
