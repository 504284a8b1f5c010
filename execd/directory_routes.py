"""Routes of directories."""

import sys
from collections.abc import Iterator, Mapping

from execd.accounts import Accounts
from execd.directories import make_directories, remove_tree
from execd.errors import MissingQueryError, error_from_os
from execd.exchange import Exchange
from execd.file_replies import checked_path, make_steps, send_array, with_identities
from execd.file_requests import Permission, parse_permissions
from execd.files import FileInspector
from execd.identity import identity_of
from execd.router import RouteTable

__all__ = ["DirectoryRoutes"]


class DirectoryRoutes:
    """`/directories...`, and the same for other users of the sandbox."""

    def __init__(self, accounts: Accounts) -> None:
        self._accounts = accounts

    @property
    def routes(self) -> RouteTable:
        """For the router."""
        return with_identities(
            {
                "/directories": {"POST": self.make, "DELETE": self.delete},
                "/directories/list": {"GET": self.list},
            }
        )

    async def list(self, exchange: Exchange) -> None:
        """GET /directories/list; the array is sent while the walk goes on."""
        identity = identity_of(exchange.path_values)
        root = checked_path(exchange.target.required("path"))
        depth = exchange.target.whole_number("depth", default=1, maximum=sys.maxsize)
        found = FileInspector(self._accounts).listing(root, depth)
        await send_array(exchange, identity.each(found))

    async def make(self, exchange: Exchange) -> None:
        """POST /directories; in the order given, up to the first that fails."""
        identity = identity_of(exchange.path_values)
        wanted = parse_permissions(await exchange.read_body())
        await make_steps(exchange, identity.each(_make(wanted, self._accounts)))
        await exchange.reply(200)

    async def delete(self, exchange: Exchange) -> None:
        """DELETE /directories; in the order given, up to the first that fails."""
        identity = identity_of(exchange.path_values)
        paths = exchange.target.query.get("path")
        if not paths:
            raise MissingQueryError("query parameter 'path' is missing")
        await exchange.read_body()
        for path in [checked_path(path) for path in paths]:
            await make_steps(exchange, identity.each(_remove(path)))
        await exchange.reply(200)


def _make(wanted: Mapping[str, Permission], accounts: Accounts) -> Iterator[None]:
    for path, permission in wanted.items():
        owner, group = accounts.numbers(permission.owner, permission.group)
        try:
            make_directories(path, mode=permission.mode, owner=owner, group=group)
        except OSError as error:
            raise error_from_os(error, path) from error
        yield


def _remove(path: str) -> Iterator[None]:
    try:
        yield from remove_tree(path)
    except OSError as error:
        raise error_from_os(error, path) from error
