"""SQL of blobs: which tenant may use which digest."""

from collections.abc import Collection
from dataclasses import dataclass

from repositories.tenant_base import TenantSqlRepository

__all__ = ["BlobRepository", "BlobRow"]

# Sent again, it is kept anew; in the order of digests, so that two who send the same ones wait and do not deadlock.
_ADD = """
INSERT INTO blobs (tenant_id, digest, size_bytes)
SELECT %(tenant_id)s, b.digest, b.size FROM unnest(%(digests)s::text[], %(sizes)s::bigint[]) AS b(digest, size)
ORDER BY b.digest
ON CONFLICT (tenant_id, digest) DO UPDATE SET used_at = clock_timestamp()
"""

_FIND = "SELECT digest, size_bytes FROM blobs WHERE tenant_id = %(tenant_id)s AND digest = %(digest)s"

# Locked until the caller has written down what it needs them for: a collector then leaves them alone.
_KNOWN = """
SELECT digest FROM blobs WHERE tenant_id = %(tenant_id)s AND digest = ANY(%(digests)s) FOR KEY SHARE
"""


@dataclass(frozen=True, slots=True)
class BlobRow:
    """A blob the tenant may use. digest: `sha256:<hex>`."""

    digest: str
    size_bytes: int


class BlobRepository(TenantSqlRepository):
    """Blobs of one tenant."""

    def add(self, blobs: Collection[BlobRow]) -> None:
        """Give the tenant the use of these; those it has already are kept anew."""
        parameters = {"digests": [b.digest for b in blobs], "sizes": [b.size_bytes for b in blobs]}
        self._mine_count(_ADD, parameters)

    def find(self, digest: str) -> BlobRow | None:
        """Look one up."""
        row = self._mine_or_none(_FIND, {"digest": digest})
        return None if row is None else BlobRow(**row)

    def known(self, digests: Collection[str]) -> set[str]:
        """Those of the digests that the tenant may use. They stay until the end of the transaction."""
        return {row["digest"] for row in self._mine(_KNOWN, {"digests": list(digests)})}
