"""The commands `sandmill-server image ...`: what is in the image store of this node."""

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from core.environment import read_settings
from launcher.config import LauncherSettings
from launcher.config_option import ConfigOption

if TYPE_CHECKING:
    from runtimes.local.images import ImageStore, PullProgress, StoredImage

__all__ = ["image_app"]

image_app = typer.Typer(
    help="Images that `local` sandboxes start from.", no_args_is_help=True, rich_markup_mode=None
)


@image_app.command("import")
def import_image(
    path: Annotated[
        Path, typer.Argument(help="Root file system as tar, OCI layout, or archive of docker save.")
    ],
    name: Annotated[str | None, typer.Option(help="Its name here, e.g. tools:1; default: its own.")] = None,
    _config: ConfigOption = None,
) -> None:
    """Store an image from a file or folder; tars may be compressed with gzip, zstd or xz."""
    image = _open_store().import_archive(path, name=name)
    typer.echo(f"{image.name} {image.digest}")


@image_app.command("pull")
def pull_image(
    reference: Annotated[str, typer.Argument(help="As for docker pull, e.g. python:3.12 or host:5000/a/b.")],
    username: Annotated[
        str | None, typer.Option(help="User at the registry; default: docker login's.")
    ] = None,
    password_stdin: Annotated[
        bool, typer.Option("--password-stdin", help="Read the password from standard input.")
    ] = False,
    platform: Annotated[
        str | None, typer.Option(help="E.g. linux/arm64; default: that of this machine.")
    ] = None,
    _config: ConfigOption = None,
) -> None:
    """Fetch an image from its registry. A password is never taken from the command line, where all can read it."""
    if (username is None) == password_stdin:
        raise typer.BadParameter("--username and --password-stdin go together")
    password = sys.stdin.read().rstrip("\r\n") if password_stdin else None
    image = _open_store().pull(
        reference, username=username, password=password, platform=platform, progress=_print_progress()
    )
    typer.echo(f"{image.name} {image.digest}")


@image_app.command("list")
def list_images(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    _config: ConfigOption = None,
) -> None:
    """List the images, by name."""
    images = _open_store().list()
    if as_json:
        for image in images:
            typer.echo(json.dumps(_to_json(image)))
    else:
        _print_table(images)


@image_app.command("remove")
def remove_image(
    name: Annotated[str, typer.Argument(help="Name or digest, as `list` shows it.")],
    _config: ConfigOption = None,
) -> None:
    """Remove an image; what a running sandbox uses of it goes when that ends."""
    _open_store().remove(name)


def _open_store() -> "ImageStore":
    from runtimes.registry import open_image_store  # noqa: PLC0415 -- the other commands need none of it

    settings = read_settings(LauncherSettings)
    return open_image_store(
        settings.home.expanduser().absolute() / "runtimes",
        docker_config=settings.docker_config.expanduser() / "config.json",
    )


def _print_progress() -> "Callable[[PullProgress], None]":
    """Tell how far a pull is: to a terminal in one line that changes, else a line at each new stage."""
    is_terminal = sys.stderr.isatty()
    last = ("", 0, -1)

    def show(progress: "PullProgress") -> None:
        nonlocal last
        percent = 100 * progress.done_bytes // max(1, progress.total_bytes) if is_terminal else 0
        now = (progress.stage, progress.layer, percent)
        if now == last:
            return
        last = now
        line = f"layer {progress.layer} of {progress.layers}: {progress.stage} {progress.total_bytes / 2**20:.1f} MiB"
        sys.stderr.write(f"\r\033[K{line} {percent} %" if is_terminal else f"{line}\n")
        if is_terminal and progress.stage == "unpack" and progress.layer == progress.layers:
            sys.stderr.write("\n")
        sys.stderr.flush()

    return show


def _to_json(image: "StoredImage") -> dict[str, Any]:
    return {
        "name": image.name,
        "digest": image.digest,
        "size_bytes": image.size_bytes,
        "architecture": image.config.architecture,
        "user": image.config.user,
        "created_at": image.created_at.isoformat(),
    }


def _print_table(images: "Iterable[StoredImage]") -> None:
    rows = [("NAME", "DIGEST", "ARCHITECTURE", "SIZE")]
    rows += [
        (image.name, image.digest[7:19], image.config.architecture, f"{image.size_bytes / 2**20:.1f} MiB")
        for image in images
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        sys.stdout.write("  ".join([*cells, row[3]]) + "\n")
