"""The zygote's orders and the memory it copies ahead."""

import ctypes
import gc
import os
import signal
import struct
from contextlib import contextmanager, nullcontext

from runtimes.local.plan import (
    Bind,
    DeviceFolder,
    Directory,
    Overlay,
    Plan,
    ProcFolder,
    ReadOnly,
    TextFile,
    Tmpfs,
)
from runtimes.local.zygote.hot_pages import HotPages, _join, _own_pages
from runtimes.local.zygote.orders import LISTENER, MESSAGES, Disk, Order, decode, encode

PAGE = os.sysconf("SC_PAGE_SIZE")


def test_an_order_comes_out_as_it_went_in():
    plan = Plan(
        mounts=(
            Overlay("/", ("/a", "/b"), (0, 720_000), 1 << 20),
            Tmpfs("/t", 4096),
            Bind("/usr", "/usr"),
            Directory("/w\udcff"),
            TextFile("/etc/hosts", "x"),
            ProcFolder(),
            DeviceFolder(),
        ),
        argv=(),
        workdir="/w",
        environment={"A": "\udcff é"},
        seccomp=b"\x00\xff",
    )
    order = Order(plan, Disk("sm-1.a", 2, "/dev/loop0"), 720_000, (LISTENER, MESSAGES), ("--sealed",))
    assert decode(encode(order)) == order
    usual = (Bind("/lib", "/lib"), Bind("/usr", "/usr"), None, TextFile("/etc/hosts", "x"))
    with_places = encode(order, usual)
    assert decode(with_places, usual) == order
    assert len(with_places) < len(encode(order))
    # Of these it is told only where they are.
    assert decode(with_places, (*usual[:3], ReadOnly("/dev"))).plan.mounts[4] == ReadOnly("/dev")


def test_work_that_fails_is_told_and_leaves_nothing_to_copy(capfd):
    def start():
        raise OSError("no room")

    assert HotPages.of(lambda: nullcontext(start))._ranges == b""
    assert "no room" in capfd.readouterr().err


def test_neighbouring_pages_are_one_range():
    assert _join([1, 2, 4, 9]) == [(PAGE, 2 * PAGE), (4 * PAGE, PAGE), (9 * PAGE, PAGE)]
    assert _join([]) == []


def test_pages_that_a_fork_writes_to_are_found_and_copied():
    gc.collect()
    size = 64 * PAGE
    block = bytearray(b"x" * size)

    def start():
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            for start in range(0, size // 2, PAGE):
                block[start] = 1
            os.write(write_end, b"x")
            signal.pause()
        os.read(read_end, 1)
        # By the one between, which is no matter, though it leaves the other alone with the page it copies.
        block[size // 2 + 2 * PAGE] = 1
        return pid

    @contextmanager
    def prepare():
        block[size // 2 + 2 * PAGE] = 2
        yield start

    pages = HotPages.of(prepare)
    first = ctypes.addressof(ctypes.c_char.from_buffer(block)) // PAGE
    found = {
        number - first
        for start, length in struct.iter_unpack("=2Q", pages._ranges)
        for number in range(start // PAGE, (start + length) // PAGE)
    }
    assert len(found & set(range(32))) >= 31
    assert not found & set(range(34, 64))
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        before = len(_own_pages(os.getpid()))
        pages.copy()
        os.write(write_end, b"%d %d" % (before, len(_own_pages(os.getpid()))))
        os._exit(0)
    os.close(write_end)
    os.waitpid(pid, 0)
    with os.fdopen(read_end, "rb") as answer:
        before, after = (int(word) for word in answer.read().split())
    assert after - before >= 28
