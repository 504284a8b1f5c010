"""Print by what process 1 can be slowed down or starved. Signals are sent too: what they did is seen outside."""

import ctypes
import errno
import json
import os
import signal
import struct
import sys
from contextlib import suppress

LIBC = ctypes.CDLL(None, use_errno=True)
IS_ARM = os.uname().machine == "aarch64"
HIGH = 1 << 32  # the kernel looks at the low half of a process number only
NONE = struct.pack("QQ", 3, 3)
MASK = struct.pack("Q", 1)
PRIORITY = struct.pack("i", 0)
ATTRIBUTES = struct.pack("IIQiIQQQ", 48, 5, 0, 0, 0, 0, 0, 0)  # SCHED_IDLE
USER, NICE, IDLE = os.getuid(), 19, 3 << 13

# Name: number on x86-64, number on aarch64, arguments.
CALLS = {
    "prlimit64": (302, 261, 1, 7, NONE, 0),
    "prlimit64 high": (302, 261, 1 | HIGH, 7, NONE, 0),
    "prlimit64 read": (302, 261, 1, 7, 0, ctypes.create_string_buffer(16)),
    "sched_setaffinity": (203, 122, 1, 8, MASK),
    "sched_setaffinity high": (203, 122, 1 | HIGH, 8, MASK),
    "sched_setscheduler": (144, 119, 1, 5, PRIORITY),
    "sched_setscheduler high": (144, 119, 1 | HIGH << 5, 5, PRIORITY),
    "sched_setparam": (142, 118, 1, PRIORITY),
    "sched_setattr": (314, 274, 1, ATTRIBUTES, 0),
    "setpriority process": (141, 140, 0, 1, NICE),
    "setpriority process high": (141, 140, HIGH, 1 | HIGH, NICE),
    "setpriority group": (141, 140, 1, 1, NICE),
    "setpriority own group": (141, 140, 1, 0, NICE),
    "setpriority user": (141, 140, 2, USER, NICE),
    "setpriority this user": (141, 140, 2, 0, NICE),
    "ioprio_set process": (251, 30, 1, 1, IDLE),
    "ioprio_set process high": (251, 30, 1 | HIGH, 1 | HIGH, IDLE),
    "ioprio_set group": (251, 30, 2, 1, IDLE),
    "ioprio_set user": (251, 30, 3, USER, IDLE),
    "prctl core scheduling": (157, 167, 62, 2, 1, 0, 0),
    "get_robust_list": (274, 100, 1, ctypes.create_string_buffer(8), ctypes.create_string_buffer(8)),
    "migrate_pages": (256, 238, 1, 8, MASK, MASK),
    "kcmp": (312, 272, 1, os.getpid(), 0, 0, 0),
}
SETTINGS = (
    "oom_score_adj",
    "oom_adj",
    "autogroup",
    "comm",
    "coredump_filter",
    "timerslack_ns",
    "clear_refs",
    "sched",
)

found = []
for name, (x86, arm, *arguments) in CALLS.items():
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    if LIBC.syscall(ctypes.c_long(arm if IS_ARM else x86), *words) != -1:
        found.append(name)
    elif ctypes.get_errno() == errno.ENOSYS:
        found.append(name + " does not exist, so nothing was shown")
for folder in ("/proc/1", "/proc/1/task/1"):
    for name in SETTINGS:
        with suppress(OSError):
            descriptor = os.open(f"{folder}/{name}", os.O_WRONLY)
            os.write(descriptor, b"1")
            found.append(f"{folder}/{name}")
if os.listdir("/proc/1/task") != ["1"]:
    found.append("execd has threads, which calls reach by their own numbers")
for number in sorted(signal.valid_signals() - {int(spared) for spared in sys.argv[1:]}):
    with suppress(OSError):
        os.kill(1, number)
        signal.pidfd_send_signal(os.pidfd_open(1), number)
    LIBC.syscall(ctypes.c_long(131 if IS_ARM else 234), 1, 1, ctypes.c_long(number))  # tgkill
print(json.dumps(found))
