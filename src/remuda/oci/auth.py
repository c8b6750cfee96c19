"""Who we are to a registry: credentials as docker and its relatives keep them (config.json, and the
helper programs it names; only read here), challenges, tokens, and the Authorization header of each
request.

Secrets are SecretStr from the moment they are read, and leave in two ways only: in a header for the
registry they belong to, and in a request to the token server which that registry named.
"""

import base64
import binascii
import json
import re
import subprocess
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Protocol

import anyio
import structlog
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError
from yarl import URL

from remuda.core.clock import Clock
from remuda.core.errors import Misconfigured, Unauthorized
from remuda.oci import limits
from remuda.oci.errors import RegistryFailed
from remuda.oci.reference import DOCKER_HUB

log = structlog.get_logger(__name__)

_HUB_KEY = "https://index.docker.io/v1/"
_TOKEN_USER = "<token>"
_PROGRAM_NAME_CHARS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user and a password, or an identity token that stands for both."""

    username: str
    password: SecretStr
    identity_token: SecretStr | None = None


class _Auth(BaseModel):
    auth: SecretStr = SecretStr("")
    username: str = ""
    password: SecretStr = SecretStr("")
    identity_token: SecretStr = Field(SecretStr(""), alias="identitytoken")


class _DockerConfig(BaseModel):
    model_config = ConfigDict(hide_input_in_errors=True)

    auths: Mapping[str, _Auth] = {}
    helpers: Mapping[str, str] = Field({}, alias="credHelpers")
    store: str = Field("", alias="credsStore")


class _HelperReply(BaseModel):
    model_config = ConfigDict(hide_input_in_errors=True)

    username: str = Field("", alias="Username")
    secret: SecretStr = Field(SecretStr(""), alias="Secret")


class NoKeys:
    """For anonymous use."""

    async def find(self, registry: str) -> Credentials | None:
        return None


class Keychain:
    """Looks into the first of `files` that names the registry. `env` is what helper programs run with."""

    def __init__(self, files: tuple[Path, ...], env: Mapping[str, str]) -> None:
        self._files = files
        self._env = env

    async def find(self, registry: str) -> Credentials | None:
        """None when nothing is kept for the registry. Misconfigured when a file cannot be used."""
        for file in self._files:
            config = await anyio.to_thread.run_sync(_read, file)
            found = await self._in_config(config, registry) if config is not None else None
            if found is not None:
                return found
        return None

    async def _in_config(self, config: _DockerConfig, registry: str) -> Credentials | None:
        key = _HUB_KEY if registry == DOCKER_HUB else registry
        helper = config.helpers.get(registry) or config.helpers.get(key) or config.store
        found = await self._ask_helper(helper, key) if helper else None
        if found is not None:
            return found
        for name, auth in config.auths.items():
            if _host(name) == _host(key):
                return _from_auth(auth)
        return None

    async def _ask_helper(self, helper: str, key: str) -> Credentials | None:
        program = f"docker-credential-{helper}"
        if not set(helper) <= _PROGRAM_NAME_CHARS:
            raise Misconfigured(f"{program!r} in docker's config.json is not the name of a program")
        try:
            with anyio.fail_after(limits.CREDENTIAL_HELPER_S):
                done = await anyio.run_process(
                    [program, "get"],
                    input=key.encode(),
                    env=self._env,
                    check=False,
                    stderr=subprocess.DEVNULL,
                )
        except TimeoutError:
            # As good as absent: a key ring that waits for a click must not keep public images away.
            log.warning("credential_helper_timed_out", program=program, limit_s=limits.CREDENTIAL_HELPER_S)
            return None
        except OSError as error:
            log.warning("credential_helper_failed", program=program, reason=error.strerror)
            return None
        if done.returncode != 0:  # The usual way of saying that it knows nothing of this registry.
            log.debug("credential_helper_refused", program=program, code=done.returncode)
            return None
        return _from_helper(program, done.stdout)


def docker_config_files(env: Mapping[str, str]) -> tuple[Path, ...]:
    """Where docker, and then podman and skopeo, keep credentials in this environment."""
    home = env.get("HOME")
    folders = [
        (env.get("DOCKER_CONFIG") or (home and f"{home}/.docker"), "config.json"),
        (env.get("XDG_RUNTIME_DIR"), "containers/auth.json"),
        (env.get("XDG_CONFIG_HOME") or (home and f"{home}/.config"), "containers/auth.json"),
    ]
    return tuple(Path(folder) / name for folder, name in folders if folder)


def _read(file: Path) -> _DockerConfig | None:
    try:
        text = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise Misconfigured(
            f"{file} cannot be read: {error.strerror}", hint="correct its permissions"
        ) from error
    try:
        return _DockerConfig.model_validate(json.loads(text))
    except (ValueError, ValidationError, RecursionError):
        # Without its cause: that quotes the file, and the file holds passwords.
        raise Misconfigured(f"{file} is not a docker configuration", hint="correct or remove it") from None


def _from_auth(auth: _Auth) -> Credentials | None:
    token = auth.identity_token if auth.identity_token.get_secret_value() else None
    username, password = auth.username, auth.password
    if packed := auth.auth.get_secret_value():
        try:
            name, _, secret = base64.b64decode(packed, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            raise Misconfigured("an `auth` in docker's config.json is not base64") from None
        username, password = name, SecretStr(secret.rstrip("\0"))
    if not username and token is None:
        return None  # As `docker login` leaves it behind where a helper keeps the secret.
    return Credentials(username, password, token)


def _from_helper(program: str, output: bytes) -> Credentials | None:
    try:
        reply = _HelperReply.model_validate_json(output[: limits.CREDENTIAL_BYTES_MAX])
    except ValidationError:
        log.warning("credential_helper_failed", program=program, reason="its answer is not JSON")
        return None
    if reply.username == _TOKEN_USER:
        return Credentials("", SecretStr(""), reply.secret)
    return Credentials(reply.username, reply.secret) if reply.username else None


def _host(key: str) -> str:
    """`https://quay.io/v2/` and `quay.io` mean the same registry."""
    return key.partition("://")[2].partition("/")[0] if "://" in key else key.partition("/")[0]


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


PostForm = Callable[[Form], Awaitable[bytes]]
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

    def __init__(self, keys: Keys, ask: PostForm, clock: Clock) -> None:
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
