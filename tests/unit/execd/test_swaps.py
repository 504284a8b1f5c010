"""What happens when directories are moved and links put in their place between two steps."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from execd.accounts import Accounts
from execd.directories import make_directories, remove_tree
from execd.errors import ExecdError, FileMissingError
from execd.file_requests import Permission
from execd.identity import Identity
from execd.staging import Staging
from execd.walk import walk
from tests.support.execd import names_in


@pytest.fixture
def staging() -> Iterator[Staging]:
    made = Staging(Accounts(), Identity())
    yield made
    made.abort()


def swap(directory: Path, outside: Path) -> None:
    """Move a directory aside and put a link in its place."""
    outside.mkdir(exist_ok=True)
    directory.rename(directory.with_name("aside"))
    directory.symlink_to(outside)


def test_a_staged_file_goes_where_it_was_staged(staging: Staging, tmp_path: Path) -> None:
    staging.begin(str(tmp_path / "d" / "f"), Permission())
    staging.write(b"x")
    staging.end()
    swap(tmp_path / "d", tmp_path / "outside")
    list(staging.commit())
    assert names_in(tmp_path / "outside") == []
    assert names_in(tmp_path / "aside") == ["f"]


def test_a_staged_file_is_dropped_where_it_was_staged(staging: Staging, tmp_path: Path) -> None:
    staging.begin(str(tmp_path / "d" / "f"), Permission())
    swap(tmp_path / "d", tmp_path / "outside")
    staging.abort()
    assert names_in(tmp_path / "aside") == names_in(tmp_path / "outside") == []


def test_beyond_the_directories_that_are_held_a_swap_fails_the_request(
    staging: Staging, tmp_path: Path
) -> None:
    for number in range(9):
        staging.begin(str(tmp_path / f"d{number}" / "f"), Permission())
        staging.end()
    swap(tmp_path / "d8", tmp_path / "outside")
    with pytest.raises(FileMissingError):
        list(staging.commit())
    assert names_in(tmp_path / "outside") == []


def test_a_deletion_stops_when_the_tree_is_moved_from_under_it(tmp_path: Path) -> None:
    deep = tmp_path / "top" / "a" / "b"
    deep.mkdir(parents=True)
    for number in range(1200):
        (deep / str(number)).touch()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept").touch()
    steps = remove_tree(str(tmp_path / "top"))
    while len(names_in(deep)) == 1200:
        next(steps)
    deep.rename(tmp_path / "outside" / "b")
    with pytest.raises(ExecdError, match="moved"):
        list(steps)
    assert "kept" in names_in(tmp_path / "outside")


def test_a_deletion_does_not_enter_a_link_that_takes_a_directorys_place(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / "top" / f"d{number}").mkdir(parents=True)
    steps = remove_tree(str(tmp_path / "top"))
    next(steps)
    next(steps)  # now it knows of three directories
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept").touch()
    for number in range(3):
        (tmp_path / "top" / f"d{number}").rmdir()
        (tmp_path / "top" / f"d{number}").symlink_to(tmp_path / "outside")
    list(steps)
    assert not (tmp_path / "top").exists()
    assert names_in(tmp_path / "outside") == ["kept"]


def test_a_walk_does_not_enter_a_link_that_takes_a_directorys_place(tmp_path: Path) -> None:
    (tmp_path / "top" / "d").mkdir(parents=True)
    steps = walk(str(tmp_path / "top"))
    assert next(steps) == (f"{tmp_path}/top/d", True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").touch()
    (tmp_path / "top" / "d").rmdir()
    (tmp_path / "top" / "d").symlink_to(tmp_path / "outside")
    assert [entry for entry in steps if entry] == []


def test_a_walk_reads_a_directory_in_windows_and_misses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("execd.walk._ENTRIES_AT_ONCE", 100)
    for number in range(1234):
        (tmp_path / str(number)).touch()
    names = [entry[0] for entry in walk(str(tmp_path)) if entry]
    assert names == sorted(f"{tmp_path}/{number}" for number in range(1234))


def test_new_directories_are_made_whatever_their_mode_lets_in(tmp_path: Path) -> None:
    make_directories(str(tmp_path / "a" / "b" / "c"), mode=0o400)
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "a",)] == [0o400]
    (tmp_path / "a").chmod(0o700)
    (tmp_path / "a" / "b").chmod(0o700)
    assert (tmp_path / "a" / "b" / "c").is_dir()
