"""What a node remembers of running containers, held against the kernel."""

import os
from dataclasses import replace

import pytest

from runtimes.container_records import ContainerRecord, ContainerRecords, upper_folder
from runtimes.processes import ProcessRef
from tests.support.execd import names_in

NAME = "sm-1-1"


@pytest.fixture
def record(monkeypatch):
    """Of this process, which its control groups then call a container's."""
    process = ProcessRef.of(os.getpid())
    monkeypatch.setattr("runtimes.container_records._read_text", lambda path: f"0::/docker/{'c' * 64}\n")
    return ContainerRecord(
        name=NAME,
        ref="c" * 64,
        pid=process.pid,
        started=process.started,
        oci_runtime="runc",
        labels={"sandmill.node": "n"},
        volumes=("v",),
        upper="/var/lib/docker/overlay2/x/diff",
    )


@pytest.fixture
def records(tmp_path):
    return ContainerRecords(tmp_path / "running")


def test_what_was_put_is_found_by_another_process_and_by_nobody_else(records, record, tmp_path):
    assert records.find(NAME) is None
    records.put(record)
    assert ContainerRecords(tmp_path / "running").find(NAME) == record
    assert (tmp_path / "running").stat().st_mode & 0o777 == 0o700
    assert names_in(tmp_path / "running") == [NAME]
    records.drop(NAME)
    records.drop(NAME)
    assert records.find(NAME) is None


@pytest.mark.parametrize("change", [{"started": 1}, {"ref": "d" * 64}, {"pid": 2**22 + 1}], ids=str)
def test_record_of_what_is_another_process_by_now_is_none(records, record, change):
    records.put(replace(record, **change))
    assert records.find(NAME) is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"name": "sm-1-1"}', "{}"])
def test_broken_record_is_none(records, record, tmp_path, content):
    records.put(record)
    (tmp_path / "running" / NAME).write_text(content)
    assert records.find(NAME) is None


def test_record_under_another_name_is_none(records, record, tmp_path):
    records.put(record)
    (tmp_path / "running" / "sm-2-1").write_bytes((tmp_path / "running" / NAME).read_bytes())
    assert records.find("sm-2-1") is None


@pytest.mark.parametrize("name", ["../sm-1-1", ".hidden", "", "a/b"])
def test_name_that_is_a_path_is_never_followed(records, record, tmp_path, name):
    records.put(record)
    records.put(replace(record, name=name))
    (tmp_path / NAME).write_text("mine")
    records.drop(name)
    assert records.find(name) is None
    assert (tmp_path / NAME).read_text() == "mine"
    assert names_in(tmp_path / "running") == [NAME]


def test_sweep_leaves_only_what_is_named(records, record, tmp_path):
    for name in (NAME, "sm-2-1"):
        records.put(replace(record, name=name))
    (tmp_path / "running" / ".sm-3-1.77").write_text("half")
    records.sweep({NAME})
    assert names_in(tmp_path / "running") == [NAME]


def test_folder_that_cannot_be_made_is_no_failure(record, tmp_path):
    (tmp_path / "file").touch()
    records = ContainerRecords(tmp_path / "file" / "running")
    records.put(record)
    records.sweep(set())
    assert records.find(NAME) is None


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            "rw,lowerdir=/l/a:/l/b,upperdir=/d/overlay2/x/diff,workdir=/d/overlay2/x/work",
            "/d/overlay2/x/diff",
        ),
        ("rw,lowerdir=l/a,upperdir=x/diff,workdir=x/work", None),
        ("rw,lowerdir=/l/a,upperdir=/d\\\\040x/diff,workdir=/w", None),
        ("ro,lowerdir=/l/a:/l/b", None),
    ],
    ids=["whole", "from where the engine stood", "unusual", "one layer"],
)
def test_upper_folder_is_that_of_the_root_mount(monkeypatch, options, expected):
    lines = (
        f"30 29 0:41 / / rw,relatime - overlay overlay {options}\n"
        "31 30 0:42 / /proc rw - proc proc rw\n"
        "32 30 0:43 / /data rw - overlay overlay rw,lowerdir=/x,upperdir=/other,workdir=/w\n"
    )
    monkeypatch.setattr("runtimes.container_records._read_text", lambda path: lines)
    assert upper_folder(1) == expected


def test_root_that_is_no_overlay_has_no_upper_folder(monkeypatch):
    text = "30 29 8:1 / / rw - btrfs /dev/sda1 rw,upperdir=/x\n"
    monkeypatch.setattr("runtimes.container_records._read_text", lambda path: text)
    assert upper_folder(1) is None
