"""What tenants used: counted into the past that fair share looks at, and into their budgets."""

from sqlalchemy import Engine

from core.logging import get_logger
from repositories.dispatch import DispatchRepository
from repositories.tenant_budgets import TenantBudgetRepository
from repositories.usage_history import UsageHistoryRepository

__all__ = ["TenantAccounts"]

log = get_logger(__name__)


class TenantAccounts:
    """Keeps the books of all tenants, every few seconds."""

    def __init__(self, engine: Engine, *, half_life_seconds: float) -> None:
        """half_life_seconds: after so long, what was used counts half."""
        self._engine = engine
        self._half_life = half_life_seconds

    def roll(self) -> None:
        """Count what is held now into the past, and charge budgets for what has ended."""
        with self._engine.begin() as connection:
            dispatch = DispatchRepository(connection)
            dispatch.lock()
            nodes = dispatch.nodes()
            capacity = (
                sum(node.cpu_millicores for node in nodes),
                sum(node.memory_bytes for node in nodes),
                sum(node.gpu for node in nodes),
            )
            UsageHistoryRepository(connection).roll(half_life_seconds=self._half_life, capacity=capacity)
            charged = TenantBudgetRepository(connection).charge_ended()
        if charged:
            log.debug("budgets_charged", attempts=charged)
