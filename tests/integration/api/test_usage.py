"""What keys have taken, by the API."""

import pytest

from tests.support.frontends import Json, LiveFrontend

pytestmark = pytest.mark.anyio


async def used(frontend: LiveFrontend, **asked: str) -> Json:
    reply = await frontend.admin.get("/api/usage", params=asked)
    assert reply.status_code == 200
    found: Json = reply.json()
    return found


async def a_key_that_asked(frontend: LiveFrontend, name: str, model: str) -> str:
    """Of a model that is configured, and of a node that does not have it."""
    made = (await frontend.admin.post("/api/keys", json={"name": name, "scope": "admin"})).json()
    config = f"name: {model}\nbackend: nosuch\nparameters:\n  model: m.gguf\n"
    await frontend.admin.post("/api/models", json={"config": config})
    asked = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
    headers = {"Authorization": f"Bearer {made['key']}", "X-Remuda-Node": "nosuch"}
    reply = await frontend.anyone.post("/v1/chat/completions", json=asked, headers=headers)
    assert reply.status_code == 503
    key: str = made["id"]
    return key


async def test_a_keys_requests_are_counted_also_those_that_fail(open_frontend: LiveFrontend) -> None:
    key = await a_key_that_asked(open_frontend, "website", "m-usage")
    told = await used(open_frontend, key="website", by="key,model,node")
    assert told["usage"] == [
        {
            "key": "website",
            "key_id": key,
            "model": "m-usage",
            "node": "",
            "requests": 1,
            "failed": 1,
            "prompt_tokens": 0,
            "completion_tokens": 0,
        }
    ]
    assert told["total"]["requests"] == 1


async def test_usage_comes_as_csv_in_which_no_name_is_a_formula(open_frontend: LiveFrontend) -> None:
    await a_key_that_asked(open_frontend, "=cmd()", "m-csv")
    reply = await open_frontend.admin.get("/api/usage", params={"format": "csv", "model": "m-csv"})
    assert reply.headers["content-type"].startswith("text/csv")
    assert reply.text.splitlines() == [
        "key,model,requests,failed,prompt_tokens,completion_tokens,cost",
        "'=cmd(),m-csv,1,1,0,0,",
    ]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"since": "yesterday"}, "is not a day"),
        ({"by": "colour"}, "name some of day, key, model, node"),
        ({"since": "2026-03-02", "until": "2026-03-01"}, "is after"),
        ({"format": "xml"}, "format"),
    ],
)
async def test_what_cannot_be_asked_is_refused(
    frontend: LiveFrontend, asked: dict[str, str], words: str
) -> None:
    reply = await frontend.admin.get("/api/usage", params=asked)
    assert reply.status_code == 400
    assert words in reply.text
