"""The command `sandmill-server`."""

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from core.config import Settings
from core.environment import read_settings
from core.errors import SandmillError
from core.secret_rules import check_password
from launcher.config import (
    check_program_settings,
    config_warnings,
    read_installation_settings,
    read_launcher_settings,
)
from launcher.config_option import ConfigOption
from launcher.errors import StartupError
from launcher.health import FLOWER_PORT, Part, check_health
from launcher.images import image_app
from launcher.programs import COMMANDS, api_command, api_options, child_environment, flower_command
from launcher.samples import Example, write_sample

if TYPE_CHECKING:
    from launcher.stack import Stack

__all__ = ["app", "main"]


app = typer.Typer(
    help="Run Sandmill: everything on this machine with `up`, or one program of it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
key_app = typer.Typer(help="API keys.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(key_app, name="key")
app.add_typer(image_app, name="image")


@app.command()
def up(
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port of the API; 0 picks a free one.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the addresses as one JSON line.")] = False,
    flower: Annotated[bool, typer.Option(help="Also start Flower, which shows the workers.")] = True,
    _config: ConfigOption = None,
) -> None:
    """Start everything on this machine and stay until SIGINT or SIGTERM."""
    from launcher.stack import Stack, stack_config  # noqa: PLC0415 -- the other commands need none of it
    from launcher.termination import Termination  # noqa: PLC0415

    programs = check_program_settings()
    settings = read_launcher_settings()
    if port is not None:
        settings = settings.model_copy(update={"api_port": port})
    _tell(config_warnings(programs))
    config = stack_config(settings, programs, with_flower=flower)
    with Termination() as termination:
        try:
            with Stack(config, is_hurried=termination.is_hurried) as stack:
                _print_addresses(stack, as_json=as_json)
                stack.supervise()
        except KeyboardInterrupt:
            # Being asked to end is how this command ends.
            return


@app.command("init-config")
def init_config(
    path: Annotated[Path, typer.Argument(help="File to write.")] = Path("sandmill.toml"),
    example: Annotated[
        Example,
        typer.Option(help="What it is for: sandboxes without a container engine, with one, or compose."),
    ] = Example.LOCAL,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Write a configuration file with every setting and its meaning; only its owner may read it."""
    written = write_sample(path, example, is_forced=force)
    typer.echo(f"wrote {written}")


@app.command()
def migrate(_config: ConfigOption = None) -> None:
    """Bring the database to the newest schema."""
    from launcher.bootstrap import migrate as run_migrations  # noqa: PLC0415
    from launcher.external import check_external_postgres  # noqa: PLC0415

    run_migrations(check_external_postgres(read_settings(Settings).database_url.get_secret_value()))


@key_app.command("create")
def create_key(
    name: Annotated[str, typer.Argument(help="What the key is for.")],
    tenant: Annotated[str, typer.Option(help="Who it acts for; made if missing.")] = "default",
    admin: Annotated[
        bool, typer.Option("--admin", help="A key of an operator, for /v1/admin; it acts for no tenant.")
    ] = False,
    _config: ConfigOption = None,
) -> None:
    """Make an API key and print it: the only time it can be seen."""
    from launcher.bootstrap import create_admin_key, create_api_key  # noqa: PLC0415

    database_url = read_installation_settings().database_url.get_secret_value()
    if admin:
        typer.echo(create_admin_key(database_url, name=name))
    else:
        typer.echo(create_api_key(database_url, tenant=tenant, name=name))


@app.command()
def doctor(_config: ConfigOption = None) -> None:
    """Check what this machine can do, one line each; exit code 1 when something needed is missing."""
    from launcher.doctor import Mark, examine  # noqa: PLC0415

    programs = check_program_settings()
    settings = read_launcher_settings()
    _tell(config_warnings(programs))
    failed = False
    for finding in examine(
        settings,
        runtimes=programs.runtimes,
        worker_slots=programs.worker_slots,
        max_pids=programs.sandbox_max_pids,
    ):
        typer.echo(str(finding))
        failed = failed or finding.mark is Mark.FAIL
    if failed:
        raise typer.Exit(1)


@app.command()
def verify(  # noqa: PLR0917 -- each is an option of the command
    watch: Annotated[bool, typer.Option("--watch", help="Ask again and again, until interrupted.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON line per round.")] = False,
    interval: Annotated[
        float, typer.Option(min=0.01, max=86_400.0, help="Seconds between two rounds of --watch.")
    ] = 60.0,
    rounds: Annotated[int | None, typer.Option(min=1, help="End --watch after so many.")] = None,
    slack: Annotated[
        float, typer.Option(min=0.0, max=86_400.0, help="Seconds the scheduler may be late.")
    ] = 30.0,
    window: Annotated[
        float, typer.Option(min=1.0, help="Seconds back to which starts are judged by quotas.")
    ] = 3600.0,
    _config: ConfigOption = None,
) -> None:
    """Check that all rows in the database fit together; exit code 1 when some do not. Changes nothing."""
    from launcher.verify import VerifyOptions  # noqa: PLC0415 -- the other commands need none of it
    from launcher.verify import verify as run_verify  # noqa: PLC0415

    options = VerifyOptions(
        slack_seconds=slack,
        window_seconds=window,
        as_json=as_json,
        interval_seconds=interval if watch else None,
        rounds=rounds,
    )
    if not run_verify(read_installation_settings(), options):
        raise typer.Exit(1)


@app.command()
def api(_config: ConfigOption = None) -> None:
    """Run the API alone, with the settings of the environment and the configuration file."""
    settings = read_settings(Settings)
    _become(api_command(settings.api_host, settings.api_port, api_options(settings)))


@app.command()
def scheduler(_config: ConfigOption = None) -> None:
    """Run the scheduler alone, with the settings of the environment and the configuration file."""
    read_settings(Settings)
    _become(COMMANDS["scheduler"])


@app.command()
def worker(_config: ConfigOption = None) -> None:
    """Run one worker alone, with the settings of the environment and the configuration file."""
    read_settings(Settings)
    _become(COMMANDS["worker"])


@app.command()
def ingress(_config: ConfigOption = None) -> None:
    """Run the ingress of this node alone, the way to ports of its sandboxes, beside its worker."""
    read_settings(Settings)
    _become(COMMANDS["ingress"])


@app.command()
def flower(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Its port.")] = FLOWER_PORT,
    _config: ConfigOption = None,
) -> None:
    """Run Flower alone; user and password come from FLOWER_BASIC_AUTH (`user:password`), which must be set."""
    read_settings(Settings)
    logins = os.environ.get("FLOWER_BASIC_AUTH", "")
    if ":" not in logins:
        raise StartupError("Flower can stop tasks: set FLOWER_BASIC_AUTH=user:password for it")
    for login in logins.split(","):
        user, _, password = login.partition(":")
        check_password("FLOWER_BASIC_AUTH", user, password)
    _become(flower_command(host, port))


@app.command()
def health(
    part: Annotated[Part, typer.Argument(help="Which program, run with the same settings.")],
    _config: ConfigOption = None,
) -> None:
    """Exit with 0 if the program works, with 1 and a line if not: for health checks of a container engine."""
    check_health(part, read_settings(Settings))


def main() -> None:
    """Run a command. A known obstacle is one line on stderr and exit code 1; wrong usage is exit code 2."""
    try:
        # Also when ./run starts it as a module: usage lines name the command that is documented.
        app(prog_name="sandmill-server")
    except SandmillError as error:
        _fail(error.message)


def _become(argv: tuple[str, ...]) -> None:
    """Replace this process, so that signals of a container engine reach the program itself."""
    os.execve(argv[0], argv, child_environment({}))  # noqa: S606 -- argv is ours


def _print_addresses(stack: "Stack", *, as_json: bool) -> None:
    if as_json:
        addresses = {
            "api": stack.api_url,
            "api_key": stack.api_key,
            "ingress": stack.ingress_url,
            "flower": stack.flower_url,
        }
        line = json.dumps(addresses)
    else:
        parts = [f"api {stack.api_url}", f"key {stack.api_key}", f"ingress {stack.ingress_url}"]
        if stack.flower_url:
            parts.append(f"flower {stack.flower_url}")
        line = f"Sandmill is up: {'  '.join(parts)}  (Ctrl-C stops it)"
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _tell(lines: Iterable[str]) -> None:
    for line in lines:
        sys.stderr.write(f"sandmill: {line}\n")


def _fail(message: str) -> NoReturn:
    sys.stderr.write(f"sandmill: {' '.join(message.split())}\n")
    sys.exit(1)


if __name__ == "__main__":
    main()
