"""Print what can be seen of the traces that `leave_traces.py` leaves with the same argument."""

import ctypes
import json
import os
import socket
import sys
from contextlib import suppress

KEY, PORT = 0x5AD31, 5999

mark = sys.argv[1]
libc = ctypes.CDLL(None)
found = []
for folder in ("/tmp", "/var/tmp", "/dev/shm", "/run"):
    if os.path.exists(f"{folder}/{mark}"):
        found.append(f"file in {folder}")
with socket.socket() as probe:
    probe.settimeout(1)
    if probe.connect_ex(("127.0.0.1", PORT)) == 0:
        found.append("loopback port")
with socket.socket(socket.AF_UNIX) as probe:
    if probe.connect_ex("\0" + mark) == 0:
        found.append("abstract socket")
if libc.shmget(KEY, 4096, 0) >= 0:
    found.append("shared memory")
if libc.msgget(KEY, 0) >= 0:
    found.append("message queue")
for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
    with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as command_line:
        if mark.encode() in command_line.read() and pid != os.getpid():
            found.append("process")
print(json.dumps(found))
