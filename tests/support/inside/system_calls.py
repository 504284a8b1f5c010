"""Try each dangerous system call in a child; print those that did anything but fail with an error."""

import ctypes
import errno
import json
import os

LIBC = ctypes.CDLL(None, use_errno=True)
IS_ARM = os.uname().machine == "aarch64"
BUFFER = ctypes.create_string_buffer(4096)
ME = os.getpid()

# Name: (number on x86-64, number on aarch64, arguments under which the kernel itself would not refuse at once).
CALLS = {
    "mount": (165, 40, b"none", b"/tmp", b"tmpfs", 0, 0),
    "umount2": (166, 39, b"/tmp", 0),
    "pivot_root": (155, 41, b".", b"."),
    "chroot": (161, 51, b"/tmp"),
    "open_tree": (428, 428, -100, b"/tmp", 1),
    "move_mount": (429, 429, -1, b"", -100, b"/tmp", 4),
    "fsopen": (430, 430, b"tmpfs", 0),
    "fsconfig": (431, 431, -1, 0, 0, 0, 0),
    "fsmount": (432, 432, -1, 0, 0),
    "fspick": (433, 433, -100, b"/", 0),
    "mount_setattr": (442, 442, -100, b"/tmp", 0, BUFFER, 32),
    "unshare user": (272, 97, 0x10000000),
    "unshare net": (272, 97, 0x40000000),
    "setns": (308, 268, 0, 0),
    "bpf": (321, 280, 0, BUFFER, 64),
    "perf_event_open": (298, 241, BUFFER, 0, -1, -1, 0),
    "add_key": (248, 217, b"user", b"x", b"y", 1, -3),
    "request_key": (249, 218, b"user", b"x", 0, 0),
    "keyctl": (250, 219, 0, -3, 0),
    "userfaultfd": (323, 282, 1),
    "io_uring_setup": (425, 425, 1, BUFFER),
    "io_uring_enter": (426, 426, -1, 0, 0, 0, 0, 0),
    "io_uring_register": (427, 427, -1, 0, 0, 0),
    "init_module": (175, 105, BUFFER, 0, b""),
    "finit_module": (313, 273, 0, b"", 0),
    "delete_module": (176, 106, b"x", 0),
    "kexec_load": (246, 104, 0, 0, 0, 0),
    "reboot": (169, 142, 0, 0, 0, 0),
    "syslog": (103, 116, 3, BUFFER, 100),
    "settimeofday": (164, 170, BUFFER, 0),
    "clock_settime": (227, 112, 0, BUFFER),
    "adjtimex": (159, 171, BUFFER),
    "clock_adjtime": (305, 266, 0, BUFFER),
    "name_to_handle_at": (303, 264, -100, b".", BUFFER, BUFFER, 0),
    "open_by_handle_at": (304, 265, -100, BUFFER, 0),
    "ptrace": (101, 117, 0, 0, 0, 0),
    "process_vm_readv": (310, 270, ME, BUFFER, 0, BUFFER, 0, 0),
    "process_vm_writev": (311, 271, ME, BUFFER, 0, BUFFER, 0, 0),
    "pidfd_getfd": (438, 438, -1, 0, 0),
    "kcmp": (312, 272, ME, ME, 0, 0, 0),
    "swapon": (167, 224, b"/x", 0),
    "quotactl": (179, 60, 0, 0, 0, 0),
    "acct": (163, 89, 0),
    "sethostname": (170, 161, b"x", 1),
    "clone3": (435, 435, 0, 0),
    "move_pages": (279, 239, 0, 0, 0, 0, 0, 0),
    "personality READ_IMPLIES_EXEC": (135, 92, 0x0400000),
    "memfd_secret": (447, 447, 0),
    "unassigned, in a gap": (350, 250, 0),
    "unassigned, beyond all": (500, 500, 0),
    "ioctl TIOCSTI": (16, 29, 0, 0x5412, BUFFER),
    "ioctl TIOCLINUX": (16, 29, 0, 0x541C, BUFFER),
    "ioctl TIOCSTI, by the low half": (16, 29, 0, 0x100005412, BUFFER),
    "socket AF_VSOCK": (41, 198, 40, 1, 0),
    "socket AF_ALG": (41, 198, 38, 5, 0),
    "socket AF_PACKET": (41, 198, 17, 3, 0),
    "clone NEWUSER": (56, 220, 0x10000000 | 17, 0, 0, 0, 0),
    "clone NEWNS": (56, 220, 0x00020000 | 17, 0, 0, 0, 0),
    "clone NEWNET": (56, 220, 0x40000000 | 17, 0, 0, 0, 0),
}
if not IS_ARM:
    CALLS |= {
        "iopl": (172, 0, 3),
        "ioperm": (173, 0, 0, 1, 1),
        "modify_ldt": (154, 0, 0, BUFFER, 16),
        "x32 getpid": (0x40000027, 0),
    }

REFUSED = (errno.EPERM, errno.ENOSYS, errno.EAFNOSUPPORT)


def attempt(number, arguments):
    """Run in a child: exits 1 if the call was refused, 2 if not."""
    child = os.getpid()
    ctypes.set_errno(0)
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = LIBC.syscall(ctypes.c_long(number), *words)
    if os.getpid() != child:
        os._exit(0)  # a copy of us that should not be
    os._exit(1 if result == -1 and ctypes.get_errno() in REFUSED else 2)


found = []
for name, (x86, arm, *arguments) in CALLS.items():
    child = os.fork()
    if child == 0:
        attempt(arm if IS_ARM else x86, arguments)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    # An engine may kill a foreign binary interface instead: there is no errno to give it.
    if status != 1 and not (name.startswith("x32") and status == -31):
        found.append([name, f"killed by {-status}" if status < 0 else "not refused"])
print(json.dumps(found))
