"""The Python programs of the stack: how each is run, and how one sees that it works."""

import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from core.config import Settings
from core.config_file import CONFIG_VARIABLE, find_config_file
from launcher.children import ChildSpec
from launcher.service import Service
from launcher.state import Home

__all__ = ["COMMANDS", "Program", "api_command", "api_options", "child_environment", "flower_command"]

COMMANDS: Mapping[str, tuple[str, ...]] = {
    "ingress": (sys.executable, "-m", "ingress"),
    "scheduler": (sys.executable, "-m", "scheduler"),
    "worker": (sys.executable, "-m", "workers"),
}
"""Programs that take all they need from the environment."""


def api_command(host: str, port: int, options: Sequence[str] | None = None) -> tuple[str, ...]:
    """Uvicorn for the API. options: of `api_options`; None: those of the default settings."""
    return (
        *(sys.executable, "-m", "uvicorn", "api.app:create_app", "--factory"),
        *("--host", host, "--port", str(port)),
        *(_DEFAULT_API_OPTIONS if options is None else options),
        *("--no-access-log", "--no-server-header", "--log-level", "warning"),
        # Named, since else it depends on what else is installed.
        *("--ws", "wsproto", "--http", "api.http_protocol:StrictHttpProtocol"),
    )


def api_options(settings: Settings) -> tuple[str, ...]:
    """Give what the settings say about the server of the API, as options of Uvicorn."""
    limit = settings.api_limit_concurrency
    proxies = settings.api_trusted_proxies
    return (
        *("--timeout-graceful-shutdown", str(settings.api_graceful_shutdown_seconds)),
        *("--timeout-keep-alive", str(settings.api_keep_alive_seconds)),
        *("--backlog", str(settings.api_backlog)),
        *(("--limit-concurrency", str(limit)) if limit else ()),
        # Said in either case: by itself Uvicorn believes this machine, and its own variable of the environment.
        *(
            ("--proxy-headers", "--forwarded-allow-ips", ",".join(proxies))
            if proxies
            else ("--no-proxy-headers",)
        ),
    )


def flower_command(host: str, port: int) -> tuple[str, ...]:
    """Flower; its password goes by FLOWER_BASIC_AUTH, since every user can read the arguments."""
    return (
        *(sys.executable, "-m", "celery", "-A", "workers.app", "flower"),
        *(f"--address={host}", f"--port={port}", "--logging=warning"),
    )


def child_environment(overrides: Mapping[str, str]) -> dict[str, str]:
    """Environment of a Python child: ours with overrides, able to import what we can."""
    root = str(Path(__file__).resolve().parent.parent)
    inherited = os.environ.get("PYTHONPATH")
    config = find_config_file(os.environ)
    return {
        **os.environ,
        # By its whole path: the child may have another working directory, and shall read what we have read.
        **({CONFIG_VARIABLE: str(config)} if config else {}),
        "PYTHONPATH": f"{root}{os.pathsep}{inherited}" if inherited else root,
        "PYTHONUNBUFFERED": "1",
        # Not from the working directory: a folder there may be named like one of our packages.
        "PYTHONSAFEPATH": "1",
        **overrides,
    }


class Program(Service):
    """A Python program of ours, run as a child."""

    def __init__(
        self,
        name: str,
        argv: tuple[str, ...],
        *,
        home: Home,
        env: Mapping[str, str],
        probe: Callable[[int], bool],
        stop_timeout_seconds: float = 10.0,
        stop_signal: signal.Signals = signal.SIGTERM,
    ) -> None:
        """env: the whole environment. probe: gets the pid, says whether the program works."""
        super().__init__()
        self.name = name
        self._argv = argv
        self._env = env
        self._home = home
        self._probe = probe
        self._stop_timeout_seconds = stop_timeout_seconds
        self._stop_signal = stop_signal

    def spec(self) -> ChildSpec:
        """Describe the child. A killed launcher takes it along by SIGKILL: leases and fences are made for that."""
        return ChildSpec(
            name=self.name,
            argv=self._argv,
            env=self._env,
            log=self._home.logs / f"{self.name}.log",
            cwd=self._home.path,
            stop_timeout_seconds=self._stop_timeout_seconds,
            stop_signal=self._stop_signal,
            death_signal=signal.SIGKILL,
            inherited_fds=(self._home.children_lock_fd,),
        )

    def is_ready(self) -> bool:
        """Ask the probe."""
        return self.child is not None and self._probe(self.child.pid)


_DEFAULT_API_OPTIONS = api_options(
    Settings.model_construct(
        **{name: field.default for name, field in Settings.model_fields.items() if name.startswith("api_")}
    )
)
