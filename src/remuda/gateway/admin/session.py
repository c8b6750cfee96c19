"""Signing in and out of the console."""

from fastapi import APIRouter, Request, Response

from remuda.accounts.keys import KeyScope
from remuda.core.errors import Forbidden, Unauthorized
from remuda.gateway.guards import LOCAL, key_of, require_console
from remuda.gateway.messages import answer, gives, read_known, takes
from remuda.gateway.services import Services, Svc
from remuda.gateway.sessions import COOKIE, Session, cookie_in
from remuda.wire.console import SessionView, SignIn

_MAY_LOOK = frozenset({KeyScope.ADMIN, KeyScope.READ})
"""Whose keys open the console."""

routes = APIRouter(prefix="/api/session", tags=["session"])


@routes.get("", responses=gives(SessionView))
async def session(request: Request, svc: Svc) -> Response:
    """Whether this browser is signed in, or need not be. Works without a key, and renews the cookie."""
    key = key_of(request, svc)
    shown = answer(_view(svc, "" if key is None else key.scope, "" if key is None else key.name))
    found = svc.console.sessions.of(cookie_in(request.headers.get("cookie", "")))
    if found is not None and (cookie := svc.console.sessions.renewed(found)):
        _set(shown, request, svc, cookie)
    return shown


@routes.post("", openapi_extra=takes(SignIn), responses=gives(SessionView, 400, 401, 403, 429))
async def sign_in(request: Request, svc: Svc) -> Response:
    """Exchange an API key for a session cookie."""
    require_console(request)
    source = svc.access.source(request)
    svc.console.failures.check(source)
    given = (await read_known(request, SignIn)).key.strip()
    key = svc.keyring.holder(given)
    if key is None:
        svc.console.failures.failed(source)
        raise Unauthorized(
            svc.keyring.trouble(given) or "this is not an active API key",
            hint=svc.keyring.remedy(given) or "remuda keys create NAME --scope admin makes one",
        )
    if key.scope not in _MAY_LOOK:
        raise Forbidden(
            f"the key '{key.name}' is for programs that use models, and does not open the console",
            hint="sign in with an admin or read-only key",
        )
    shown = answer(_view(svc, key.scope, key.name))
    _set(shown, request, svc, svc.console.sessions.begin(key))
    return shown


@routes.delete("", status_code=200, responses=gives(SessionView, 403, 503))
async def sign_out(request: Request, svc: Svc) -> Response:
    """End the session, on all frontends, and take its cookie back."""
    require_console(request)
    found = svc.console.sessions.of(cookie_in(request.headers.get("cookie", "")))
    if found is not None:
        await svc.console.sessions.end(found)
    shown = answer(_view(svc, "", ""))
    shown.delete_cookie(COOKIE, path="/", secure=svc.access.secure(request), httponly=True, samesite="strict")
    return shown


def _view(svc: Services, scope: str, name: str) -> SessionView:
    loopback = not svc.access.keys_required
    if loopback:
        scope, name = "admin", name or LOCAL
    return SessionView.model_validate(
        {
            "authenticated": bool(scope),
            "scope": scope,
            "name": name,
            "loopback": loopback,
            "version": svc.version,
            "frontend": svc.console.frontend,
        }
    )


def _set(response: Response, request: Request, svc: Services, cookie: str) -> None:
    found = svc.console.sessions.of(cookie)
    assert isinstance(found, Session), "it was made a moment ago"
    response.set_cookie(
        COOKIE,
        cookie,
        max_age=int(svc.console.sessions.lasts(found).total_seconds()),
        path="/",
        secure=svc.access.secure(request),
        httponly=True,
        samesite="strict",
    )
