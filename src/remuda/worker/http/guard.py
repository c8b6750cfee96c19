"""Who may call the worker: whoever holds the fleet's registration token."""

import hmac

from pydantic import SecretStr

from remuda.worker.http.asgi import Scope, header


class TokenGuard:
    """Without a token nobody is let in, unless the worker was told to do without one."""

    def __init__(self, token: SecretStr | None, *, open_without_token: bool = False) -> None:
        self._token = token.get_secret_value().encode() if token is not None else b""
        self._open = open_without_token and not self._token

    def admits(self, scope: Scope) -> bool:
        """Whether the request carries the token, in `Authorization: Bearer`. Compared in constant time."""
        if self._open:
            return True
        scheme, _, given = (header(scope, b"authorization") or b"").partition(b" ")
        return scheme == b"Bearer" and bool(self._token) and hmac.compare_digest(given, self._token)
