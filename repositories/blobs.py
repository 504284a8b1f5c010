"""SQL of blobs: which tenant may use which digest."""

from collections.abc import Collection
from dataclasses import dataclass

from repositories.tenant_base import TenantSqlRepository

__all__ = ["BlobRepository", "BlobRow"]

_ADD = """
INSERT INTO blobs (tenant_id, digest, size_bytes)
SELECT %(tenant_id)s, b.digest, b.size FROM unnest(%(digests)s::text[], %(sizes)s::bigint[]) AS b(digest, size)
ON CONFLICT (tenant_id, digest) DO NOTHING
"""

_FIND = "SELECT digest, size_bytes FROM blobs WHERE tenant_id = %(tenant_id)s AND digest = %(digest)s"

_KNOWN = "SELECT digest FROM blobs WHERE tenant_id = %(tenant_id)s AND digest = ANY(%(digests)s)"


@dataclass(frozen=True, slots=True)
class BlobRow:
    """A blob the tenant may use. digest: `sha256:<hex>`."""

    digest: str
    size_bytes: int


class BlobRepository(TenantSqlRepository):
    """Blobs of one tenant."""

    def add(self, blobs: Collection[BlobRow]) -> None:
        """Give the tenant the use of these; those it has already stay as they are."""
        parameters = {"digests": [b.digest for b in blobs], "sizes": [b.size_bytes for b in blobs]}
        self._mine_count(_ADD, parameters)

    def find(self, digest: str) -> BlobRow | None:
        """Look one up."""
        row = self._mine_or_none(_FIND, {"digest": digest})
        return None if row is None else BlobRow(**row)

    def known(self, digests: Collection[str]) -> set[str]:
        """Those of the digests that the tenant may use."""
        return {row["digest"] for row in self._mine(_KNOWN, {"digests": list(digests)})}
