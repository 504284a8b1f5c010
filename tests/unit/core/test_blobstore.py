import hashlib
import os
import threading
import time

import pytest

from core.blobstore import BlobStore, check_digest
from core.errors import InvalidRequestError, NotFoundError, PayloadTooLargeError


def digest_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


@pytest.fixture
def store(tmp_path):
    return BlobStore(tmp_path / "blobs")


def files(store) -> list[str]:
    return sorted(p.name for p in store._root.rglob("*") if p.is_file())


@pytest.mark.parametrize("data", [b"", b"x", b"\0" * 100_000], ids=len)
def test_what_was_put_is_read_back(store, data):
    blob = store.put([data[:10], data[10:]], max_bytes=100_000)
    assert (blob.digest, blob.size_bytes) == (digest_of(data), len(data))
    assert store.read(blob.digest) == data
    assert store.has(blob.digest)


def test_the_same_bytes_are_stored_once(store):
    first, second = (store.put([b"same"], max_bytes=10) for _ in range(2))
    assert first == second
    assert len(files(store)) == 1


def test_nothing_is_left_of_a_blob_that_is_too_large(store):
    with pytest.raises(PayloadTooLargeError):
        store.put([b"12345", b"67890"], max_bytes=9)
    assert files(store) == []


def test_nothing_is_left_of_a_blob_with_another_digest(store):
    with pytest.raises(InvalidRequestError, match=digest_of(b"a")):
        store.put([b"a"], max_bytes=10, expected_digest=digest_of(b"b"))
    assert files(store) == []


def test_nothing_is_left_of_an_upload_that_breaks_off(store):
    def broken():
        yield b"begin"
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        store.put(broken(), max_bytes=10)
    assert files(store) == []


def test_a_missing_blob_is_not_found(store):
    with pytest.raises(NotFoundError):
        store.open(digest_of(b"never"))
    assert not store.has(digest_of(b"never"))


@pytest.mark.parametrize(
    "digest",
    [
        "",
        "sha256:",
        "md5:" + "a" * 32,
        "sha256:" + "A" * 64,
        "sha256:../" + "a" * 61,
        "sha256:" + "a" * 64 + "\n",
    ],
)
def test_only_digests_name_blobs(store, digest):
    with pytest.raises(InvalidRequestError):
        check_digest(digest)
    with pytest.raises(InvalidRequestError):
        store.open(digest)


def test_others_cannot_read_the_folder(store):
    blob = store.put([b"secret"], max_bytes=10)
    for path in (store.path(blob.digest), *store.path(blob.digest).parents[:2]):
        assert path.stat().st_mode & 0o077 == 0, path


def test_many_writers_of_the_same_bytes_do_no_harm(store):
    threads = [
        threading.Thread(target=store.put, args=([b"x" * 1000],), kwargs={"max_bytes": 1000})
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.read(digest_of(b"x" * 1000)) == b"x" * 1000
    assert len(files(store)) == 1


def test_old_leftovers_are_swept_and_young_uploads_are_not(store):
    store.put([b"x"], max_bytes=1)
    old, young = store._root / "uploads" / "old", store._root / "uploads" / "young"
    for path in (old, young):
        path.write_bytes(b"part")
    day_before = time.time() - 2 * 86400
    os.utime(old, (day_before, day_before))
    assert store.sweep() == 1
    assert (old.exists(), young.exists()) == (False, True)


def test_sweeping_a_store_that_does_not_exist_yet_is_no_error(store):
    assert store.sweep() == 0


AGE = 100.0


def old(store: BlobStore, data: bytes = b"data") -> str:
    digest = store.put([data], max_bytes=100).digest
    os.utime(store.path(digest), (1, 1))
    return digest


def test_old_bytes_that_nobody_uses_are_removed(tmp_path):
    store = BlobStore(tmp_path)
    digest, new = old(store), store.put([b"new"], max_bytes=100).digest
    found = [d for n in range(256) for d in store.old_digests(f"{n:02x}", age_seconds=AGE)]
    assert found == [digest]
    assert store.remove_unused(digest, age_seconds=AGE, is_used=lambda: False)
    assert not store.remove_unused(new, age_seconds=AGE, is_used=lambda: False)
    assert (store.has(digest), store.has(new)) == (False, True)
    assert not store.remove_unused(digest, age_seconds=AGE, is_used=lambda: False)


def test_bytes_sent_again_just_before_they_are_put_aside_come_back(tmp_path):
    store = BlobStore(tmp_path)
    digest = old(store)
    store.put([b"data"], max_bytes=100)
    assert not store.remove_unused(digest, age_seconds=AGE, is_used=lambda: False)
    assert store.read(digest) == b"data"


def test_bytes_sent_again_while_they_are_aside_are_written_anew(tmp_path):
    store = BlobStore(tmp_path)
    digest = old(store)

    def send() -> bool:
        store.put([b"data"], max_bytes=100)
        return False

    assert store.remove_unused(digest, age_seconds=AGE, is_used=send)
    assert store.read(digest) == b"data"


def test_bytes_that_turn_out_to_be_used_come_back(tmp_path):
    store = BlobStore(tmp_path)
    digest = old(store)
    assert not store.remove_unused(digest, age_seconds=AGE, is_used=lambda: True)
    assert store.read(digest) == b"data"


def test_what_a_collector_that_died_had_put_aside_comes_back(tmp_path):
    store = BlobStore(tmp_path)
    digest = old(store)

    def die() -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.remove_unused(digest, age_seconds=AGE, is_used=die)
    assert not store.has(digest)
    assert store.sweep() == 0
    assert store.read(digest) == b"data"
