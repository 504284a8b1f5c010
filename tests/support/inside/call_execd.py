"""Print how execd answers to whoever has no token, where it can be called at all, and any token that can be found."""

import json
import os
import re
import socket
from contextlib import suppress

BODY = b'{"command": "touch /tmp/forged"}'
REQUESTS = {
    "ping": b"GET /ping",
    "command": b"POST /command",
    "interrupt": b"DELETE /command?id=x",
    "download": b"GET /files/download?path=/etc/hostname",
    "search": b"GET /files/search?path=/tmp",
    "delete": b"DELETE /files?path=/tmp/x",
    "upload": b"POST /files/upload",
    "nowhere": b"GET /nowhere",
}
HEADERS = [
    "",
    "X-EXECD-ACCESS-TOKEN: \r\n",
    f"X-EXECD-ACCESS-TOKEN: {'*' * 64}\r\n",
    f"X-EXECD-ACCESS-TOKEN: {'0' * 64}\r\n",
]

found = []
for name, start in REQUESTS.items():
    for header in HEADERS:
        with suppress(OSError), socket.socket() as connection:
            connection.settimeout(5)
            connection.connect(("127.0.0.1", 44772))
            head = f" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{header}Content-Length: {len(BODY)}\r\n\r\n"
            connection.sendall(start + head.encode() + BODY)
            status = connection.recv(65536).split()[1].decode()
            if status != "401":
                found.append([name, status])
for pid in filter(str.isdigit, os.listdir("/proc")):
    for place in ("environ", "cmdline"):
        with suppress(OSError), open(f"/proc/{pid}/{place}", "rb") as file:
            if re.search(rb"TOKEN=[0-9a-f]{64}", file.read()):
                found.append(["token", f"/proc/{pid}/{place}"])
if os.path.exists("/tmp/forged"):
    found.append(["command", "was run"])
print(json.dumps(found))
