"""How a node is recognised, at its registration and at each later call; and tokens that are derived rather
than stored: each node's own for its HTTP server and its gRPC backends, and invites. Pure.

A machine id names a machine and proves nothing: it is no secret. What proves is a secret of our worker or
an invite's token, of which only hashes are kept; a peer that has neither is recognised by its addresses.
Every frontend on one database has the same key, and so derives the same tokens.
"""

import hashlib
import hmac
import ipaddress
from dataclasses import dataclass, field
from typing import Final

from remuda.core.errors import Unauthorized
from remuda.fleet.model import Candidate, Identification, Invite, Node


@dataclass(frozen=True, slots=True)
class CallerIdentity:
    """Who calls `/api/node/{id}`. `shared`: with the token that all workers share, where that is enough."""

    source: str = ""
    bearer_hash: str = field(default="", repr=False)
    shared: bool = False


def hash_of(secret: bytes) -> str:
    """What is kept of a secret. Those are random and long, so a slow hash would protect nothing more."""
    return hashlib.sha256(secret).hexdigest()


def host_of(address: str) -> str:
    """The host of HOST:PORT, as text."""
    host, colon, port = address.rpartition(":")
    return host if colon and "]" not in port else address


def plain_ip(text: str) -> str:
    """An IP address in its one written form; IPv4 inside IPv6 is IPv4. Empty for what is none."""
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return ""
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def recognised(candidate: Candidate, known: Node) -> bool:
    """Whether a registration under the node's name comes from that node.

    A row that no secret was bound to yet takes the first one that comes with its machine id from its address.
    """
    if known.secret_hash:
        return _same(candidate.secret_hash, known.secret_hash) or _same_invite(candidate, known)
    if candidate.machine_id != known.machine_id or not from_its_address(candidate.source, known):
        return False
    if candidate.secret_hash:
        return bool(known.machine_id)
    return _hosts(candidate.address or known.address, candidate.http_address or known.http_address) == _hosts(
        known.address, known.http_address
    )


def same_claimant(candidate: Candidate, former: Candidate) -> bool:
    if candidate.secret_hash or former.secret_hash:
        return _same(candidate.secret_hash, former.secret_hash)
    return (candidate.machine_id, candidate.source, _hosts(candidate.address, candidate.http_address)) == (
        former.machine_id,
        former.source,
        _hosts(former.address, former.http_address),
    )


def may_speak(caller: CallerIdentity, node: Node) -> bool:
    """Whether a call that names the node is the node's own."""
    if node.identified_by is Identification.ADDRESS:
        return caller.shared and from_its_address(caller.source, node)
    return _same(caller.bearer_hash, node.secret_hash)


def proven(node: Node, caller: CallerIdentity) -> Node:
    """The node, for a call that is its own; Unauthorized for any other."""
    if not may_speak(caller, node):
        raise Unauthorized(f"this call is not authenticated as the node {node.name}")
    return node


def from_its_address(source: str, known: Node) -> bool:
    """Earlier releases did not record the source: there the advertised IP address stands for it. A host name
    proves nothing, so such a node has to be approved again."""
    return source == (known.source or plain_ip(host_of(known.address).strip("[]")))


def is_its_own(address: str, node: Node, *, http: bool) -> bool:
    """Whether an address that a node tells of one of its backends has, as text, the host it registered: it
    speaks for its own host, and must not send requests, and the tokens with them, anywhere else."""
    return not address or host_of(address) == host_of(node.http_address if http else node.address)


def _same_invite(candidate: Candidate, known: Node) -> bool:
    return bool(known.invite) and candidate.invite is not None and candidate.invite.nonce == known.invite


def _hosts(address: str, http_address: str) -> frozenset[str]:
    """The hosts a node advertises; one that begins to serve files on the same host is still the same node."""
    return frozenset(host_of(one) for one in (address, http_address) if one)


def _same(given: str, kept: str) -> bool:
    return bool(kept) and hmac.compare_digest(given, kept)


INVITE_PREFIX: Final = "rmi_"
"""What invites begin with, so that other text is refused without a look at the store."""

_HTTP, _GRPC, _INVITE, _FILES = "worker-http", "worker-grpc", "invite", "model-files"


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
        if node.invite:  # Even a withdrawn one: that node was never given the shared token.
            invite = self.invite(node.name, node.invite)
            return DerivedTokens(invite, invite)
        if node.identified_by is Identification.SECRET:
            return DerivedTokens(self._derived(_HTTP, node.id), self._derived(_GRPC, node.id))
        return DerivedTokens(self._shared, self._shared)

    @property
    def model_files(self) -> str:
        """What frontends sign addresses of their model files with."""
        return self._derived(_FILES, "")

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
