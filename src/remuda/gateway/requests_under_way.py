"""Inference requests under way, and their end: where one has to end early, with an error, and when
the frontend stops, after time to finish."""

from collections import Counter
from collections.abc import Callable
from typing import Final

import anyio

from remuda.core.errors import RemudaError, Unavailable
from remuda.core.ids import NodeId
from remuda.gateway.client_response import ClientResponse

_CUT_OFF_S: Final = 5.0  # To tell those that were cut off.


class FrontendStopping(Unavailable):
    """This frontend is going down."""

    code = "stopping"


class Running:
    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._live: set[ClientResponse] = set()
        self._idle = anyio.Event()
        self.stopping = False

    def __len__(self) -> int:
        return len(self._live)

    def began(self, response: ClientResponse) -> None:
        self._live.add(response)

    def ended(self, response: ClientResponse) -> None:
        self._live.discard(response)
        if self.stopping and not self._live:
            self._idle.set()

    def by_node(self) -> Counter[NodeId]:
        """How many there are with each node."""
        routes = (response.routing.route for response in self._live)
        return Counter(route.node for route in routes if route is not None)

    def tokens_written(self) -> Counter[str]:
        """By them so far, by the name of the node."""
        written = Counter[str]()
        for response in self._live:
            if (route := response.routing.route) is not None:
                written[route.node_name] += response.tally.completion_tokens
        return written

    def end_those(self, why: Callable[[ClientResponse], RemudaError | None]) -> None:
        """Those for which `why` has a reason, which the client gets."""
        for response in tuple(self._live):
            if (error := why(response)) is not None:
                response.end(error)

    async def close(self) -> None:
        """From now on requests are refused. Those under way get time to end; the rest is cut off with an
        error to the client."""
        self.stopping = True
        if not self._live:
            return
        with anyio.CancelScope(shield=True):
            with anyio.move_on_after(self._grace_s):
                await self._idle.wait()
            for response in tuple(self._live):
                response.end(
                    FrontendStopping("this frontend is stopping", hint="ask again: another one may answer")
                )
            with anyio.move_on_after(_CUT_OFF_S):
                await self._idle.wait()
