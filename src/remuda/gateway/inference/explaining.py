"""What is kept of a request that is over, so that it can be explained."""

from typing import Final

from remuda.gateway.client_response import ClientResponse
from remuda.router.decisions import RoutingDecision
from remuda.router.dispatch import IDLE, LEAST_LOADED, ONLY

LISTED: Final = "it was the first with room in the order of the model's `upstreams`"
_BY_LOAD: Final = frozenset({IDLE, LEAST_LOADED, ONLY})
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
        _why(response),
        routing.waited_s,
        routing.waits or (),
        failed,
        routing.reloaded,
        response.tally.first_token_s,
    )


def _why(response: ClientResponse) -> str:
    """A model of one's own that servers alone answer for lists them: their load does not decide. A server's
    own model is called by the server's name."""
    route, why = response.routing.route, response.routing.why
    if route is None or not route.server or why not in _BY_LOAD:
        return why
    return why if response.model.startswith(f"{route.server}/") else LISTED
