"""Tokens that are derived rather than stored: each node's own for its HTTP server and its gRPC backends, and
invites. Every frontend on one database has the same key, and so the same tokens. Pure."""

import hmac
from dataclasses import dataclass, field
from typing import Final

from remuda.fleet.identity import hash_of
from remuda.fleet.model import Identification, Invite, Node

INVITE_PREFIX: Final = "rmi_"
"""What invites begin with, so that other text is refused without a look at the store."""

_HTTP, _GRPC, _INVITE = "worker-http", "worker-grpc", "invite"


@dataclass(frozen=True, slots=True)
class DerivedTokens:
    """What opens a worker: `http` its HTTP server, `grpc` its gRPC backends."""

    http: str = field(repr=False)
    grpc: str = field(repr=False)


class NodeTokens:
    def __init__(self, key: str, shared: str) -> None:
        """`shared` is the registration token; empty where the fleet has none."""
        self._key = key.encode()
        self._shared = shared

    def of(self, node: Node) -> DerivedTokens:
        """What to present to this node: its own tokens, its invite, or else what all workers share."""
        if node.invite:  # Even a withdrawn one: that node was never told the shared token.
            invite = self.invite(node.name, node.invite)
            return DerivedTokens(invite, invite)
        if node.identified_by is Identification.SECRET:
            return DerivedTokens(self._derived(_HTTP, node.id), self._derived(_GRPC, node.id))
        return DerivedTokens(self._shared, self._shared)

    def invite(self, name: str, nonce: str) -> str:
        """The registration token of this invite."""
        return f"{INVITE_PREFIX}{nonce}.{self._derived(_INVITE, f'{nonce}/{name}')}"

    def invited(self, name: str, token: str) -> Invite | None:
        """The invite that this token is, if it is one to this name."""
        nonce, _, _ = token.removeprefix(INVITE_PREFIX).partition(".")
        if not token.startswith(INVITE_PREFIX):
            return None
        if not hmac.compare_digest(token.encode(), self.invite(name, nonce).encode()):
            return None
        return Invite(nonce, hash_of(token.encode()))

    def _derived(self, purpose: str, of: str) -> str:
        return hmac.digest(self._key, f"{purpose}/{of}".encode(), "sha256").hex()
