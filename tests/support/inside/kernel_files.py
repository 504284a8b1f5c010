"""Print which control files of the kernel can be written, which secrets of the host read, which devices made."""

import json
import os
import stat
from contextlib import suppress

WRITE = (
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/hostname",
    "/proc/sys/vm/overcommit_memory",
    "/proc/sys/net/ipv4/ip_forward",
    "/proc/sys/user/max_user_namespaces",
    "/proc/sysrq-trigger",
    "/proc/1/oom_score_adj",
    "/sys/kernel/uevent_helper",
    "/sys/fs/cgroup/cgroup.procs",
    "/sys/fs/cgroup/memory/release_agent",
    "/sys/fs/cgroup/memory/tasks",
    "/sys/power/state",
)
READ = (
    *(
        f"/proc/{name}"
        for name in ("kcore", "keys", "key-users", "kmsg", "timer_list", "sched_debug", "kpagecount")
    ),
    *(f"/proc/{name}" for name in ("vmallocinfo", "interrupts", "slabinfo", "1/mem", "1/environ")),
    *(f"/dev/{name}" for name in ("mem", "kmem", "port", "kmsg", "vda", "sda", "nvme0n1")),
    *(f"/dev/{name}" for name in ("kvm", "fuse", "net/tun", "vsock")),
    "/sys/firmware/acpi/tables/DSDT",
    "/sys/firmware/dmi/tables/DMI",
    "/sys/kernel/debug/tracing/trace",
    "/sys/kernel/security/lockdown",
)

found = []
for path in WRITE:
    with suppress(OSError):
        os.close(os.open(path, os.O_WRONLY))
        found.append(f"can write {path}")
for path in READ:
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        if os.read(descriptor, 1):
            found.append(f"can read {path}")
        os.close(descriptor)
for kind, name in ((stat.S_IFBLK, "block"), (stat.S_IFCHR, "character")):
    for folder in ("/tmp", "/dev", "/dev/shm"):
        with suppress(OSError):
            os.mknod(f"{folder}/probe", kind | 0o666, os.makedev(1, 1))
            found.append(f"made a {name} device in {folder}")
for folder, _, names in os.walk("/dev"):
    paths = [os.path.join(folder, name) for name in names]
    found += [f"block device {path}" for path in paths if stat.S_ISBLK(os.lstat(path).st_mode)]
print(json.dumps(found))
