"""The whole stack as children of this process: started in order, watched, stopped in order."""

import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from core.config import Settings, reachable_host
from launcher.bootstrap import ensure_api_key, migrate
from launcher.config import LauncherSettings
from launcher.external import check_external_postgres, check_external_redis
from launcher.health import INGRESS_HEALTH
from launcher.logs import bound_log, rotate_log
from launcher.ports import LOOPBACK, check_port_is_free, find_free_port, is_port_free
from launcher.postgres import EmbeddedPostgres
from launcher.probes import DatabaseProbe, answers_ok
from launcher.programs import COMMANDS, Program, api_command, api_options, child_environment, flower_command
from launcher.service import Service, stop_services, wait_until_ready
from launcher.state import Home
from launcher.supervisor import Supervisor
from launcher.valkey import EmbeddedValkey
from workers.watching import end_sandboxes

__all__ = ["Stack", "StackConfig", "stack_config"]

_FLOWER_USER = "sandmill"
_SECRET_KEY = "SANDMILL_SECRET_KEY"  # noqa: S105 -- a name
_KEYS = {_SECRET_KEY, "SANDMILL_SERVER_API_KEY", "OPENSANDBOX_SERVER_API_KEY"}
_WATCH_SECONDS = 0.2
_END_SECONDS = 10.0
"""For the watchdog to kill and remove what a killed worker left."""

_LOG_CHECK_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class StackConfig:
    """What to start.

    api_host: where the API listens. api_port: 0 picks a free one. api_options: see `launcher.programs.api_options`.
    ingress_host: where the ingress listens; None: where the API does. ingress_port: 0 picks a free one; None does
    so, too, unless the usual one is free and the API has a port of its own. database_url, redis_url: external
    servers; nothing of ours is started for them. has_secret_key: whether the settings of the programs name one;
    else they have that of home. environment: settings of the programs as environment variables, e.g.
    {"SANDMILL_WORKER_SLOTS": "4"}.
    """

    home: Path
    api_host: str = LOOPBACK
    api_port: int = 0
    api_options: Sequence[str] | None = None
    ingress_host: str | None = None
    ingress_port: int | None = None
    database_url: str | None = None
    redis_url: str | None = None
    with_flower: bool = True
    has_secret_key: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)


def stack_config(settings: LauncherSettings, programs: Settings, *, with_flower: bool = True) -> StackConfig:
    """Give what `up` starts with these settings. programs: see `check_program_settings`."""
    return StackConfig(
        home=settings.home,
        api_host=settings.api_host,
        api_port=settings.api_port,
        api_options=api_options(programs),
        ingress_host=programs.ingress_host if "ingress_host" in programs.model_fields_set else None,
        ingress_port=programs.ingress_port if "ingress_port" in programs.model_fields_set else None,
        database_url=settings.database_url.get_secret_value() if settings.database_url else None,
        redis_url=settings.redis_url.get_secret_value() if settings.redis_url else None,
        with_flower=with_flower,
        has_secret_key=programs.secret_key is not None,
    )


class Stack:
    """Context manager: entering returns when everything answers, leaving stops all of it.

    Enter it in a thread that lives until it is left, the main one at best: the children are killed with it.
    """

    def __init__(self, config: StackConfig, *, is_hurried: Callable[[], bool] = lambda: False) -> None:
        """is_hurried: asked while stopping; True kills instead of waiting."""
        self._config = config
        self._is_hurried = is_hurried
        self._held = ExitStack()
        self._stages: list[list[Service]] = []
        self.api_port = config.api_port
        self.ingress_port = 0
        self.flower_port: int | None = None
        self.database_url = ""
        self.redis_url = ""
        self.api_key = ""
        self._flower_password = ""
        self._node_folder: Path | None = None

    @property
    def api_url(self) -> str:
        """Address of the API for programs of this machine."""
        return f"http://{reachable_host(self._config.api_host)}:{self.api_port}"

    @property
    def ingress_url(self) -> str:
        """Address of the ingress for programs of this machine."""
        return f"http://{reachable_host(self._ingress_host)}:{self.ingress_port}"

    @property
    def _ingress_host(self) -> str:
        return self._config.ingress_host or self._config.api_host

    @property
    def flower_url(self) -> str | None:
        """Address of Flower with its user and password; None without Flower."""
        if self.flower_port is None:
            return None
        return f"http://{_FLOWER_USER}:{self._flower_password}@{LOOPBACK}:{self.flower_port}"

    @property
    def services(self) -> list[Service]:
        """Every part that was started, in the order of starting."""
        return [service for stage in self._stages for service in stage]

    def __enter__(self) -> Self:
        """Start everything. Raises StartupError with nothing left running."""
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop everything."""
        self.stop()

    def supervise(self, *, report: Callable[[str], None] | None = None) -> None:
        """Watch the children and start again what ends, until an exception (KeyboardInterrupt) breaks it off.

        Call it from the thread that entered the stack. report: gets one line per event; default: stderr.
        """
        supervisor = Supervisor(self.services, report=report or _report_to_stderr)
        next_log_check = 0.0
        while True:
            supervisor.step(time.monotonic())
            if time.monotonic() >= next_log_check:
                next_log_check = time.monotonic() + _LOG_CHECK_SECONDS
                for service in self.services:
                    if service.child is not None:
                        bound_log(service.child.spec.log)
            time.sleep(_WATCH_SECONDS)

    def stop(self) -> None:
        """Stop all in the reverse order and give the home free. Idempotent."""
        for stage in reversed(self._stages):
            stop_services(stage, is_hurried=self._is_hurried)
        if self._stages and self._node_folder is not None:
            # A worker that was killed has left its sandboxes to a next one, which is not to come.
            end_sandboxes(self._node_folder, timeout_seconds=_END_SECONDS)
        self._stages = []
        self._held.close()

    def _start(self) -> None:
        # First the home: if another copy runs on it, that one most likely has the port, too, and is what to name.
        home = self._held.enter_context(Home(self._config.home))
        # Before anything is started: what can be refused at once should be.
        if self.api_port:
            check_port_is_free(self.api_port, purpose="API", host=self._config.api_host)
        self.ingress_port = self._choose_ingress_port()
        if self.ingress_port:
            check_port_is_free(
                self.ingress_port, purpose="ingress", host=self._ingress_host, setting="SANDMILL_INGRESS_PORT"
            )
        self._node_folder = home.path / "node"
        self._start_stores(home)
        migrate(self.database_url)
        self.api_key = ensure_api_key(self.database_url, home)
        self._start_programs(home)

    def _choose_ingress_port(self) -> int:
        if self._config.ingress_port is not None:
            return self._config.ingress_port
        usual: int = Settings.model_fields["ingress_port"].default
        # Whoever asks for any port of the API runs several copies, which would all find the usual one free.
        return usual if self._config.api_port and is_port_free(usual) else 0

    def _start_stores(self, home: Home) -> None:
        stores: list[Service] = []
        self._stages.append(stores)
        if self._config.redis_url is not None:
            self.redis_url = check_external_redis(self._config.redis_url)
        else:
            valkey = EmbeddedValkey(home)
            self._launch(valkey, home, stores)
            self.redis_url = valkey.url
        if self._config.database_url is not None:
            self.database_url = check_external_postgres(self._config.database_url)
        else:
            postgres = EmbeddedPostgres(home)
            self._held.callback(postgres.close)
            rotate_log(home.logs / "postgres.log")
            postgres.prepare()
            stores.append(postgres)
            postgres.start()
            self.database_url = postgres.url
        wait_until_ready(stores)

    def _start_programs(self, home: Home) -> None:
        self.api_port = self.api_port or find_free_port()
        self.ingress_port = self.ingress_port or find_free_port()
        probe = DatabaseProbe(self.database_url)
        self._held.callback(probe.close)
        env = child_environment(self._environment(home))
        programs: list[Service] = [
            Program(
                "worker",
                COMMANDS["worker"],
                home=home,
                # Where untrusted code runs there is no key to anything but the work itself.
                env={name: value for name, value in env.items() if name not in _KEYS},
                probe=probe.has_worker,
                stop_timeout_seconds=15,
                # It gives back what runs; at SIGTERM it would leave that to the next worker.
                stop_signal=signal.SIGINT,
            ),
            Program(
                "api",
                api_command(self._config.api_host, self.api_port, self._config.api_options),
                home=home,
                env=env,
                probe=lambda _pid: answers_ok(
                    self.api_port, "/readyz", host=reachable_host(self._config.api_host)
                ),
            ),
            Program(
                "scheduler",
                COMMANDS["scheduler"],
                home=home,
                env=env,
                probe=lambda _pid: probe.has_scheduler(),
            ),
        ]
        programs.append(
            Program(
                "ingress",
                COMMANDS["ingress"],
                home=home,
                env={name: value for name, value in env.items() if name not in _KEYS},
                probe=lambda _pid: answers_ok(
                    self.ingress_port, INGRESS_HEALTH, host=reachable_host(self._ingress_host)
                ),
            )
        )
        if self._config.with_flower:
            programs.append(self._flower(home, env))
        started: list[Service] = []
        self._stages.append(started)
        for program in programs:
            self._launch(program, home, started)
        wait_until_ready(started)

    def _flower(self, home: Home, env: Mapping[str, str]) -> Service:
        port = self.flower_port = find_free_port()
        self._flower_password = home.secret("flower_password")
        return Program(
            "flower",
            flower_command(LOOPBACK, port),
            home=home,
            env={**env, "FLOWER_BASIC_AUTH": f"{_FLOWER_USER}:{self._flower_password}"},
            probe=lambda _pid: answers_ok(port, "/healthcheck"),
            stop_timeout_seconds=3,
        )

    def _launch(self, service: Service, home: Home, started: list[Service]) -> None:
        rotate_log(home.logs / f"{service.name}.log")
        started.append(service)
        service.start()

    def _environment(self, home: Home) -> dict[str, str]:
        return {
            # Only Flower looks at these; whoever wants them without it can still say so.
            **({"SANDMILL_CELERY_TASK_EVENTS": "true"} if self._config.with_flower else {}),
            **({} if self._config.has_secret_key else {_SECRET_KEY: home.secret("secret_key")}),
            **self._config.environment,
            "SANDMILL_HOME": str(home.path),
            "DATABASE_URL": self.database_url,
            "REDIS_URL": self.redis_url,
            "SANDMILL_API_HOST": self._config.api_host,
            "SANDMILL_API_PORT": str(self.api_port),
            "SANDMILL_INGRESS_HOST": self._ingress_host,
            "SANDMILL_INGRESS_PORT": str(self.ingress_port),
        }


def _report_to_stderr(line: str) -> None:
    sys.stderr.write(f"sandmill: {line}\n")
    sys.stderr.flush()
