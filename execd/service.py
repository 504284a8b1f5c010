"""The parts of one daemon, put together: each group of routes with what is behind it when its first request comes.

Loading all of it takes longer than the rest of a start, and few sandboxes use all of it.
"""

# ruff: noqa: PLC0415  # see above

from collections.abc import Mapping
from typing import TYPE_CHECKING

from execd.accounting import Accounting
from execd.accounts import Accounts
from execd.envs import CommandEnvironment
from execd.families import Families
from execd.limits import Limits
from execd.metrics import MetricRoutes
from execd.options import Options
from execd.reaper import Reaper
from execd.router import RouteTable
from execd.routes import Routes

if TYPE_CHECKING:
    from execd.commands import ExecutionTable
    from execd.pty_routes import PtyRoutes

__all__ = ["Service"]


class Service:
    """Everything that answers requests. Each group of routes brings its own table."""

    def __init__(
        self, options: Options, environment: Mapping[str, str], limits: Limits, reaper: Reaper
    ) -> None:
        self.accounting = Accounting(options.accounts, options.limits)
        self._options = options
        self._limits = limits
        self._reaper = reaper
        self._accounts = Accounts()
        self._env = CommandEnvironment(environment, reads_file=not options.is_sealed)
        self._families = Families()
        self._strip_newlines = environment.get("EXECD_STRIP_NEWLINES") == "1"
        self._executions: ExecutionTable | None = None
        self._terminals: PtyRoutes | None = None
        self.routes = Routes(
            # Not late: what it counts begins with the sandbox.
            MetricRoutes(self.accounting).routes,
            late={
                **dict.fromkeys(("command", "commands", "session"), self._command_routes),
                **dict.fromkeys(("files", "directories", "v1"), self._file_routes),
                "pty": self._pty_routes,
                "code": self._code_routes,
                "proxy": _relay_routes,
            },
            access_token=options.access_token,
        )

    def prepare(self) -> None:
        """Load what runs commands: nearly every sandbox is made for that."""
        self.routes.router.load("command")

    async def close(self) -> None:
        """End all that was started for clients, and what came to this process from others."""
        await self._table.kill_all()
        if self._terminals is not None:
            self._terminals.close()

    @property
    def _table(self) -> "ExecutionTable":
        if self._executions is None:
            from execd.commands import ExecutionTable

            self._executions = ExecutionTable(
                self._env,
                self._accounts,
                self._reaper,
                self._families,
                max_running=self._limits.connections,
                oom_kills=self.accounting.oom_kills,
                splits_at_cr=self._strip_newlines,
            )
        return self._executions

    def _command_routes(self) -> RouteTable:
        from execd.command_routes import CommandRoutes
        from execd.execution_routes import ExecutionRoutes
        from execd.launch import resolve_directory
        from execd.session_routes import SessionRoutes
        from execd.sessions import SessionTable

        sessions = SessionTable(
            self._table,
            lambda cwd: resolve_directory(cwd, self._env.compose({}, execution_id=""), self._accounts),
        )
        return {
            **CommandRoutes(self._table, strip_newlines=self._strip_newlines).routes,
            **ExecutionRoutes(self._table, strip_newlines=self._strip_newlines).routes,
            **SessionRoutes(sessions, strip_newlines=self._strip_newlines).routes,
        }

    def _file_routes(self) -> RouteTable:
        from execd.directory_routes import DirectoryRoutes
        from execd.file_routes import FileRoutes

        return {**FileRoutes(self._accounts).routes, **DirectoryRoutes(self._accounts).routes}

    def _pty_routes(self) -> RouteTable:
        from execd.pty_routes import PtyRoutes

        # A browser cannot send the token: where there is one, no page gets in.
        origins = None if self._options.access_token else self._options.allowed_origins
        self._terminals = PtyRoutes(
            self._env, self._accounts, self._reaper, self._families, allowed_origins=origins
        )
        return self._terminals.routes

    def _code_routes(self) -> RouteTable:
        from execd.code_routes import CodeRoutes

        return CodeRoutes(self._options).routes


def _relay_routes() -> RouteTable:
    from execd.proxy_routes import RELAY_ROUTES

    return RELAY_ROUTES
