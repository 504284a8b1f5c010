"""A loop made before the process that runs it."""

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]

LIVES = """
import os, threading
from execd.ahead import Ahead

ahead = Ahead()
opened = sorted(os.listdir("/proc/self/fd"))

def inodes():
    return sorted(os.fstat(fd).st_ino for fd in ahead.descriptors)

def life():
    ahead.renew()
    seen = []
    # From another thread, so that the loop has to be woken.
    threading.Timer(0.05, ahead.loop.call_soon_threadsafe, [seen.append, "woken"]).start()
    threading.Timer(0.1, ahead.loop.call_soon_threadsafe, [ahead.loop.stop]).start()
    ahead.loop.run_forever()
    print(len(ahead.descriptors), seen, sorted(os.listdir("/proc/self/fd")) == opened, *inodes(), flush=True)
    ahead.loop.close()

print(*inodes(), flush=True)
for _ in range(2):
    pid = os.fork()
    if pid == 0:
        life()
        os._exit(0)
    os.waitpid(pid, 0)
print(sorted(os.listdir("/proc/self/fd")) == opened)
ahead.drop()
print(len(opened) - len(os.listdir("/proc/self/fd")))
used = Ahead()
saved = [os.dup(fd) for fd in used.descriptors]
used.loop.close()
# As if that had been done in another process.
for fd, descriptor in zip(saved, used.descriptors):
    os.dup2(fd, descriptor)
    os.close(fd)
used.drop()
print(len(opened) - len(os.listdir("/proc/self/fd")))
"""


def test_each_fork_has_kernel_objects_of_its_own_under_the_old_numbers():
    done = subprocess.run(
        [sys.executable, "-c", LIVES],
        cwd=REPOSITORY, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    made, first, second, *after = done.stdout.splitlines()
    assert first.startswith("3 ['woken'] True ")
    assert second.startswith("3 ['woken'] True ")
    # What is waited with has no inode of its own.
    inodes = [set(line.split()[-3:]) for line in (made, first, second)]
    assert len(set.union(*inodes)) == 7
    assert after == ["True", "3", "3"]
