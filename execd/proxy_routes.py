"""The route of the relay."""

from execd.errors import InvalidQueryError, RouteMissingError
from execd.exchange import Exchange
from execd.router import RouteTable
from execd.target import RELAY_PREFIX

__all__ = ["RELAY_ROUTES"]


async def _relay(exchange: Exchange) -> None:
    """ANY /proxy/{port}/{path...}."""
    from execd.proxy import relay  # noqa: PLC0415  # not every sandbox serves something

    if not exchange.target.raw.startswith(RELAY_PREFIX):  # written with escapes
        raise RouteMissingError("the relay is at /proxy/{port}/")
    await relay(exchange)


async def _refuse(exchange: Exchange) -> None:
    """ANY /proxy without a port."""
    del exchange
    raise InvalidQueryError("port: /proxy/{port}/ needs a port from 1 to 65535")


RELAY_ROUTES: RouteTable = {"/proxy/{port}/{path...}": {"*": _relay}, "/proxy/{path...}": {"*": _refuse}}
