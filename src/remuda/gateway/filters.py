"""Rejects unknown query filters of a list: a misspelled one would be ignored and show everything."""

from fastapi import Depends, Request
from fastapi.routing import APIRoute

from remuda.core.close_matches import did_you_mean
from remuda.core.errors import Invalid


async def _known_filters(request: Request) -> None:
    route = request.scope["route"]
    assert isinstance(route, APIRoute)
    known = sorted(field.alias for field in route.dependant.query_params)
    unknown = next((name for name in request.query_params if name not in known), None)
    if unknown is not None:
        hint = did_you_mean(unknown, known, f"there are {', '.join(known)}")
        raise Invalid(f"unknown filter {unknown[:100]!r}", hint=hint)


KNOWN_FILTERS = Depends(_known_filters)
