"""Challenges, tokens and the secrets in between."""

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr
from yarl import URL

from remuda.core.errors import Misconfigured, Unauthorized
from remuda.oci.auth import Authorizer, Challenge, Credentials, Form, parse_challenges, pull_scope
from remuda.oci.errors import RegistryFailed
from tests.support.clocks import HandClock

pytestmark = pytest.mark.anyio

BASE = URL("https://registry.example")
SCOPE = pull_scope("a/b")
CHALLENGE = 'Bearer realm="https://tokens.example/get",service="registry.example",scope="repository:a/b:pull"'


class TokenServer:
    def __init__(self, reply: Mapping[str, object]) -> None:
        self.reply = reply
        self.forms: list[Form] = []

    async def __call__(self, form: Form) -> bytes:
        self.forms.append(form)
        return json.dumps(self.reply).encode()


class OneKey:
    def __init__(self, credentials: Credentials | None) -> None:
        self._credentials = credentials

    async def find(self, registry: str) -> Credentials | None:
        return self._credentials


def revealed(secret: SecretStr | None) -> str:
    return secret.get_secret_value() if secret is not None else ""


def test_challenges_of_several_schemes_are_told_apart() -> None:
    header = 'Basic realm="the \\"one\\"", Bearer realm="https://t/x",service=s , scope="a,b"'

    assert parse_challenges(header) == (
        Challenge("basic", {"realm": 'the "one"'}),
        Challenge("bearer", {"realm": "https://t/x", "service": "s", "scope": "a,b"}),
    )


@given(st.text(max_size=200))
def test_no_challenge_header_is_too_odd_to_read(header: str) -> None:
    assert all(challenge.scheme for challenge in parse_challenges(header))


async def test_an_anonymous_token_is_asked_for_once_and_until_it_ends() -> None:
    clock, server = HandClock(), TokenServer({"token": "t1", "expires_in": 300})
    authorizer = Authorizer(OneKey(None), server, clock)

    header = await authorizer.answer("registry.example", SCOPE, None, CHALLENGE, BASE)

    assert revealed(header) == "Bearer t1"
    assert server.forms[0].authorization is None
    assert server.forms[0].fields == {"scope": SCOPE, "service": "registry.example"}
    assert revealed(authorizer.known("registry.example", SCOPE)) == "Bearer t1"
    assert authorizer.known("registry.example", pull_scope("other")) is None
    assert authorizer.known("other.example", SCOPE) is None
    clock.passed_s = 299
    assert authorizer.known("registry.example", SCOPE) is None


async def test_a_token_that_was_refused_is_replaced() -> None:
    server = TokenServer({"access_token": "t1", "expires_in": 300})
    authorizer = Authorizer(OneKey(None), server, HandClock())
    first = await authorizer.answer("registry.example", SCOPE, None, CHALLENGE, BASE)
    again = await authorizer.answer("registry.example", SCOPE, None, CHALLENGE, BASE)
    server.reply = {"token": "t2"}

    fresh = await authorizer.answer("registry.example", SCOPE, first, CHALLENGE, BASE)

    assert revealed(again) == "Bearer t1"
    assert revealed(fresh) == "Bearer t2"
    assert len(server.forms) == 2


async def test_an_identity_token_is_exchanged_in_a_form() -> None:
    server = TokenServer({"access_token": "t1"})
    credentials = Credentials("", SecretStr(""), SecretStr("refresh-me"))
    authorizer = Authorizer(OneKey(credentials), server, HandClock())

    await authorizer.answer("registry.example", SCOPE, None, CHALLENGE, BASE)

    form = server.forms[0]
    assert form.method == "POST"
    assert form.fields["refresh_token"] == "refresh-me"
    assert "refresh-me" not in repr(form)


async def test_passwords_are_not_sent_to_a_token_server_in_clear_text() -> None:
    server = TokenServer({"token": "t1"})
    authorizer = Authorizer(OneKey(Credentials("u", SecretStr("hunter2"))), server, HandClock())

    with pytest.raises(Misconfigured, match="no usable token server"):
        await authorizer.answer("r", SCOPE, None, 'Bearer realm="http://tokens.example"', BASE)

    assert server.forms == []


@pytest.mark.parametrize("credentials", [None, Credentials("u", SecretStr("hunter2"))])
async def test_a_refused_password_is_not_tried_again(credentials: Credentials | None) -> None:
    authorizer = Authorizer(OneKey(credentials), TokenServer({}), HandClock())
    refused = SecretStr("Basic dTpodW50ZXIy") if credentials else None

    with pytest.raises(Unauthorized, match="docker login") as error:
        await authorizer.answer("registry.example", SCOPE, refused, "Basic realm=x", BASE)

    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize("reply", [{}, {"token": 7}, {"token": ""}])
async def test_an_answer_without_a_token_is_a_failure_of_the_server(reply: Mapping[str, object]) -> None:
    authorizer = Authorizer(OneKey(None), TokenServer(reply), HandClock())

    with pytest.raises(RegistryFailed, match="token server of registry"):
        await authorizer.answer("registry.example", SCOPE, None, CHALLENGE, BASE)
