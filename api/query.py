"""Refuses what no route reads: a mistyped filter must not silently list everything."""

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from api.schemas.problems import MAX_FIELD_CHARS
from api.wire.errors import WIRE_TAG
from services.problems import InvalidFieldsError, Problem

__all__ = ["refuse_unknown_parameters"]


async def refuse_unknown_parameters(request: Request) -> None:
    """Dependency of the whole application; what speaks the wire protocol ignores them, as that asks.

    Raises InvalidFieldsError for query parameters unknown or given twice.
    """
    given = [name for name, _ in request.query_params.multi_items()]
    route = request.scope.get("route")
    if not given or not isinstance(route, APIRoute) or WIRE_TAG in route.tags:
        return
    known = _declared_names(route.dependant)
    problems = []
    seen: set[str] = set()
    for name in given:
        field = name[:MAX_FIELD_CHARS] or "?"
        if name not in known:
            names = f"it takes {', '.join(sorted(known))}" if known else "it takes none"
            problems.append(Problem(field, f"unknown query parameter of this route; {names}"))
        elif name in seen:
            problems.append(Problem(field, "is given more than once"))
        seen.add(name)
    if problems:
        raise InvalidFieldsError(problems)


def _declared_names(dependant: Dependant) -> set[str]:
    """Give the query parameters of a route, those of its dependencies included."""
    names = {field.alias for field in dependant.query_params}
    return names.union(*map(_declared_names, dependant.dependencies))
