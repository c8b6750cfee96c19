"""Who may call the worker: whoever holds the token that its frontends present to it."""

import hmac

from remuda.worker.http.asgi import Scope, header
from remuda.worker.tokens import OpeningTokens


class TokenGuard:
    """Without a token nobody is let in, unless the worker was told to do without one."""

    def __init__(self, tokens: OpeningTokens, *, open_without_token: bool = False) -> None:
        self._tokens = tokens
        self._open = open_without_token

    def admits(self, scope: Scope) -> bool:
        """Whether the request carries the token, in `Authorization: Bearer`. Compared in constant time."""
        token = self._tokens.http.encode()
        if self._open and not token and not self._tokens.own:
            return True
        scheme, _, given = (header(scope, b"authorization") or b"").partition(b" ")
        return scheme == b"Bearer" and bool(token) and hmac.compare_digest(given, token)
