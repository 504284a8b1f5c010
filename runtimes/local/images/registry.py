"""Reads images from registries by the OCI distribution protocol. Documents are capped, blobs are checked."""

import hashlib
import re
from collections.abc import Callable, Iterator
from typing import BinaryIO

import httpx

from core.errors import BadImageError
from runtimes.local.images.connection import RegistryConnection
from runtimes.local.images.limits import ImageLimits
from runtimes.local.images.manifests import INDEX_TYPES, MANIFEST_TYPES, Descriptor
from runtimes.local.images.names import ImageName

__all__ = ["RegistryClient"]

_ACCEPT = ", ".join((*MANIFEST_TYPES, *INDEX_TYPES))


class RegistryClient:
    """One image at its registry. All calls raise ImageNotFoundError, BadImageError and the kinds of RegistryError."""

    def __init__(self, name: ImageName, connection: RegistryConnection, limits: ImageLimits) -> None:
        """connection: for the same name; stays the caller's to close."""
        self._name = name
        self._connection = connection
        self._limits = limits

    def manifest(self) -> bytes:
        """Fetch what the name stands for: a manifest or an index."""
        document = self._document(f"manifests/{self._name.reference}")
        found = f"sha256:{hashlib.sha256(document).hexdigest()}"
        if self._name.digest not in (None, found):
            raise BadImageError(f"registry {self._name.registry} gives {found} for {self._name.familiar}")
        return document

    def manifest_of(self, descriptor: Descriptor) -> bytes:
        """Fetch a manifest that an index points to; the caller checks it."""
        return self._document(f"manifests/{descriptor.digest}")

    def config(self, descriptor: Descriptor) -> bytes:
        """Fetch a config; the caller checks it."""
        return self._document(f"blobs/{descriptor.digest}")

    def download(self, descriptor: Descriptor, file: BinaryIO, on_bytes: Callable[[int], None]) -> None:
        """Write a blob to an empty file, whole and checked. on_bytes: is given how many bytes there are so far.

        A transfer that breaks off goes on where it was, until it fails several times in a row without getting further.
        """
        failures = 0
        digest = hashlib.sha256()
        while (begin := file.tell()) < descriptor.size:
            problem: Exception = self._connection.errors.unreachable("it ends a layer too early")
            try:
                for data in self._rest(descriptor, file):
                    if file.tell() == 0:
                        digest = hashlib.sha256()
                    if file.tell() + len(data) > descriptor.size:
                        raise BadImageError(f"a layer is larger than the {descriptor.size} bytes announced")
                    file.write(data)
                    digest.update(data)
                    on_bytes(file.tell())
            except httpx.TransportError as error:
                problem = error
            if file.tell() < descriptor.size:
                failures = 1 if file.tell() > begin else failures + 1
                self._connection.retry(failures, problem)
        file.flush()
        if f"sha256:{digest.hexdigest()}" != descriptor.digest:
            raise BadImageError(
                f"a layer has the digest sha256:{digest.hexdigest()}, not {descriptor.digest}"
            )

    def _rest(self, descriptor: Descriptor, file: BinaryIO) -> Iterator[bytes]:
        """Give the rest of a blob; a registry that cannot go on in the middle begins anew, and so does the file."""
        begin = file.tell()
        headers = {"Range": f"bytes={begin}-"} if begin else {}
        with self._connection.get(f"blobs/{descriptor.digest}", headers) as answer:
            if answer.status_code == 206:
                part = re.match(r"bytes (\d{1,18})-", answer.headers.get("Content-Range", ""))
                if not part or int(part[1]) != begin:
                    raise self._connection.errors.other("sends another part of a layer than it was asked for")
            elif begin:
                file.seek(0)
                file.truncate()
            yield from self._connection.pieces(answer)

    def _document(self, path: str) -> bytes:
        """Fetch a document of bounded size, with several attempts."""
        failures = 0
        while True:
            try:
                with self._connection.get(path, {"Accept": _ACCEPT}) as answer:
                    return self._connection.read(answer, self._limits.max_json_bytes)
            except httpx.TransportError as error:
                failures += 1
                self._connection.retry(failures, error)
