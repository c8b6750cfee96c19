"""What is refused before anything is asked of a server, or written down."""

from collections.abc import Sequence
from typing import Never, cast

import pytest

from remuda.core.clock import SystemClock
from remuda.core.errors import Invalid
from remuda.servers.model import ServerKind, ServerStore
from remuda.servers.probing import Prober
from remuda.servers.service import ServerService, ServerWish
from remuda.servers.spending import BudgetStore, Spending
from remuda.servers.watch import ServerWatch

pytestmark = pytest.mark.anyio


class Untouched:
    """Fails when anything is asked of it."""

    def __getattr__(self, name: str) -> Never:
        raise AssertionError(f"{name} was not to be asked for")


def service(*addresses: str) -> ServerService:
    async def resolved(host: str, port: int) -> Sequence[str]:
        return addresses

    untouched = Untouched()
    return ServerService(
        cast(ServerStore, untouched),
        cast(BudgetStore, untouched),
        cast(Prober, untouched),
        cast(ServerWatch, untouched),
        cast(Spending, untouched),
        SystemClock(),
        own_ports={8080},
        addresses=resolved,
    )


@pytest.mark.parametrize("kind", [None, ServerKind.OPENAI])
async def test_a_server_out_there_needs_prices_or_the_word_that_it_is_free(kind: ServerKind | None) -> None:
    wish = ServerWish("https://api.example.com/v1", "cloud", kind, key="sk")
    with pytest.raises(Invalid, match="not in your own network") as refused:
        await service("10.0.0.7", "8.8.8.8").add(wish)
    assert "--free" in refused.value.hint


async def test_a_frontend_is_not_adopted_by_itself() -> None:
    with pytest.raises(Invalid, match="this frontend itself"):
        await service().add(ServerWish("http://localhost:8080"))


@pytest.mark.parametrize(
    "wish",
    [
        ServerWish("http://nas", "Über"),
        ServerWish("http://nas", "nas", budget=5),
        ServerWish("http://nas", "nas", free=True, budget=5),
    ],
)
async def test_what_cannot_be_meant_is_refused(wish: ServerWish) -> None:
    with pytest.raises(Invalid):
        await service("10.0.0.7").add(wish)
