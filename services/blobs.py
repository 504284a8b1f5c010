"""Blobs of a tenant: files by content. The bytes lie in the store once; who may use them is a row per tenant."""

from collections.abc import Collection, Mapping
from typing import BinaryIO

from sqlalchemy import Connection

from core.blobstore import BlobStore, StoredBlob, check_digest
from core.errors import NotFoundError
from repositories.blobs import BlobRepository, BlobRow

__all__ = ["BlobService", "store_files"]


class BlobService:
    """Blobs of one tenant, inside the caller's transaction."""

    def __init__(self, connection: Connection, tenant_id: int, store: BlobStore) -> None:
        """store: where the bytes are."""
        self._repository = BlobRepository(connection, tenant_id)
        self._store = store

    def grant(self, blob: StoredBlob) -> None:
        """Note that the tenant has sent these bytes, and so may use them."""
        self._repository.add([BlobRow(blob.digest, blob.size_bytes)])

    def grant_all(self, files: Mapping[str, bytes]) -> None:
        """Note that the tenant has sent these files, which `store_files` has stored."""
        if files:
            self._repository.add([BlobRow(digest, len(data)) for digest, data in files.items()])

    def find(self, digest: str) -> StoredBlob:
        """Look one up. Raises NotFoundError for a blob that is missing or only another tenant's."""
        check_digest(digest)
        row = self._repository.find(digest)
        if row is None:
            raise NotFoundError("blob", digest)
        return StoredBlob(row.digest, row.size_bytes)

    def unknown(self, digests: Collection[str]) -> set[str]:
        """Those of the digests that the tenant may not use."""
        return set(digests) - self._repository.known(digests) if digests else set()

    def open(self, blob: StoredBlob) -> BinaryIO:
        """Open the bytes of a blob that was looked up; the caller closes. Raises NotFoundError if they are lost."""
        return self._store.open(blob.digest)


def store_files(store: BlobStore, files: Mapping[str, bytes]) -> None:
    """Put small files, by digest, on disk: before the transaction that grants them, which then waits for no disk."""
    for digest, data in files.items():
        store.put([data], max_bytes=len(data), expected_digest=digest)
