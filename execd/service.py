"""The parts of one daemon, put together."""

from collections.abc import Mapping

from execd.accounting import Accounting
from execd.accounts import Accounts
from execd.code_routes import CodeRoutes
from execd.command_routes import CommandRoutes
from execd.commands import ExecutionTable
from execd.directory_routes import DirectoryRoutes
from execd.envs import CommandEnvironment
from execd.execution_routes import ExecutionRoutes
from execd.families import Families
from execd.file_routes import FileRoutes
from execd.launch import resolve_directory
from execd.limits import Limits
from execd.metrics import MetricRoutes
from execd.options import Options
from execd.proxy_routes import RELAY_ROUTES
from execd.pty_routes import PtyRoutes
from execd.reaper import Reaper
from execd.routes import Routes
from execd.session_routes import SessionRoutes
from execd.sessions import SessionTable

__all__ = ["Service"]


class Service:
    """Everything that answers requests. Each group of routes brings its own table."""

    def __init__(
        self, options: Options, environment: Mapping[str, str], limits: Limits, reaper: Reaper
    ) -> None:
        self.accounting = Accounting(options.accounts, options.limits)
        accounts = Accounts()
        env = CommandEnvironment(environment, reads_file=not options.is_sealed)
        families = Families()
        strip_newlines = environment.get("EXECD_STRIP_NEWLINES") == "1"
        self._table = ExecutionTable(
            env,
            accounts,
            reaper,
            families,
            max_running=limits.connections,
            oom_kills=self.accounting.oom_kills,
            splits_at_cr=strip_newlines,
        )
        commands = CommandRoutes(self._table, strip_newlines=strip_newlines)
        executions = ExecutionRoutes(self._table, strip_newlines=strip_newlines)
        sessions = SessionTable(
            self._table, lambda cwd: resolve_directory(cwd, env.compose({}, execution_id=""), accounts)
        )
        shells = SessionRoutes(sessions, strip_newlines=strip_newlines)
        files = FileRoutes(accounts)
        directories = DirectoryRoutes(accounts)
        metrics = MetricRoutes(self.accounting)
        # A browser cannot send the token: where there is one, no page gets in.
        origins = None if options.access_token else options.allowed_origins
        self._terminals = PtyRoutes(env, accounts, reaper, families, allowed_origins=origins)
        self.routes = Routes(
            commands.routes,
            executions.routes,
            shells.routes,
            files.routes,
            directories.routes,
            metrics.routes,
            self._terminals.routes,
            CodeRoutes(options).routes,
            RELAY_ROUTES,
            access_token=options.access_token,
        )

    async def close(self) -> None:
        """End all that was started for clients."""
        await self._table.kill_all()
        self._terminals.close()
