"""What the runtime tells the zygote: one sandbox to start. Sent as a piece of memory beside its descriptors."""

import io
import os
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from runtimes.local.plan import Mount, Plan

__all__ = [
    "ACCOUNT",
    "BAD_IMAGE",
    "CGROUP",
    "DROP",
    "ID_COUNT",
    "LISTENER",
    "MESSAGES",
    "READY",
    "START",
    "TASKS",
    "Disk",
    "Order",
    "decode",
    "encode",
    "read_memory",
]

READY = "ready"
"""The zygote's first word, followed by a blank and its process id."""

START, DROP = "start", "drop"
"""Messages: a sandbox to start; a disk to let go of, followed by a blank and its name.

Before each stand a number and a blank; so does its answer begin."""

BAD_IMAGE = "the image cannot be started: "
"""How a message begins that puts a failed start down to the files of the image."""

ID_COUNT = 65_536
"""User and group ids a sandbox has of its own: 0 to 65,535 inside."""

LISTENER, MESSAGES, CGROUP, TASKS, ACCOUNT = "listener", "messages", "cgroup", "tasks", "account"
"""Kinds of descriptors: the socket execd serves, its standard error, the version 2 control group's folder, a `tasks`
file of version 1 to join, and a control group file that tells use, for execd's `--account NAME=`: `account:NAME`."""


@dataclass(frozen=True, slots=True)
class Disk:
    """Where a sandbox writes. name: the sandbox's. generation: counts how often what was written became a layer.

    device: an ext4 file system; None: memory, of the size that the plan's root has.
    """

    name: str
    generation: int = 0
    device: str | None = None


@dataclass(frozen=True, slots=True)
class Order:
    """One sandbox. first_id: host id of 0 inside. descriptors: what each that comes along is, in their order.

    flags: execd's, without those that name descriptors.
    """

    plan: Plan
    disk: Disk
    first_id: int
    descriptors: tuple[str, ...]
    flags: tuple[str, ...]


def encode(order: Order, usual: Sequence[Mount | None] = ()) -> bytes:
    """Give the order as bytes. usual: mounts that whoever decodes it has, too; of these only the places are told."""
    places = {mount: place for place, mount in enumerate(usual)}
    mounts = [places.get(mount, mount) for mount in order.plan.mounts]
    data = io.BytesIO()
    _Pickler(data, pickle.HIGHEST_PROTOCOL).dump((mounts, _values(order.plan)[1:], _values(order)[1:]))
    return data.getvalue()


def _values(value: Any) -> tuple[Any, ...]:
    return tuple(getattr(value, name) for name in value.__dataclass_fields__)


class _Pickler(pickle.Pickler):
    """Names the class and the values of each part: by itself a dataclass with slots asks for its fields, every time.

    An order is taken apart twice while a sandbox waits for it.
    """

    def reducer_override(self, value: Any) -> Any:
        # What `dataclasses.fields` reads; it would make a tuple of it each time.
        names = getattr(type(value), "__dataclass_fields__", None)
        return (type(value), tuple(getattr(value, name) for name in names)) if names else NotImplemented


def decode(data: bytes, usual: Sequence[Mount] = ()) -> Order:
    """Undo `encode`."""
    # Only the process that started this one holds the other end of the socket it came by.
    mounts, rest_of_plan, rest = pickle.loads(data)  # noqa: S301
    mounts = tuple(usual[mount] if isinstance(mount, int) else mount for mount in mounts)
    return Order(Plan(mounts, *rest_of_plan), *rest)


def read_memory(descriptor: int) -> bytes:
    """Read a memory file from its start."""
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)
