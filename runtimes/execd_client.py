"""The client of execd, over any stream socket."""

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

from core.errors import (
    DaemonError,
    ExecdUnreachableError,
    InvalidRequestError,
    NotFoundError,
    PayloadTooLargeError,
    SpecInvalidError,
)
from runtimes.base import BackgroundRun, Command, CommandResult, FileInfo, FileUpload, KeptRun, StreamName
from runtimes.events import EventParser, event_bytes, missing_bytes, result_of
from runtimes.http_exchange import SILENCE_SECONDS, Exchange, Stopped
from runtimes.multipart import multipart_body

__all__ = ["HttpExecutionClient"]

_GIVE_UP_MARGIN_SECONDS = 5.0
"""After its grace execd needs moments to kill and report; if it stays silent this long it is not coming back."""

_INTERRUPT_SILENCE_SECONDS = 5.0
_LOOK_SILENCE_SECONDS = 3.0
_PATHS_PER_REQUEST = 10
"""A path has up to 4,096 bytes, three times that when escaped, and execd takes request lines of 64 KiB and more."""

_MAX_ERROR_BYTES = 64 << 10
_MAX_LOG_BYTES = 64 << 20
"""More than execd keeps of one command."""


class HttpExecutionClient:
    """Implements `ExecutionClient`. Thread-safe: each call opens its own connection and closes it."""

    def __init__(
        self,
        connect: Callable[[], socket.socket],
        token: str | None = None,
        *,
        silence_seconds: float = SILENCE_SECONDS,
    ) -> None:
        """connect: opens a stream to execd; raises ExecdUnreachableError. token: X-EXECD-ACCESS-TOKEN, if wanted.

        silence_seconds: how long execd may send nothing before it counts as gone.
        """
        self._connect = connect
        self._silence = silence_seconds
        self._headers = [] if token is None else [("X-EXECD-ACCESS-TOKEN", token)]

    def ping(self) -> None:
        """Return when execd answers."""
        with self._exchange() as exchange:
            response = exchange.request("GET", "/ping", headers=self._headers)
            if response.status_code != 200:
                raise ExecdUnreachableError(f"execd answered /ping with {response.status_code}")

    def run(
        self,
        command: Command,
        *,
        on_output: Callable[[StreamName, bytes], None],
        stop: threading.Event | None = None,
        kill_grace_seconds: float = 10.0,
        kept: KeptRun | None = None,
    ) -> CommandResult:
        """Run in the foreground; see `ExecutionClient.run`.

        If on_output raises, the connection is closed, execd kills the command unless it is kept, and the exception
        goes on.
        """
        headers = [*self._headers, ("Content-Type", "application/json"), ("Accept", "text/event-stream")]
        document, target = _command_json(command), "/command"
        if kept is not None:
            document["kept"] = True
            headers.append(("Idempotency-Key", kept.key))
            target += f"?offset={kept.offset}" + ("&attach=only" if kept.is_started else "")
        body = json.dumps(document).encode()
        with self._exchange() as exchange:
            response = exchange.request("POST", target, headers=headers, body=body)
            if response.status_code == 404 and kept is not None and kept.is_started:
                raise NotFoundError("command", kept.key)
            if response.status_code != 200:
                return _refused_command(exchange, response.status_code)
            run = _Run(self, exchange, on_output, stop, kill_grace_seconds)
            return run.follow()

    def start(self, command: Command, *, key: str) -> None:
        """Start in the background, once per key; see `ExecutionClient.start`."""
        self._start(command, key, "/command")

    def background_output(self, command: Command, *, key: str) -> bytes:
        """Give what a command in the background has written; see `ExecutionClient.background_output`."""
        execution_id = self._start(command, key, "/command?attach=only")
        with self._get(f"/command/{execution_id}/logs", {}) as (exchange, status):
            if status == 404:
                raise NotFoundError("command", key)
            if status != 200:
                raise DaemonError(f"execd answered {status}: {_error_message(exchange)}")
            return exchange.read(max_bytes=_MAX_LOG_BYTES) or b""

    def background_run(
        self, command: Command, *, key: str, tail_bytes: int, wait_seconds: float = 0.0
    ) -> BackgroundRun:
        """Say how a command in the background is; see `ExecutionClient.background_run`.

        Those who ask have other sandboxes to look after: execd counts as gone after a few seconds of silence.
        """
        most = _LOOK_SILENCE_SECONDS + wait_seconds
        if self._silence > most:
            hasty = copy(self)
            hasty._silence = most  # noqa: SLF001 -- a copy of this very object
            return hasty.background_run(command, key=key, tail_bytes=tail_bytes, wait_seconds=wait_seconds)
        execution_id = self._start(command, key, "/command?attach=only")
        query = {"timeout_ms": str(round(wait_seconds * 1000))}
        with self._get(f"/command/{execution_id}/wait", query) as (exchange, status):
            if status == 404:
                raise NotFoundError("command", key)
            if status != 200:
                raise DaemonError(f"execd answered {status}: {_error_message(exchange)}")
            answer = exchange.read_json()
        run = _background_run(answer)
        if not tail_bytes or not run.total_bytes:
            return run
        first = max(0, run.total_bytes - tail_bytes)
        query = {"stream": "stdout", "offset": str(first), "limit": str(tail_bytes)}
        with self._get(f"/command/{execution_id}/output", query) as (exchange, status):
            output = exchange.read(max_bytes=tail_bytes) if status == 200 else None
        return replace(run, output=output or b"")

    def _start(self, command: Command, key: str, target: str) -> str:
        """Start a command, or find the one that the key started; gives its id."""
        body = json.dumps({**_command_json(command), "background": True}).encode()
        headers = [*self._headers, ("Content-Type", "application/json"), ("Accept", "text/event-stream")]
        with self._exchange() as exchange:
            response = exchange.request(
                "POST", target, headers=[*headers, ("Idempotency-Key", key)], body=body
            )
            if response.status_code == 404:
                raise NotFoundError("command", key)
            if response.status_code != 200:
                result = _refused_command(exchange, response.status_code)
                execution_id = ""
            else:
                run = _Run(self, exchange, lambda *_: None, None, 0.0)
                result = run.follow()
                execution_id = run.execution_id
        if result.error is not None:
            raise SpecInvalidError(
                f"entrypoint: {command.argv or command.shell} cannot be started: {result.error}",
                field="entrypoint",
            )
        return execution_id

    def upload(self, files: Sequence[FileUpload]) -> None:
        """Write files; each appears whole or not at all.

        Raises SpecInvalidError if the sandbox cannot take one (no permission, disk full, a folder in its place).
        """
        if not files:
            return
        boundary = os.urandom(16).hex()
        headers = [*self._headers, ("Content-Type", f"multipart/form-data; boundary={boundary}")]
        with self._exchange() as exchange:
            body = multipart_body(files, boundary)
            response = exchange.request("POST", "/files/upload", headers=headers, body=body)
            if response.status_code == 200:
                return
            message = _error_message(exchange)
            if response.status_code in (400, 403, 404, 413, 507):
                raise SpecInvalidError(f"cannot write {', '.join(f.path for f in files[:3])}: {message}")
            raise DaemonError(f"upload failed with {response.status_code}: {message}")

    def download(self, path: str, *, max_bytes: int) -> bytes:
        """Read one regular file. Raises NotFoundError, PayloadTooLargeError, InvalidRequestError."""
        with self._get("/files/download", {"path": path}) as (exchange, status):
            if status == 200:
                data = exchange.read(max_bytes=max_bytes)
                if data is None:
                    raise PayloadTooLargeError(f"{path} is larger than {max_bytes} bytes")
                return data
            raise _path_error(exchange, status, path)

    def delete(self, paths: Sequence[str]) -> None:
        """Remove files; those that are missing already are no error. Raises SpecInvalidError for what is no file."""
        for start in range(0, len(paths), _PATHS_PER_REQUEST):
            some = paths[start : start + _PATHS_PER_REQUEST]
            target = "/files?" + urlencode([("path", path) for path in some])
            with self._exchange() as exchange:
                status = exchange.request("DELETE", target, headers=self._headers).status_code
                if status != 200:
                    message = f"cannot remove {', '.join(some[:3])}: {_error_message(exchange)}"
                    raise SpecInvalidError(message) if status < 500 else DaemonError(message)

    def file_info(self, path: str) -> FileInfo:
        """Look at one path. Raises NotFoundError."""
        with self._get("/files/info", {"path": path}) as (exchange, status):
            if status != 200:
                raise _path_error(exchange, status, path)
            answer = exchange.read_json()
        if not isinstance(answer, dict) or path not in answer:
            raise ExecdUnreachableError("execd left the path out of its answer")
        return _file_info(answer[path])

    def search(self, path: str, pattern: str) -> list[FileInfo]:
        """List files below path whose basename matches the glob; a missing path gives an empty list."""
        with self._get("/files/search", {"path": path, "pattern": pattern}) as (exchange, status):
            if status == 404:
                return []
            if status != 200:
                raise _path_error(exchange, status, path)
            answer = exchange.read_json()
        if not isinstance(answer, list):
            raise ExecdUnreachableError("execd's answer to a search is no list")
        return [_file_info(entry) for entry in answer]

    def interrupt(self, execution_id: str, *, grace_seconds: float) -> None:
        """Ask execd to end a command: TERM, the grace, KILL. Returns once it did, or has no such command."""
        target = "/command?" + urlencode({"id": execution_id, "grace_ms": round(grace_seconds * 1000)})
        silence = grace_seconds + _INTERRUPT_SILENCE_SECONDS
        with Exchange(self._connect(), silence_seconds=silence) as exchange:
            exchange.request("DELETE", target, headers=self._headers)

    def close(self) -> None:
        """Nothing is kept between calls."""

    def _exchange(self) -> Exchange:
        return Exchange(self._connect(), silence_seconds=self._silence)

    def _get(self, path: str, query: dict[str, str]) -> "_Get":
        return _Get(self._exchange(), f"{path}?{urlencode(query)}", self._headers)


class _Get:
    """A GET whose exchange stays open for the body: `with _Get(...) as (exchange, status)`."""

    def __init__(self, exchange: Exchange, target: str, headers: list[tuple[str, str]]) -> None:
        self._exchange = exchange
        self._target = target
        self._headers = headers

    def __enter__(self) -> tuple[Exchange, int]:
        exchange = self._exchange.__enter__()
        try:
            return exchange, exchange.request("GET", self._target, headers=self._headers).status_code
        except BaseException:
            exchange.close()
            raise

    def __exit__(self, *_: object) -> None:
        self._exchange.close()


class _Run:
    """One command's stream, followed to its end."""

    def __init__(
        self,
        client: HttpExecutionClient,
        exchange: Exchange,
        on_output: Callable[[StreamName, bytes], None],
        stop: threading.Event | None,
        grace_seconds: float,
    ) -> None:
        self._client = client
        self._exchange = exchange
        self._on_output = on_output
        self._stop = stop
        self._grace = grace_seconds
        self._id: str | None = None
        self._parser = EventParser()
        self._stopped_at: float | None = None
        self._asked = False
        self._missing = 0

    @property
    def execution_id(self) -> str:
        """What execd calls it; empty until it has said so."""
        return self._id or ""

    def follow(self) -> CommandResult:
        """Pass on output until the terminal event."""
        while True:
            try:
                for chunk in self._exchange.chunks(self._is_due):
                    result = self._take(chunk)
                    if result is not None:
                        return result
            except Stopped:
                self._ask_to_stop()
            else:
                raise ExecdUnreachableError("execd's stream ended without saying how the command did")

    def _is_due(self) -> bool:
        """Say whether something about stopping has to be done now."""
        if self._stopped_at is None:
            return self._stop is not None and self._stop.is_set()
        can_ask = not self._asked and self._id is not None
        return can_ask or time.monotonic() - self._stopped_at > self._grace + _GIVE_UP_MARGIN_SECONDS

    def _ask_to_stop(self) -> None:
        if self._stopped_at is None:
            self._stopped_at = time.monotonic()
        elif self._asked or self._id is None:
            raise ExecdUnreachableError("execd did not end the command it was asked to stop")
        if self._id is not None:
            self._asked = True
            # In a thread of its own: execd answers when all is dead, and until then output still comes.
            arguments = {"execution_id": self._id, "grace_seconds": self._grace}
            threading.Thread(target=self._interrupt, kwargs=arguments, daemon=True).start()

    def _interrupt(self, execution_id: str, grace_seconds: float) -> None:
        try:
            self._client.interrupt(execution_id, grace_seconds=grace_seconds)
        except ExecdUnreachableError:
            return  # the stream will tell: it ends, or its silence does

    def _take(self, chunk: bytes) -> CommandResult | None:
        """Handle the events of one read. Neighbours of one stream are passed on together."""
        held: list[bytes] = []
        held_stream: StreamName = "stdout"
        result: CommandResult | None = None
        for event in self._parser.feed(chunk):
            output = event_bytes(event)
            if output is not None:
                stream, data = output
                if held and stream != held_stream:
                    self._on_output(held_stream, b"".join(held))
                    held = []
                held_stream = stream
                held.append(data)
                continue
            if event["type"] == "init":
                self._id = str(event.get("text", ""))[:128]
            self._missing += missing_bytes(event)
            result = result_of(event, interrupted=self._asked)
            if result is not None:
                result = replace(result, missing_bytes=self._missing)
                break
        if held:
            self._on_output(held_stream, b"".join(held))
        return result


def _background_run(answer: Any) -> BackgroundRun:
    """Read what execd says of a command."""
    try:
        return BackgroundRun(
            is_running=bool(answer["running"]),
            exit_code=None if answer["exit_code"] is None else int(answer["exit_code"]),
            signal=None if answer["signal"] is None else int(answer["signal"]),
            oom_killed=bool(answer["oom_killed"]),
            total_bytes=int(answer["stdout_bytes"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ExecdUnreachableError("execd's status of a command is none") from error


def _command_json(command: Command) -> dict[str, Any]:
    """Give the wire form; execd refuses what makes no sense."""
    body: dict[str, Any] = {
        "command": command.shell,
        "argv": None if command.argv is None else list(command.argv),
        "cwd": command.cwd,
        "envs": dict(command.env) or None,
        "merge_stderr": command.merge_streams or None,
        "kill_leftovers": command.kill_leftovers or None,
    }
    if command.timeout_seconds is not None:
        body["timeout"] = max(1, round(command.timeout_seconds * 1000))
    return {name: value for name, value in body.items() if value is not None}


def _refused_command(exchange: Exchange, status: int) -> CommandResult:
    """Turn the refusal of a command into its result, or into the error it is."""
    message = _error_message(exchange)
    if status == 400:
        return CommandResult(error=message)
    raise DaemonError(f"execd refused the command with {status}: {message}")


def _error_message(exchange: Exchange) -> str:
    """Read `{"code", "message"}`; other bodies are shown as they are."""
    body = exchange.read(max_bytes=_MAX_ERROR_BYTES) or b""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    message = document.get("message") if isinstance(document, dict) else None
    return message if isinstance(message, str) else body[:500].decode("utf-8", "replace")


def _path_error(exchange: Exchange, status: int, path: str) -> Exception:
    """Give the error for an answer about one path."""
    message = _error_message(exchange)
    if status == 404:
        return NotFoundError("file", path)
    if status in (400, 403):
        return InvalidRequestError(f"{path}: {message}", field="path")
    return DaemonError(f"{path}: execd answered {status}: {message}")


def _file_info(value: Any) -> FileInfo:
    """Read a FileInfo. mode comes as a decimal number that looks octal: 644."""
    try:
        kind = value["type"]
        info = FileInfo(
            path=str(value["path"]),
            type=kind if kind in ("file", "directory", "symlink") else "other",
            size=int(value["size"]),
            mode=int(str(int(value["mode"])), 8),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ExecdUnreachableError("execd sent a bad file description") from error
    return info
