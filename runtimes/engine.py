"""The Docker engine's API with a deadline on every call."""

import io
import socket
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

import docker
import requests.exceptions
from docker.errors import APIError, DockerException, NotFound
from docker.transport.unixconn import UnixHTTPAdapter, UnixHTTPConnection, UnixHTTPConnectionPool
from docker.utils import decode_json_header, kwargs_from_env
from requests.adapters import BaseAdapter

from runtimes.deadline import Deadline

__all__ = ["LOOK_LABEL", "Engine", "PullRefusedError"]

LOOK_LABEL = "sandmill.look"
"""Of containers that never start, and live for as long as it takes to look into an image."""

_MAX_FILE_BYTES = 1 << 20

_GO_MODE_FOLDER = 1 << 31
"""The bit of folders in what the engine gives as mode."""

_DEFAULT_SECONDS = 10.0
"""For the version request that docker-py makes while it is built."""


class PullRefusedError(DockerException):
    """The engine could not fetch an image; its words, or those of the registry."""


class Engine(docker.APIClient):
    """docker-py's client, safe for several threads, each with its own deadline.

    Raises docker's and requests' errors.
    """

    def __init__(self, base_url: str | None) -> None:
        """base_url: None for DOCKER_HOST or the usual socket. Asks the engine for its API version."""
        self._deadlines = threading.local()
        settings: dict[str, Any] = {"base_url": base_url} if base_url else {**kwargs_from_env()}
        super().__init__(version="auto", **settings)

    def mount(self, prefix: str | bytes, adapter: BaseAdapter) -> None:
        """Override of the session's: docker-py's way to a Unix socket gives way to ours."""
        if isinstance(adapter, UnixHTTPAdapter):
            adapter = _Adapter(
                adapter.socket_path, timeout=adapter.timeout, max_pool_size=adapter.max_pool_size
            )
            # No proxy and no .netrc lead to a socket: to look for them with each call takes a quarter of it.
            self.trust_env = False
        super().mount(prefix, adapter)

    @contextmanager
    def until(self, deadline: Deadline) -> Iterator[None]:
        """Hold all calls of this thread to a deadline."""
        before = getattr(self._deadlines, "current", None)
        self._deadlines.current = deadline
        try:
            yield
        finally:
            self._deadlines.current = before

    def image_facts(self, name: str) -> dict[str, Any]:
        """Inspect an image."""
        facts: dict[str, Any] = self.inspect_image(name)  # type: ignore[no-untyped-call]  # the stubs leave it out
        return facts

    def fetch_image(
        self,
        name: str,
        auth: Mapping[str, str] | None = None,
        *,
        on_line: Callable[[Mapping[str, Any]], None] = lambda _: None,
        is_left: Callable[[], bool] | None = None,
    ) -> None:
        """Pull an image, within the deadline also if it comes in drop by drop. Raises PullRefusedError.

        auth: username and password; None: those that `docker login` saved. on_line: told what the engine says about it.
        is_left: asked with each line, instead of the deadline, which then is for each wait alone; True ends it.
        """
        deadline: Deadline | None = getattr(self._deadlines, "current", None)
        credentials = None if auth is None else dict(auth)
        try:
            with closing(self.pull(name, stream=True, decode=True, auth_config=credentials)) as progress:
                for line in progress:
                    if "error" in line:
                        raise PullRefusedError(str(line["error"]))
                    on_line(line)
                    is_over = deadline is not None and deadline.is_over
                    if is_over if is_left is None else is_left():
                        raise requests.exceptions.ReadTimeout
        except APIError as error:
            if error.status_code == 400:
                raise
            raise PullRefusedError(str(error.explanation or error)) from error

    def facts(self) -> dict[str, Any]:
        """Ask the engine about itself."""
        answer: dict[str, Any] = self.info()
        return answer

    def create(self, settings: dict[str, Any], name: str) -> str:
        """Create a container from the body of the API's own call; gives its id."""
        made = self.create_container_from_config(settings, name=name)  # type: ignore[no-untyped-call]  # as above
        return str(made["Id"])

    @contextmanager
    def unstarted(self, image_id: str) -> Iterator[str]:
        """Give a container of an image that never runs, to look into the image; it is removed afterwards."""
        made = self.create_container(
            image_id, command=["-"], network_disabled=True, labels={LOOK_LABEL: "look"}
        )
        container = str(made["Id"])
        try:
            yield container
        finally:
            self.remove_container(container, force=True, v=True)

    def collect_unstarted(self, *, before: float) -> int:
        """Remove those left by whoever died while looking into an image; gives how many would not go.

        before: Unix time when they were made.
        """
        left = 0
        for container in self.containers(all=True, filters={"label": [LOOK_LABEL]}):
            if container["Created"] < before:
                try:
                    self.remove_container(container["Id"], force=True, v=True)
                except NotFound:
                    continue
                except APIError:
                    left += 1
        return left

    def has_path(self, container: str, path: str) -> bool:
        """Say whether a container's file system has a path."""
        url = f"{self.base_url}/v{self.api_version}/containers/{container}/archive"
        response = self.head(url, params={"path": path}, **self._set_request_timeout({}))
        return bool(response.status_code == 200)

    def can_be_mounted_at(self, container: str, path: str) -> bool:
        """Say whether a container's file system has nothing at a path but, at most, a folder: no link, no file."""
        url = f"{self.base_url}/v{self.api_version}/containers/{container}/archive"
        response = self.head(url, params={"path": path}, **self._set_request_timeout({}))
        if response.status_code == 404:
            return True
        facts = decode_json_header(response.headers["X-Docker-Container-Path-Stat"])
        return bool(facts["mode"] & _GO_MODE_FOLDER) and not facts["linkTarget"]

    def put_folders(self, container: str, folders: Mapping[str, tuple[int, int, int]]) -> None:
        """Make folders in the file system of a container that has not started: (uid, gid, mode) by path, top first.

        What is there already becomes so, too.
        """
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for path, (uid, gid, mode) in folders.items():
                entry = tarfile.TarInfo(path.strip("/"))
                entry.type, entry.mode, entry.uid, entry.gid = tarfile.DIRTYPE, mode, uid, gid
                archive.addfile(entry)
        self.put_archive(container, "/", buffer.getvalue())

    def load(self, archive: bytes) -> None:
        """Load an image from an archive of `docker save`'s form. Raises APIError, ImageLoadError."""
        for _ in self.load_image(archive):  # type: ignore[no-untyped-call]  # the stubs leave it out
            pass

    def read_file(self, container: str, path: str) -> bytes | None:
        """Read a small file of a container's file system; None if there is none or it is large."""
        url = f"{self.base_url}/v{self.api_version}/containers/{container}/archive"
        with self.get(url, params={"path": path}, stream=True, **self._set_request_timeout({})) as response:
            if response.status_code != 200:
                return None
            content = response.raw.read(_MAX_FILE_BYTES, decode_content=True)
        try:
            with tarfile.open(fileobj=io.BytesIO(content)) as archive:
                member = archive.next()
                stream = archive.extractfile(member) if member is not None and member.isfile() else None
                return None if stream is None else stream.read()
        except (tarfile.TarError, OSError):
            return None

    def _set_request_timeout(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Override of docker-py's hook: what is left of the deadline, instead of one time for all calls."""
        deadline: Deadline | None = getattr(self._deadlines, "current", None)
        # None, which docker-py itself passes for a pull, would be no limit at all.
        if kwargs.get("timeout") is None:
            kwargs["timeout"] = _DEFAULT_SECONDS if deadline is None else max(0.001, deadline.remaining())
        return kwargs


class _Connection(UnixHTTPConnection):
    """Closes its socket when it cannot connect; docker-py leaves that to the garbage collector."""

    def connect(self) -> None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(self.timeout)
            connection.connect(self.unix_socket)
        except BaseException:
            connection.close()
            raise
        self.sock = connection


class _Pool(UnixHTTPConnectionPool):
    timeout: Any  # seconds, as a number; the stubs have its parent's type

    def _new_conn(self) -> Any:
        return _Connection(self.base_url, self.socket_path, self.timeout)


class _Adapter(UnixHTTPAdapter):
    def get_connection(self, url: Any, proxies: Any = None) -> _Pool:  # noqa: ARG002 -- of the overridden method
        with self.pools.lock:
            pool = self.pools.get(url)
            if pool is None:
                pool = self.pools[url] = _Pool(
                    url, self.socket_path, self.timeout, maxsize=self.max_pool_size
                )
            return pool
