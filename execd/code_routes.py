"""Routes that run code in kernels of a language server in the image."""

from execd.errors import ExecdError
from execd.exchange import Exchange
from execd.options import Options
from execd.router import RouteTable

__all__ = ["CodeRoutes"]


class CodeRoutes:
    """`/code`. This execd has no client for language servers: all is answered as if there were none."""

    def __init__(self, options: Options) -> None:
        """options: jupyter_host says where the server is."""
        self._host = options.jupyter_host

    @property
    def routes(self) -> RouteTable:
        """For the router."""
        return {
            "/code": {"POST": self.refuse, "DELETE": self.refuse},
            "/code/context": {"POST": self.refuse},
            "/code/contexts": {"GET": self.refuse, "DELETE": self.refuse},
            "/code/contexts/{id}": {"GET": self.refuse, "DELETE": self.refuse},
        }

    async def refuse(self, exchange: Exchange) -> None:
        """Any of them."""
        del exchange
        if self._host is not None:
            raise ExecdError("language runtime servers are not supported by this version of execd")
        raise ExecdError("language runtime server not configured: set JUPYTER_HOST or --jupyter-host")
