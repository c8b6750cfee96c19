"""Which servers stand in the table that is routed by, and in which order."""

from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.core.prices import TokenPrice
from remuda.models.config import ModelConfig
from remuda.router.table import RoutedModel, Table
from remuda.servers.model import AdoptedServer, Condition, Server, ServerKind, parse_url
from remuda.servers.routing import with_servers

PRICE = {"*": TokenPrice(1, 1)}


def adopted(name: str, *models: str, reason: str = "", **terms: object) -> AdoptedServer:
    server = Server(name, ServerKind.OPENAI, parse_url(f"http://{name}"), **terms)  # type: ignore[arg-type]
    return AdoptedServer(server, Condition(models, reason))


def table(**upstreams: tuple[str, ...]) -> Table:
    configs = {
        name: ModelConfig(name=name, backend="llama-cpp", upstreams=listed)
        for name, listed in upstreams.items()
    }
    return Table(MappingProxyType({name: RoutedModel(config) for name, config in configs.items()}))


def test_a_servers_models_have_its_name_and_one_route() -> None:
    built = with_servers(table(), [adopted("nas", "a", "b")])
    assert set(built.models) == {"nas/a", "nas/b"}
    entry = built.models["nas/a"]
    (route,) = entry.routes
    assert (route.node_name, route.endpoint.model, entry.listed, entry.ours) == ("nas", "a", True, False)


def test_an_absent_server_has_no_route_and_a_reason() -> None:
    entry = with_servers(table(), [adopted("nas", "a", reason="refused")]).models["nas/a"]
    assert (entry.routes, entry.listed) == ((), False)
    assert "refused" in entry.absence


def test_a_paid_model_without_a_price_is_not_routed_to() -> None:
    one = adopted("cloud", "a", "b", paid=True, prices={"a": TokenPrice(1, 1)}, budget=5)
    models = with_servers(table(), [one]).models
    assert models["cloud/a"].routes
    assert not models["cloud/b"].routes
    assert "b has no price" in models["cloud/b"].absence
    assert models["cloud/b"].unpriced


def test_only_a_model_that_nothing_else_has_is_unpriced() -> None:
    paid = adopted("cloud", "a", paid=True, prices={"z": TokenPrice(1, 1)}, budget=5)
    lists = {"alone": ("cloud/a",), "either": ("cloud/a", "nas/a"), "ours": ("cloud/a",)}
    entries = {
        name: RoutedModel(ModelConfig(name=name, backend="echo" if name == "ours" else "", upstreams=listed))
        for name, listed in lists.items()
    }
    built = with_servers(Table(MappingProxyType(entries)), [paid, adopted("nas", "a")])
    assert [name for name in lists if built.models[name].unpriced] == ["alone"]


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (
            "10.1.2.3:8000 cannot be reached: Connection refused",
            "its address cannot be reached: Connection refused",
        ),
        ("/v1/models was answered with 500", "/v1/models was answered with 500"),
        ("the name 10.1.2.3 is not known; 110.1.2.3 is", "the name its address is not known; 110.1.2.3 is"),
    ],
)
def test_where_a_server_is_is_told_to_admins_only(reason: str, told: str) -> None:
    server = Server("nas", ServerKind.OPENAI, parse_url("http://10.1.2.3:8000"))
    one = AdoptedServer(server, Condition(("a",), reason))
    entry = with_servers(table(), [one]).models["nas/a"]
    assert entry.absence == f"the server nas cannot be used: {told}"


def test_a_model_overflows_to_what_it_lists_and_to_nothing_else() -> None:
    servers = [adopted("one", "a", "wide"), adopted("two", "b"), adopted("down", "c", reason="refused")]
    models = with_servers(
        table(wide=("two/b", "down/c", "one", "none/x", "two/no"), private=()), servers
    ).models
    assert [route.endpoint.model for route in models["wide"].overflow] == ["b", "wide"]
    assert models["private"].overflow == ()
    for reason in ("down cannot be used", "no server 'none'", "two has no model 'no'"):
        assert reason in models["wide"].absence


def test_a_configured_model_of_the_same_name_comes_first() -> None:
    mine = ModelConfig(name="nas/a", backend="llama-cpp")
    before = Table(MappingProxyType({"nas/a": RoutedModel(mine)}))
    assert with_servers(before, [adopted("nas", "a")]).models["nas/a"].config is mine


names = st.sampled_from(["one", "two", "three"])
listed = st.lists(st.tuples(names, st.sampled_from("ab")).map("/".join), max_size=5)


@given(listed, st.lists(names, unique=True), st.lists(names, unique=True))
def test_overflow_keeps_the_listed_order_and_only_servers_that_answer(
    upstreams: list[str], there: list[str], up: list[str]
) -> None:
    servers = [adopted(name, "a", "b", reason="" if name in up else "refused") for name in there]
    (entry,) = [
        entry
        for name, entry in with_servers(table(wide=tuple(upstreams)), servers).models.items()
        if name == "wide"
    ]
    expected = [one for one in upstreams if one.partition("/")[0] in set(there) & set(up)]
    assert [f"{route.server}/{route.endpoint.model}" for route in entry.overflow] == expected
