"""What is kept of a request that is over, so that it can be explained."""

from datetime import datetime
from typing import Final

from remuda.gateway.client_response import ClientResponse
from remuda.router.decisions import RoutingDecision

_MESSAGE_CHARS_MAX: Final = 500


def decision_of(response: ClientResponse, ended_s: float, now: datetime) -> RoutingDecision:
    """Made for each request: takes a microsecond or two."""
    routing, first_s, began_s = response.routing, response.tally.first_token_s, response.began_s
    route = routing.route
    failed: tuple[tuple[str, str, str], ...] = ()
    if routing.failures:
        # What broke off in the middle of its answer counts, too.
        failed = tuple(
            (one.node_name, str(one.key), why.public[:_MESSAGE_CHARS_MAX])
            for one, why in zip(routing.tried, routing.failures, strict=False)
        )
    return RoutingDecision(
        response.request_id,
        now,
        response.model,
        response.caller,
        response.status,
        response.error,
        response.error_message[:_MESSAGE_CHARS_MAX],
        "" if route is None else route.node_name,
        "" if route is None else str(route.key),
        routing.why,
        routing.waited_s,
        tuple(routing.waits) if routing.waits else (),
        failed,
        routing.reloaded,
        None if first_s is None else first_s - began_s,
        ended_s - began_s,
    )
