"""Many who read and run at once in one sandbox (threat model, T40 and T43), through the runtime's own way to execd."""

import json
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection

import pytest

from runtimes.base import EXECD_PORT

ENDLESS = "while :; do echo 0123456789012345678901234567890123456789; done"
LIMITS = {"pids": 1024, "memory_bytes": 1 << 30}
MUCH_BYTES = 64 << 20
"""Far more than all buffers between a command and its reader together."""


@pytest.fixture(scope="module")
def box(real_kind):
    """One sandbox for these tests."""
    with real_kind.box(limits=LIMITS) as made:
        yield made


def start(box, body):
    """Start a command whose output is a stream; give connection and response, of which nothing is read yet."""
    connection = HTTPConnection("sandbox")
    connection.sock = box.runtime.connect(box.handle, EXECD_PORT, timeout_seconds=60)
    headers = {**dict(box.client._headers), "content-type": "application/json"}
    connection.request("POST", "/command", body=json.dumps(body), headers=headers)
    return connection, connection.getresponse()


def run(box, body):
    """Run a command to its end; give status and what it wrote to its output."""
    connection, response = start(box, body)
    try:
        frames = [json.loads(line) for line in response.read().splitlines() if line]
    finally:
        connection.close()
    return response.status, "".join(frame["text"] for frame in frames if frame.get("type") == "stdout")


def execd_memory(box):
    """Give what process 1 has in memory, in bytes; execd is it, or its child."""
    text = box.sh("cat /proc/[0-9]*/status").out
    values = Counter()
    for block in text.split("Name:\t")[1:]:
        name, *lines = block.splitlines()
        values[name] += sum(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS:"))
    return max(value for name, value in values.items() if name not in ("sh", "cat"))


def test_who_reads_slowly_or_not_at_all_takes_nothing_from_who_reads(box):
    """T40: the commands of the slow ones stand, what waits for them is bounded, and others are served as before."""
    before = execd_memory(box)
    slow = [start(box, {"command": ENDLESS}) for _ in range(8)]
    abandoned = [start(box, {"command": ENDLESS}) for _ in range(8)]
    for connection, _ in abandoned:
        connection.close()
    try:
        status, said = run(box, {"command": f"head -c {MUCH_BYTES} /dev/zero | tr '\\0' x"})
        assert status == 200
        assert said.count("x") == MUCH_BYTES
        # Kept output is bounded for each command, read or not.
        assert execd_memory(box) - before < 96 << 20
        assert all(response.fp.readline() for _, response in slow)
    finally:
        for connection, _ in slow:
            connection.close()
    gone = threading.Event()
    for _ in range(300):
        if "0123456789" not in box.sh("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | sed 's/cat .*//'").out:
            break
        gone.wait(0.1)
    else:
        pytest.fail("commands run on whose readers have left")


def test_two_hundred_commands_at_once_are_run_or_refused_and_never_mixed(box):
    """T43. Too many answer 429 with what to do; each of the others has its own output, whole, and nothing else."""
    count = 200

    def one(number):
        script = f"for i in 1 2 3; do echo {number}-$i; done; sleep 0.2; echo {number}-end"
        return number, *run(box, {"command": script})

    with ThreadPoolExecutor(count) as pool:
        done = list(pool.map(one, range(count)))
    statuses = Counter(status for _, status, _ in done)
    assert set(statuses) <= {200, 429}
    assert statuses[200] >= 100
    for number, status, said in done:
        if status == 200:
            assert said.split() == [f"{number}-{part}" for part in (1, 2, 3, "end")]
    assert run(box, {"command": "echo after"}) == (200, "after\n")
