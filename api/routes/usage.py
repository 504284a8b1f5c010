from datetime import UTC, date, datetime
from typing import Annotated

from fastapi import APIRouter, Query

from api.admin_views import to_usage_view
from api.schemas.errors import error_responses
from api.schemas.usage import UsageView
from api.services import Caller, Services
from services.usage import read_usage

__all__ = ["FirstDay", "NextDay", "router", "today"]

router = APIRouter(prefix="/v1/usage", tags=["usage"])

FirstDay = Annotated[
    date | None, Query(alias="from", description="First UTC day. Default: 30 days before `to`.")
]
NextDay = Annotated[
    date | None, Query(alias="to", description="The UTC day after the last one. Default: tomorrow.")
]


@router.get("", summary="What was used", responses=error_responses())
def get_usage(services: Services, caller: Caller, since: FirstDay = None, until: NextDay = None) -> UsageView:
    """Sum the tenant's attempts by UTC day; what the installation lost or broke is told apart, nobody's charge."""
    with services.engine.begin() as connection:
        return to_usage_view(
            read_usage(connection, caller.tenant_id, since=since, until=until, today=today())
        )


def today() -> date:
    """Give the UTC day."""
    return datetime.now(UTC).date()
