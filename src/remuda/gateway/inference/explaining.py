"""What is kept of a request that is over, so that it can be explained."""

from typing import Final

from remuda.gateway.client_response import ClientResponse
from remuda.router.decisions import RoutingDecision

_MESSAGE_CHARS_MAX: Final = 500


def decision_of(response: ClientResponse, ended_s: float) -> RoutingDecision:
    """Made for each request: takes a microsecond or two."""
    routing, message = response.routing, response.error_message
    failed: tuple[tuple[str, str, str], ...] = ()
    if routing.failures:
        # What broke off in the middle of its answer counts, too.
        failed = tuple(
            (one.node_name, str(one.key), why.public[:_MESSAGE_CHARS_MAX])
            for one, why in zip(routing.tried, routing.failures, strict=False)
        )
    return RoutingDecision(
        response.request_id,
        response.began_s,
        ended_s,
        response.model,
        response.caller,
        response.status,
        response.error,
        message[:_MESSAGE_CHARS_MAX] if message else "",
        routing.route,
        routing.why,
        routing.waited_s,
        routing.waits or (),
        failed,
        routing.reloaded,
        response.tally.first_token_s,
    )
