"""Who we are to a registry: challenges, tokens, and the Authorization header of each request.

Secrets are SecretStr from the moment they are read, and leave in two ways only: in a header for the registry
they belong to, and in a request to the token server which that registry named.
"""

import base64
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Protocol

import anyio
from pydantic import BaseModel, Field, SecretStr, ValidationError
from yarl import URL

from remuda.core.clock import Clock
from remuda.core.errors import Misconfigured, Unauthorized
from remuda.oci import limits
from remuda.oci.errors import RegistryFailed
from remuda.oci.keychain import Credentials

_SCHEME = re.compile(r"\s*,?\s*([A-Za-z][\w-]*)(?:\s+|$)(?!=)")
_PARAMETER = re.compile(r"\s*,?\s*([\w-]+)\s*=\s*(?:\"((?:[^\"\\]|\\.)*)\"|([^\s,\"]+))")
_CLIENT_ID = "remuda"


@dataclass(frozen=True, slots=True)
class Challenge:
    """One way in that a server offers in WWW-Authenticate."""

    scheme: str
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Form:
    """A request to a token server: a GET with parameters, or a POST of a form."""

    method: str
    url: URL
    fields: Mapping[str, str] = field(repr=False)
    named_by: URL  # The registry whose token server this is.
    authorization: SecretStr | None = None


Ask = Callable[[Form], Awaitable[bytes]]
"""Sends the form and returns the body of a good answer."""


class Keys(Protocol):
    async def find(self, registry: str) -> Credentials | None: ...


@dataclass(frozen=True, slots=True)
class _Token:
    value: SecretStr
    good_until: float


class _TokenReply(BaseModel):
    token: SecretStr = SecretStr("")
    access_token: SecretStr = SecretStr("")
    expires_in: Annotated[float, Field(ge=0)] | None = None


class Authorizer:
    """The Authorization header for each registry and scope; tokens are kept until shortly before they end."""

    def __init__(self, keys: Keys, ask: Ask, clock: Clock) -> None:
        self._keys = keys
        self._ask = ask
        self._clock = clock
        self._basic: dict[str, SecretStr] = {}
        self._tokens: dict[tuple[str, str], _Token] = {}
        self._asking: dict[tuple[str, str], anyio.Lock] = {}

    def known(self, registry: str, scope: str) -> SecretStr | None:
        """The header to begin with; None when the registry has not asked for one, or not lately."""
        if registry in self._basic:
            return self._basic[registry]
        token = self._tokens.get((registry, scope))
        if token is None or token.good_until <= self._clock.monotonic():
            return None
        return _bearer(token.value)

    async def answer(
        self, registry: str, scope: str, refused: SecretStr | None, header: str, base: URL
    ) -> SecretStr:
        """The header to try after a 401. `refused` is what was sent with it, so that it is not tried again.

        Unauthorized when nothing we have can help.
        """
        challenges = {challenge.scheme: challenge for challenge in parse_challenges(header)}
        bearer = challenges.get("bearer")
        if bearer is None:
            return await self._answer_basic(registry, refused, "basic" in challenges)
        # Many layers begin at once and are refused at once; one asks for the token, the others find it.
        async with self._asking.setdefault((registry, scope), anyio.Lock()):
            fresh = self.known(registry, scope)
            if fresh is not None and (refused is None or fresh != refused):
                return fresh
            token = await self._fetch_token(registry, scope, bearer, base)
            self._tokens[registry, scope] = token
            return _bearer(token.value)

    async def _answer_basic(self, registry: str, refused: SecretStr | None, offered: bool) -> SecretStr:
        credentials = await self._keys.find(registry) if offered else None
        if credentials is None:
            raise Unauthorized(f"{registry} wants a user and a password", hint=_login_hint(registry))
        header = _basic(credentials)
        if header == refused:
            raise Unauthorized(
                f"{registry} refuses the user and password kept for it", hint=_login_hint(registry)
            )
        self._basic[registry] = header
        return header

    async def _fetch_token(self, registry: str, scope: str, bearer: Challenge, base: URL) -> _Token:
        realm = _realm(registry, bearer, base)
        credentials = await self._keys.find(registry)
        fields = {"scope": bearer.parameters.get("scope") or scope}
        if service := bearer.parameters.get("service"):
            fields["service"] = service
        body = await self._ask(_form(realm, fields, base, credentials))
        try:
            reply = _TokenReply.model_validate_json(body)
        except ValidationError as error:
            raise RegistryFailed(f"the token server of {registry} gave an answer that is no token") from error
        value = reply.token if reply.token.get_secret_value() else reply.access_token
        if not value.get_secret_value():
            raise RegistryFailed(f"the token server of {registry} gave an answer without a token")
        life_s = reply.expires_in or limits.TOKEN_LIFE_DEFAULT_S
        margin_s = min(limits.TOKEN_MARGIN_S, life_s / 2)
        return _Token(value, self._clock.monotonic() + life_s - margin_s)


def parse_challenges(header: str) -> tuple[Challenge, ...]:
    """What a WWW-Authenticate header offers, in its order; what cannot be read is left out."""
    challenges: list[Challenge] = []
    position = 0
    while scheme := _SCHEME.match(header, position):
        position = scheme.end()
        parameters: dict[str, str] = {}
        while parameter := _PARAMETER.match(header, position):
            name, quoted, plain = parameter.groups()
            parameters[name.lower()] = re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else plain
            position = parameter.end()
        challenges.append(Challenge(scheme[1].lower(), parameters))
    return tuple(challenges)


def pull_scope(repository: str) -> str:
    return f"repository:{repository}:pull"


def _realm(registry: str, bearer: Challenge, base: URL) -> URL:
    """Where tokens are had. Never in clear text unless the registry is, too: it would show the password."""
    try:
        realm = URL(bearer.parameters.get("realm", ""))
    except ValueError:
        realm = URL()
    if not realm.host or realm.scheme not in ("https", base.scheme):
        raise Misconfigured(
            f"{registry} names no usable token server: {str(realm)!r}",
            hint="its token server must have an https address unless the registry itself is plain HTTP: "
            "correct the registry's configuration, or use another registry or mirror",
        )
    return realm


def _form(realm: URL, fields: Mapping[str, str], base: URL, credentials: Credentials | None) -> Form:
    if credentials is None:
        return Form("GET", realm, fields, base)
    if credentials.identity_token is None:
        return Form("GET", realm, fields, base, _basic(credentials))
    secret = {"grant_type": "refresh_token", "refresh_token": credentials.identity_token.get_secret_value()}
    return Form("POST", realm, {**fields, **secret, "client_id": _CLIENT_ID}, base)


def _basic(credentials: Credentials) -> SecretStr:
    pair = f"{credentials.username}:{credentials.password.get_secret_value()}"
    return SecretStr(f"Basic {base64.b64encode(pair.encode()).decode()}")


def _bearer(token: SecretStr) -> SecretStr:
    return SecretStr(f"Bearer {token.get_secret_value()}")


def _login_hint(registry: str) -> str:
    return f"log in with `docker login {registry}`, `podman login` or `skopeo login`"
