"""What a forked zygote does to become process 1 of a sandbox: join, build, enter, drop, serve."""

import fcntl
import os
import select
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Sequence

from execd.ahead import Ahead
from execd.daemon import run
from runtimes import linux
from runtimes.local.plan import Namespace, Plan
from runtimes.local.zygote.ahead import AheadMounts
from runtimes.local.zygote.orders import ACCOUNT, BAD_IMAGE, CGROUP, LISTENER, MESSAGES, TASKS, Order
from runtimes.local.zygote.prepared import Prepared
from runtimes.local.zygote.root import BadRootError, enter_folder, enter_root

__all__ = ["Child", "birth_flags"]

_BORN_INTO: dict[Namespace, int] = {
    "mount": linux.CLONE_NEWNS,
    "pid": linux.CLONE_NEWPID,
    "ipc": linux.CLONE_NEWIPC,
    "uts": linux.CLONE_NEWUTS,
    "net": linux.CLONE_NEWNET,
}
"""The control group namespace follows once it is in its groups, the user namespace at the very end:
until then it is real root, and what it mounts belongs to the host, whatever rights a program inside might get."""


def birth_flags(namespaces: frozenset[Namespace]) -> int:
    """Give the flags to fork with, for a sandbox with these namespaces."""
    return sum(flag for name, flag in _BORN_INTO.items() if name in namespaces)


_SIOCSIFFLAGS, _IFF_UP, _IFF_LOOPBACK = 0x8914, 0x1, 0x8
_LOOPBACK_UP = struct.pack("16sh14x", b"lo", _IFF_UP | _IFF_LOOPBACK)


class Child:
    """A process born into namespaces of its own, on its way to be process 1 of a sandbox.

    The steps are two, so that the first can be taken before it is known what the sandbox will be.
    """

    def __init__(
        self,
        prepared: Prepared,
        daemon: Ahead,
        parent_lives: int,
        channel: socket.socket,
        *,
        has_network: bool,
    ) -> None:
        """Take the first step. daemon: what its parent has made for it.

        parent_lives: read end of a pipe whose other end the parent alone holds. channel: to the parent, which maps ids.
        has_network: it was born into a network namespace.
        """
        self._prepared = prepared
        self._channel = channel
        self._parent_lives = parent_lives
        _die_with_parent(parent_lives)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        nothing = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.setsid()
        linux.make_private("/", receives=False)
        os.umask(0)
        if has_network:
            _bring_up_loopback()
        self._mounts = AheadMounts(prepared)
        daemon.renew()
        self._daemon = daemon

    def become_sandbox(
        self, order: Order, disk: int, written: Sequence[int], descriptors: Sequence[int]
    ) -> int:
        """Run execd in the sandbox of the order, until it ends; give the status to exit with.

        disk, written: see `enter_root`. descriptors: as the order names them.
        """
        status = 1
        try:
            messages = descriptors[order.descriptors.index(MESSAGES)]
            os.dup2(messages, 1)
            os.dup2(messages, 2)
            _join_groups(order, descriptors)
            if "uts" in order.plan.namespaces:
                socket.sethostname(order.plan.hostname)
            enter_root(
                order.plan,
                ahead=self._mounts,
                staging=self._prepared.staging,
                disk=disk,
                written=written,
                generation=order.disk.generation,
                first_id=order.first_id,
            )
            os.umask(0o022)
            enter_folder(order.plan.workdir)
            if "user" in order.plan.namespaces:
                self._enter_user_namespace(order.first_id, may_nest=order.plan.nested_user_namespaces)
            _drop_privileges(order.plan)
            # A change of user makes the kernel forget it.
            _die_with_parent(self._parent_lives)
            if order.plan.seccomp is not None:
                linux.install_seccomp(order.plan.seccomp)
            os.environ.clear()
            flags = [*_descriptor_flags(order, descriptors), *order.flags]
            status = run(flags, order.plan.environment, self._daemon)
        except BadRootError as error:
            sys.stderr.write(f"{BAD_IMAGE}{error}\n")
        except BaseException as error:  # noqa: BLE001 -- of all that is left, and nobody else would tell
            sys.stderr.write(f"the sandbox could not be set up: {error}\n")
            if not isinstance(error, OSError):
                traceback.print_exc()
        sys.stderr.flush()
        return status

    def _enter_user_namespace(self, owner: int, *, may_nest: bool) -> None:
        """Have ids of one's own. Only the parent, who stays outside, may say which they are.

        owner: a host id that is this sandbox's alone. What is counted by user within a namespace is counted for its
        owner, too: root's share of inotify instances, for one, would be used up for all sandboxes by one.
        """
        # /proc/sys is read-only in the sandbox: another view of it, for this one process, is not.
        settings = linux.new_mount("proc", {}, 0)
        os.seteuid(owner)
        linux.unshare(linux.CLONE_NEWUSER)
        if not may_nest:
            _forbid_user_namespaces(settings)
        os.close(settings)
        self._channel.send(b"ids")
        if not self._channel.recv(16):
            raise RuntimeError("the starter of this sandbox has ended")
        self._channel.close()


def _drop_privileges(plan: Plan) -> None:
    if not plan.keep_capabilities:
        linux.drop_bounding_set()
    linux.become_user(plan.uid, plan.gid)
    if not plan.keep_capabilities:
        # Not a matter of course: it was not user 0 of this namespace, so the change of user took none away.
        linux.drop_capabilities()


def _die_with_parent(parent_lives: int) -> None:
    linux.die_with_parent()
    # It may have ended a moment before.
    if select.select([parent_lives], [], [], 0)[0]:
        os._exit(1)


def _join_groups(order: Order, descriptors: Sequence[int]) -> None:
    for kind, descriptor in zip(order.descriptors, descriptors, strict=True):
        if kind == TASKS:
            os.write(descriptor, b"0")
        if kind in (TASKS, CGROUP):
            # A folder of the host, left open, would be a way to it for whatever links an image has.
            os.close(descriptor)
    if "cgroup" in order.plan.namespaces:
        linux.unshare(linux.CLONE_NEWCGROUP)


def _forbid_user_namespaces(proc: int) -> None:
    """Let nobody make another user namespace in the one this process is in, where it still has every right."""
    limit = os.open(f"/proc/self/fd/{proc}/sys/user/max_user_namespaces", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(limit, b"0")
    finally:
        os.close(limit)


def _bring_up_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCSIFFLAGS, _LOOPBACK_UP)


def _descriptor_flags(order: Order, descriptors: Sequence[int]) -> list[str]:
    flags = []
    for kind, descriptor in zip(order.descriptors, descriptors, strict=True):
        name, _, detail = kind.partition(":")
        if name == LISTENER:
            flags += ["--listen-fd", str(descriptor)]
        elif name == ACCOUNT:
            flags += ["--account", f"{detail}={descriptor}"]
    return flags
