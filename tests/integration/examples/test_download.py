"""The pip of these tests is the real one; the index it is given is an empty folder."""

import hashlib
import tarfile

import pytest

from examples.swe_eval.errors import ExampleError
from examples.swe_eval.sdist import OLD, Download, Release


@pytest.fixture
def index(tmp_path, monkeypatch: pytest.MonkeyPatch):
    """A folder that is all the packages there are."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def make_sdist(index) -> Release:
    """A source distribution of which only metadata is read."""
    folder = index.parent / "demo_pkg-1.0"
    folder.mkdir()
    (folder / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: demo-pkg\nVersion: 1.0\n")
    (folder / "demo_pkg.py").write_text('"""A package."""\n__version__ = "1.0"\n')
    (folder / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["flit_core"]\nbuild-backend = "flit_core.buildapi"\n'
        '[project]\nname = "demo-pkg"\nversion = "1.0"\ndescription = "d"\n[tool.flit.module]\nname = "demo_pkg"\n'
    )
    archive = index / "demo-pkg-1.0.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(folder, "demo_pkg-1.0")
    return Release("demo-pkg", "1.0", hashlib.sha256(archive.read_bytes()).hexdigest())


def test_package_that_cannot_be_had_is_told_in_one_line_and_leaves_nothing(tmp_path, index) -> None:
    cache = tmp_path / "cache"
    with (
        pytest.raises(ExampleError, match=r"cannot download more-itertools 10\.2\.0: ") as caught,
        Download(cache, (OLD,)) as download,
    ):
        download.wait()
    assert "\n" not in str(caught.value)
    assert list(cache.iterdir()) == []


def test_archive_is_kept_and_not_fetched_again(tmp_path, index) -> None:
    release = make_sdist(index)
    cache = tmp_path / "cache"
    with Download(cache, (release,)) as download:
        assert download.wait() == [cache / "demo-pkg-1.0.tar.gz"]
    (index / "demo-pkg-1.0.tar.gz").unlink()
    with Download(cache, (release,)) as download:
        download.wait()
    assert [path.name for path in cache.iterdir()] == ["demo-pkg-1.0.tar.gz"]


def test_archive_with_another_digest_is_refused(tmp_path, index) -> None:
    release = make_sdist(index)
    forged = Release(release.project, release.version, "0" * 64)
    with pytest.raises(ExampleError, match="HASH"), Download(tmp_path / "cache", (forged,)) as download:
        download.wait()


def test_leaving_early_ends_the_download_and_removes_its_files(tmp_path, index) -> None:
    release = make_sdist(index)
    cache = tmp_path / "cache"
    with Download(cache, (release,)) as download:
        (process,) = download._running.values()
    assert process.returncode is not None
    assert list(cache.iterdir()) == []


def test_folder_that_cannot_be_written_is_named(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ExampleError, match="cannot write to"), Download(tmp_path / "file" / "c", (OLD,)):
        pass
