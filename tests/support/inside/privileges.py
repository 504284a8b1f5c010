"""Print what this process may do, as the kernel says."""

import json

with open("/proc/self/status") as table:
    lines = table.read().splitlines()
status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
wanted = ("Cap", "NoNew", "Seccomp", "Uid", "Gid")
print(json.dumps({name: value for name, value in status.items() if name.startswith(wanted)}))
