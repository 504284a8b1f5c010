import hashlib

import pytest

DATA = b"\0\xff some bytes" * 100_000


def digest_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def test_a_blob_is_stored_asked_for_and_read(api):
    stored = api.client.post("/v1/blobs", content=DATA)
    digest = digest_of(DATA)
    assert (stored.status_code, stored.json()) == (201, {"digest": digest, "size_bytes": len(DATA)})
    assert stored.headers["Location"] == f"/v1/blobs/{digest}"

    asked = api.client.head(f"/v1/blobs/{digest}")
    assert (asked.status_code, asked.headers["Content-Length"], asked.content) == (200, str(len(DATA)), b"")

    read = api.client.get(f"/v1/blobs/{digest}")
    assert read.content == DATA
    assert read.headers["content-type"] == "application/octet-stream"
    assert read.headers["content-disposition"].startswith("attachment")
    assert read.headers["etag"] == f'"{digest}"'


def test_an_empty_blob_and_a_chunked_upload_are_fine(api):
    assert api.client.post("/v1/blobs", content=b"").json()["digest"] == digest_of(b"")
    assert api.client.get(f"/v1/blobs/{digest_of(b'')}").content == b""
    chunked = api.client.post("/v1/blobs", content=iter([b"a" * 1000] * 3000))
    assert chunked.json() == {"digest": digest_of(b"a" * 3_000_000), "size_bytes": 3_000_000}


def test_a_blob_that_differs_from_its_digest_is_refused_and_not_kept(api):
    other = digest_of(b"other")
    for kwargs in (
        {"params": {"digest": other}},
        {"headers": {"X-Content-SHA256": other.removeprefix("sha256:")}},
    ):
        refused = api.client.post("/v1/blobs", content=b"not that", **kwargs)
        assert (refused.status_code, refused.json()["field"]) == (422, "digest")
    assert api.client.head(f"/v1/blobs/{digest_of(b'not that')}").status_code == 404
    both = {"params": {"digest": other}, "headers": {"X-Content-SHA256": "0" * 64}}
    assert api.client.post("/v1/blobs", content=b"other", **both).status_code == 422
    assert api.client.post("/v1/blobs", content=b"other", params={"digest": other}).status_code == 201


def test_a_compressed_upload_is_refused(api):
    refused = api.client.post("/v1/blobs", content=b"\x1f\x8b", headers={"Content-Encoding": "gzip"})
    assert refused.status_code == 415


@pytest.mark.parametrize(
    "digest", ["x", "sha256:" + "A" * 64, "sha256:..", "sha256:" + "a" * 65, "sha512:" + "a" * 64]
)
def test_what_is_no_digest_is_refused(api, digest):
    assert api.client.get(f"/v1/blobs/{digest}").status_code == 422
    assert api.client.head(f"/v1/blobs/{digest}").status_code == 422


def test_a_job_may_use_a_stored_blob(api):
    digest = api.client.post("/v1/blobs", content=b"patch").json()["digest"]
    job = {
        "image": "fake",
        "inputs": [{"path": "/p", "blob": digest}],
        "steps": [{"name": "run", "run": "true"}],
    }
    assert api.client.post("/v1/jobs", json=job).json()["spec"]["inputs"][0]["blob"] == digest


def test_a_blob_whose_bytes_were_lost_is_not_found(api):
    digest = api.client.post("/v1/blobs", content=b"to be lost").json()["digest"]
    hexdigits = digest.removeprefix("sha256:")
    (api.settings.home_path / "blobs" / hexdigits[:2] / hexdigits[2:]).unlink()
    assert api.client.get(f"/v1/blobs/{digest}").status_code == 404
