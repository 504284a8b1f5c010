import os

import pytest

from runtimes.disk_watch import DiskUse, DiskWatch, measure


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "upper"
    made.mkdir()
    return made


@pytest.fixture
def ended():
    return []


@pytest.fixture
def watch(tmp_path, ended):
    made = DiskWatch(tmp_path, lambda key, reason: ended.append((key, reason)))
    yield made
    made.stop()


def test_blocks_are_counted_and_holes_and_second_links_are_not(folder):
    (folder / "sub").mkdir()
    (folder / "sub" / "file").write_bytes(b"x" * 100_000)
    (folder / "again").hardlink_to(folder / "sub" / "file")
    (folder / "way").symlink_to("/usr")
    before = measure(folder)
    with (folder / "hole").open("wb") as file:
        file.truncate(1 << 40)
    use = measure(folder)
    assert 100_000 <= use.bytes < 200_000
    assert use.files == before.files + 1 == 4


def test_counting_ends_when_it_is_enough(folder):
    for number in range(50):
        (folder / f"d{number}").mkdir()
        (folder / f"d{number}" / "file").write_bytes(b"x")
    assert 51 <= measure(folder, enough=DiskUse(1 << 30, 50)).files < 100


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ((1, 2 << 20), "written more than its 1048576 bytes"),
        ((300, 0), "more than its 256 files"),
        ((100, 0), None),
    ],
)
def test_sandbox_past_its_limit_is_ended_once(folder, watch, ended, written, reason):
    files, size = written
    for number in range(files):
        (folder / f"f{number}").write_bytes(b"x" * size)
    watch.add("a", folder, 1 << 20)
    watch._watched["a"].due = 0.0
    watch.look()
    watch.look()
    assert len(ended) == (1 if reason else 0)
    assert all(reason in text and key == "a" for key, text in ended)
    assert (watch.look_up("a") is None) == bool(reason)


def test_disk_that_fills_up_is_looked_at_before_it_is_due(folder, watch, ended, monkeypatch):
    free = iter([100 << 20, 100 << 20, 90 << 20])
    monkeypatch.setattr("runtimes.disk_watch._free_bytes", lambda _: next(free))
    watch.add("a", folder, 8 << 20)
    watch._watched["a"].due = float("inf")
    watch.look()
    (folder / "file").write_bytes(os.urandom(9 << 20))
    watch.look()
    assert ended == []
    watch.look()
    assert len(ended) == 1


def test_dropped_folder_is_not_looked_at(folder, watch, ended):
    (folder / "file").write_bytes(b"x" * (2 << 20))
    watch.add("a", folder, 1 << 20)
    watch.drop("a")
    watch.drop("a")
    watch.look()
    assert ended == []


def test_folder_that_is_gone_is_empty(tmp_path):
    assert measure(tmp_path / "none") == DiskUse()
