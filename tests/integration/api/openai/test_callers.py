"""Who may ask: on loopback everyone who is no web page, else whoever has a key, for the models it is for."""

from collections.abc import AsyncIterator

import httpx
import pytest

from remuda.accounts.keys import KeyScope
from tests.integration.api.openai.asking import ASK, CHAT
from tests.support.plain_http import PLAIN
from tests.support.scripted_upstreams import Gateway, gateway, model, route_to, serving, table

pytestmark = pytest.mark.anyio


@pytest.fixture
async def closed() -> AsyncIterator[Gateway]:
    """One that asks for keys, with three models and an alias."""
    async with serving(gateway(keys_required=True)) as running:
        names = ("m", "org/bge", "hidden")
        entries = [model(name, route_to(name), listed=name != "hidden") for name in names]
        running.tables.replace(table(*entries, model("nick", alias="m")))
        yield running


async def ask(served: Gateway, key: str = "", name: str = "m", **headers: str) -> httpx.Response:
    given = {"Authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(base_url=served.url, trust_env=False, verify=PLAIN) as client:
        return await client.post(CHAT, json=ASK | {"model": name}, headers=given | headers)


async def models(served: Gateway, key: str = "", path: str = "/v1/models") -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with httpx.AsyncClient(base_url=served.url, trust_env=False, verify=PLAIN) as client:
        return await client.get(path, headers=headers)


@pytest.mark.parametrize("key", ["", "wrong", "rmd_"])
async def test_without_a_key_in_force_nothing_is_answered(closed: Gateway, key: str) -> None:
    for reply in (
        await ask(closed, key),
        await models(closed, key),
        await models(closed, key, "/v1/models/m"),
    ):
        assert (reply.status_code, reply.json()["error"]["code"]) == (401, "invalid_api_key")
        assert reply.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(("scope", "told"), [(KeyScope.ADMIN, True), (KeyScope.INFERENCE, False)])
async def test_admins_may_ask_whose_answer_it_is(closed: Gateway, scope: KeyScope, told: bool) -> None:
    secret, _ = await closed.keyring.create("app", scope)
    reply = await ask(closed, secret, **{"x-remuda-show-node": "1"})
    assert ("x-remuda-node" in reply.headers) is told


@pytest.mark.parametrize("scope", [KeyScope.INFERENCE, KeyScope.ADMIN])
async def test_keys_of_both_scopes_may_ask(closed: Gateway, scope: KeyScope) -> None:
    secret, _ = await closed.keyring.create("app", scope)
    assert (await ask(closed, secret)).status_code == 200
    assert (await ask(closed, **{"x-api-key": secret})).status_code == 200


async def test_a_revoked_key_is_refused(closed: Gateway) -> None:
    secret, key = await closed.keyring.create("app", KeyScope.INFERENCE)
    await closed.keyring.revoke(key.id)
    assert (await ask(closed, secret)).status_code == 401


async def test_a_key_for_one_model_is_for_no_other(closed: Gateway) -> None:
    secret, _ = await closed.keyring.create("app", KeyScope.INFERENCE, ("m",))
    assert (await ask(closed, secret)).status_code == 200
    assert (await ask(closed, secret, "nick")).status_code == 200
    refused = await ask(closed, secret, "org/bge")
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden")
    assert "'app'" in refused.json()["error"]["message"]


async def test_similar_names_are_told_only_of_models_the_key_is_for(closed: Gateway) -> None:
    secret, _ = await closed.keyring.create("app", KeyScope.INFERENCE, ("m",))
    assert "org" not in (await ask(closed, secret, "org/bgf")).text.replace("org/bgf", "")


async def test_an_alias_is_served_by_the_model_it_names(closed: Gateway) -> None:
    secret, _ = await closed.keyring.create("app", KeyScope.INFERENCE)
    assert (await ask(closed, secret, "nick")).status_code == 200


async def test_an_alias_that_points_nowhere_says_so(closed: Gateway) -> None:
    secret, _ = await closed.keyring.create("app", KeyScope.INFERENCE)
    before = closed.tables.now
    closed.tables.replace(table(*before.models.values(), model("lost", alias="gone")))
    reply = await ask(closed, secret, "lost")
    closed.tables.replace(before)
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")
    assert "'lost' is another name for 'gone', which does not exist" in reply.json()["error"]["message"]


async def test_the_list_has_the_models_that_can_be_asked_for(closed: Gateway) -> None:
    everyone, _ = await closed.keyring.create("all", KeyScope.INFERENCE)
    someone, _ = await closed.keyring.create("some", KeyScope.INFERENCE, ("org/bge",))
    assert (await models(closed, everyone)).json() == {
        "object": "list",
        "data": [
            {"id": name, "object": "model", "created": 1, "owned_by": "remuda"}
            for name in ("m", "nick", "org/bge")
        ],
    }
    assert [entry["id"] for entry in (await models(closed, someone)).json()["data"]] == ["org/bge"]


@pytest.mark.parametrize("path", ["/v1/models/org/bge", "/v1/models/org%2Fbge"])
async def test_one_model_is_shown_by_its_name(closed: Gateway, path: str) -> None:
    secret, _ = await closed.keyring.create("app", KeyScope.INFERENCE)
    assert (await models(closed, secret, path)).json()["id"] == "org/bge"


@pytest.mark.parametrize("name", ["none", "hidden", "", "%00"])
async def test_a_model_that_is_not_listed_is_not_found(closed: Gateway, name: str) -> None:
    secret, _ = await closed.keyring.create("app", KeyScope.INFERENCE)
    reply = await models(closed, secret, f"/v1/models/{name}")
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")
    assert f"did you mean {name}" not in reply.json()["error"]["message"]


async def test_similar_names_are_told_of_one_model_too(closed: Gateway) -> None:
    secret, _ = await closed.keyring.create("app", KeyScope.INFERENCE)
    reply = await models(closed, secret, "/v1/models/org/bgee")
    assert "did you mean org/bge?" in reply.json()["error"]["message"]


async def test_on_loopback_any_key_will_do_and_none(served: Gateway) -> None:
    assert (await ask(served)).status_code == 200
    assert (await ask(served, "sk-whatever")).status_code == 200


@pytest.mark.parametrize(
    "headers", [{"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Host": "[bad"}]
)
async def test_on_loopback_web_pages_may_not_ask(served: Gateway, headers: dict[str, str]) -> None:
    assert (await ask(served, **headers)).status_code == 403


async def test_a_model_that_was_added_on_another_frontend_a_moment_ago_is_not_unknown() -> None:
    looks = 0

    async def refresh_models() -> None:
        nonlocal looks
        looks += 1
        both = (model(name, route_to(name)) for name in ("m", "late"))
        served.tables.replace(table(*both))

    async with serving(gateway(refresh_models=refresh_models)) as served:
        assert (await ask(served, name="m")).status_code == 200
        assert looks == 0, "a model that is known costs no look"
        assert (await ask(served, name="late")).status_code == 200
        served.tables.replace(table(model("m", route_to("m"))))
        assert (await models(served, path="/v1/models/late")).status_code == 200
        assert (await ask(served, name="nowhere")).status_code == 404
    assert looks == 3
