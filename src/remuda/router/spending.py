"""What the router needs to know of money: a request to a server that is paid for is sent only when its cost
is covered."""

from contextlib import AbstractAsyncContextManager
from typing import Protocol

from remuda.inference.model import InferenceCall
from remuda.router.table import Route


class Budgets(Protocol):
    def __call__(self, route: Route, call: InferenceCall) -> AbstractAsyncContextManager[InferenceCall]:
        """The call as it may be sent, with the most that it can cost reserved while the block lasts, and what
        it has cost settled after it. Unaffordable where that is more than there is."""
        ...


def nothing_paid(route: Route, call: InferenceCall) -> AbstractAsyncContextManager[InferenceCall]:
    raise AssertionError("no route is paid for without budgets")
