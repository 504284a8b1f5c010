"""Bytes per second into and out of a sandbox's daemon, against the standard library's server on the same loopback.

Each transfer is followed by one of the reference; the median of their ratios counts, as a load that comes and goes
slows both of a pair alike.
"""

import argparse
import http.server
import json
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path

from execd.bundle import build_bundle, bundle_command

PIECE_BYTES = 1 << 20
BOUNDARY = b"opensandbox_0123456789abcdef_1796054047"


class ReferenceHandler(http.server.SimpleHTTPRequestHandler):
    """Files of a folder, to be read and written."""

    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        """Write the body to the path."""
        rest = int(self.headers["content-length"])
        with Path(self.translate_path(self.path)).open("wb") as target:
            while rest > 0:
                data = self.rfile.read(min(rest, shutil.COPY_BUFSIZE))  # type: ignore[attr-defined]  # as copyfileobj
                target.write(data)
                rest -= len(data)
        self.send_response(HTTPStatus.OK)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def main() -> None:
    """Measure both and print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mebibytes", type=int, default=256, help="size of the file")
    parser.add_argument(
        "--repeat", type=int, default=7, help="pairs of transfers of each kind; the median counts"
    )
    arguments = parser.parse_args()
    size = arguments.mebibytes << 20
    with tempfile.TemporaryDirectory(prefix="sandmill-bench-") as name:
        folder = Path(name)
        with (folder / "source").open("wb") as file:
            for _ in range(arguments.mebibytes):
                file.write(b"\x5a" * PIECE_BYTES)
        with execd_in(folder) as port, reference_in(folder) as reference:
            transfers: dict[str, Callable[[], None]] = {
                "execd_download": lambda: download(port, f"/files/download?path={folder}/source", size),
                "reference_download": lambda: download(reference, "/source", size),
                "execd_upload": lambda: upload(port, folder / "uploaded", size),
                "reference_upload": lambda: put(reference, "/put", size),
            }
            seconds: dict[str, list[float]] = {kind: [] for kind in transfers}
            for _ in range(arguments.repeat):
                for kind, transfer in transfers.items():
                    started = time.perf_counter()
                    transfer()
                    seconds[kind].append(time.perf_counter() - started)
    ratios = {
        kind: [
            reference / own
            for reference, own in zip(seconds[f"reference_{kind}"], seconds[f"execd_{kind}"], strict=True)
        ]
        for kind in ("download", "upload")
    }
    rates = {kind: arguments.mebibytes / statistics.median(times) for kind, times in seconds.items()}
    print(
        json.dumps(
            {
                "benchmark": "file_transfer",
                "mebibytes": arguments.mebibytes,
                **{f"{kind}_mib_per_second": round(rate) for kind, rate in rates.items()},
                **{
                    f"{kind}_per_reference": round(statistics.median(pairs), 2)
                    for kind, pairs in ratios.items()
                },
                **{f"{kind}_per_reference_lowest": round(min(pairs), 2) for kind, pairs in ratios.items()},
            }
        )
    )


@contextmanager
def execd_in(folder: Path) -> Iterator[int]:
    """The daemon from its bundle; gives its port."""
    build_bundle(folder / "bundle")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port: int = listener.getsockname()[1]
        argv = bundle_command(str(folder / "bundle"), args=["--listen-fd", str(listener.fileno())])
        process = subprocess.Popen(argv, pass_fds=[listener.fileno()], stdin=subprocess.DEVNULL)
    try:
        yield port
    finally:
        process.terminate()
        process.wait()


@contextmanager
def reference_in(folder: Path) -> Iterator[int]:
    """The standard library's server in a process of its own; gives its port."""
    argv = [sys.executable, "-m", "benchmarks.file_transfer", "--serve", str(folder)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=Path(__file__).parent.parent) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.terminate()


def serve(folder: str) -> None:
    """Be the reference: print the port, and serve until killed."""
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), lambda *arguments: ReferenceHandler(*arguments, directory=folder)
    )
    print(server.server_address[1], flush=True)
    server.serve_forever()


def download(port: int, target: str, size: int) -> None:
    """Get a file and drop it."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        view = memoryview(bytearray(PIECE_BYTES))
        received = 0
        while count := connection.recv_into(view):
            received += count
    assert received > size, received


def put(port: int, target: str, size: int) -> None:
    """Put bytes."""
    _send(port, f"PUT {target} HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n".encode(), size, b"")


def upload(port: int, path: Path, size: int) -> None:
    """Upload bytes as a form of one file."""
    document = json.dumps({"path": str(path)}).encode()
    head = (
        b'--%b\r\nContent-Disposition: form-data; name="metadata"; filename="metadata"\r\n'
        b"Content-Type: application/json\r\n\r\n%b\r\n"
        b'--%b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
        % (BOUNDARY, document, BOUNDARY)
    )
    tail = b"\r\n--%b--\r\n" % BOUNDARY
    length = len(head) + size + len(tail)
    request = (
        f"POST /files/upload HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n"
        f"Content-Type: multipart/form-data; boundary={BOUNDARY.decode()}\r\n\r\n"
    )
    _send(port, request.encode() + head, size, tail)


def _send(port: int, head: bytes, size: int, tail: bytes) -> None:
    piece = b"\x5a" * PIECE_BYTES
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(head)
        for _ in range(size // PIECE_BYTES):
            connection.sendall(piece)
        connection.sendall(tail)
        answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 200"), answer


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2])
    else:
        main()
