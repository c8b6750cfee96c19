"""Who may call which route. Guards belong to routes; only the host check comes before everything."""

import hmac
from collections.abc import Collection
from typing import Annotated
from urllib.parse import SplitResult, urlsplit

from fastapi import Depends, Request
from fastapi.openapi.models import HTTPBearer
from fastapi.security.base import SecurityBase
from fastapi.security.utils import get_authorization_scheme_param
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from remuda.accounts.keys import ApiKey, KeyScope
from remuda.core.errors import Forbidden, RemudaError, Unauthorized
from remuda.fleet import identity
from remuda.fleet.identity import INVITE_PREFIX
from remuda.gateway.messages import refusal
from remuda.gateway.services import Access, Services, Svc
from remuda.gateway.sessions import CONSOLE_HEADER, cookie_in, is_from_console
from remuda.wire.nodes import SECRET_PREFIX, TOKEN_MISSING, TOKEN_WRONG, TokenError


class TokenRefused(RemudaError):
    """The registration token is missing or wrong: answered with the contract's plain-string envelope."""

    code = "unauthorized"
    http_status = 401

    def __init__(self, answer: TokenError) -> None:
        super().__init__(answer.error)
        self.answer = answer


class NodeCaller(SecurityBase):
    """Who calls the node API, by what is in `Authorization: Bearer`: the registration token, a node's own
    secret, or an invite. Whether it is the node it speaks of is decided where the node is read."""

    scheme_name = "registrationToken"
    model = HTTPBearer(
        description="The registration token to register; afterwards the node's own secret, if it has one."
    )

    async def __call__(self, request: Request, svc: Svc) -> identity.CallerIdentity:
        expected, header = svc.access.registration_token, request.headers.get("authorization", "")
        # Back to the bytes that were sent: a header is Latin-1 only by convention.
        bearer = header.removeprefix("Bearer ").encode("latin-1") if header.startswith("Bearer ") else b""
        shared = expected is None or same_secret(bearer, expected.get_secret_value())
        if not shared and not header.startswith("Bearer "):
            raise TokenRefused(TOKEN_MISSING)
        if not shared and not bearer.startswith(_OWN_PREFIXES):
            raise TokenRefused(TOKEN_WRONG)
        return identity.CallerIdentity(svc.access.source(request), identity.hash_of(bearer), shared)


_OWN_PREFIXES = (SECRET_PREFIX.encode(), INVITE_PREFIX.encode())


class AdminKey(SecurityBase):
    """The caller's name, for the history. On loopback everyone is the machine's own admin. Where nothing is
    changed, a key that may only read is enough, unless the answer holds a secret (`whole`)."""

    scheme_name = "adminKey"
    model = HTTPBearer(
        description="An admin's API key; for GET one of the scope read is enough. Not asked for where only "
        "loopback is served."
    )

    def __init__(self, *, whole: bool = False) -> None:
        self._whole = whole

    async def __call__(self, request: Request, svc: Svc) -> str:
        return admin_name(request, svc, reads=not self._whole and request.method in _SAFE)


def admin_name(caller: HTTPConnection, svc: Services, *, reads: bool = True) -> str:
    """The name of the admin who calls, over HTTP or a WebSocket; if it only `reads`, also of one who may do
    no more. Raises Unauthorized or Forbidden."""
    key = key_of(caller, svc)
    if key is not None and (key.scope is KeyScope.ADMIN or (reads and key.scope is KeyScope.READ)):
        return key.name
    if not svc.access.keys_required:
        return LOCAL
    if key is not None:
        raise Forbidden(f"the key {key.name!r} has the scope {key.scope}", hint="use an admin key")
    raise Unauthorized(
        _trouble(caller, svc) or "missing or invalid API key",
        hint=svc.keyring.remedy(_presented_key(caller))
        or "send an admin key as Authorization: Bearer KEY; remuda keys create NAME --scope admin makes one",
    )


def is_admin(caller: HTTPConnection, svc: Services) -> bool:
    """For routes that need no key, but show more to those who may see it."""
    key = key_of(caller, svc)
    return not svc.access.keys_required or (key is not None and key.scope is not KeyScope.INFERENCE)


def is_own_user(caller: HTTPConnection, svc: Services) -> bool:
    """Whether the caller is the user of this machine who runs the frontend: it has the key that only this
    user can read, or the frontend serves this machine alone."""
    own = svc.keyring.local_secret
    return not svc.access.keys_required or same_secret(_presented_key(caller).encode(), own)


class AnyKey(SecurityBase):
    """The caller's key, of any scope. None on loopback, where keys limit nothing."""

    scheme_name = "inferenceKey"
    model = HTTPBearer(
        description="Any API key; x-api-key has it as well. Not asked for where only loopback is served."
    )

    async def __call__(self, request: Request, svc: Svc) -> ApiKey | None:
        if not svc.access.keys_required:
            return None
        key = key_of(request, svc)
        if key is None:
            raise Unauthorized(
                _trouble(request, svc) or "missing or invalid API key",
                hint=svc.keyring.remedy(_presented_key(request))
                or "send it as Authorization: Bearer KEY; remuda keys create makes one",
            )
        return key


node_caller = NodeCaller()
require_admin = AdminKey()
require_whole_admin = AdminKey(whole=True)
require_key = AnyKey()
Admin = Annotated[str, Depends(require_admin)]
ByNode = Annotated[identity.CallerIdentity, Depends(node_caller)]
Caller = Annotated[ApiKey | None, Depends(require_key)]


def key_of(caller: HTTPConnection, svc: Services) -> ApiKey | None:
    """The key that came with a request, or that its session stands for. Forbidden where a session is to
    change something, and the request does not show that it comes from the console."""
    presented = _presented_key(caller)
    if presented:
        return svc.keyring.holder(presented)
    session = svc.console.sessions.of(cookie_in(caller.headers.get("cookie", "")))
    if session is None:
        return None
    if caller.scope["type"] == "http" and caller.scope["method"] not in _SAFE:
        require_console(caller)
    return session.key


def require_console(caller: HTTPConnection) -> None:
    """Forbidden for a request that another web page may have made a browser send."""
    if not is_from_console(caller.headers, origin_problem):
        raise Forbidden(
            "this request does not show that it comes from the console",
            hint=f"send the header {CONSOLE_HEADER.title()}: 1, or an API key instead of a cookie",
        )


_SAFE = frozenset({"GET", "HEAD"})
LOCAL = "local"
"""The name of the admin where there are no keys."""


def _presented_key(request: HTTPConnection) -> str:
    scheme, value = get_authorization_scheme_param(request.headers.get("authorization"))
    return value if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")


def _trouble(caller: HTTPConnection, svc: Services) -> str:
    return svc.keyring.trouble(_presented_key(caller))


def same_secret(given: bytes, expected: str) -> bool:
    return hmac.compare_digest(given, expected.encode())


_FORWARDED = (b"x-forwarded-for", b"forwarded", b"x-real-ip")


class HostGuard:
    """On loopback there are no keys, so a web page must not be able to call us through the user's browser:
    neither under a name it controls (Host), nor from its own origin (Origin)."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        host, origin = headers.get(b"host", ""), headers.get(b"origin")
        if not self._access.keys_required:
            problem = proxy_problem(self._access, headers) or host_problem(self._access, host, origin)
        else:  # Browsers let any page open a WebSocket anywhere.
            problem = origin_problem(host, origin) if scope["type"] == "websocket" else ""
        if problem:
            await refusal(Forbidden(problem), scope["path"])(scope, receive, send)
            return
        await self._app(scope, receive, send)


def proxy_problem(access: Access, headers: Collection[bytes]) -> str:
    """Why a request with these headers may be another machine's, let through by a proxy; empty: it is not.
    To be asked where there are no keys, because every user of this machine is its admin."""
    used = next((name for name in _FORWARDED if name in headers), None)
    if used is None or access.proxies.any_local:
        return ""
    return (
        f"this request came through a proxy ({used.decode()}), but this frontend asks for no keys because it "
        "serves its own machine alone; serve the network (--lan or --host 0.0.0.0), so that keys are "
        "required, or if all connections come through the proxy, name it with --trusted-proxies 127.0.0.1"
    )


def host_problem(access: Access, host: str, origin: str | None) -> str:
    """Why a request with these headers may come from a web page that means harm; empty: it does not."""
    name = _split(f"//{host}").hostname or ""
    if name not in access.allowed_hosts:
        return f"the host {name!r} is not this frontend; add it with --allowed-hosts"
    return origin_problem(host, origin)


def origin_problem(host: str, origin: str | None) -> str:
    """Browsers say where a page came from; other callers say nothing."""
    if origin is not None and _split(origin).netloc != host:
        return "requests from other web origins are refused"
    return ""


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")
