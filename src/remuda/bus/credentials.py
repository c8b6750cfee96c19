"""NATS credentials minted by us: operator, accounts and users as signed JWTs over ed25519 keys.

Nothing here is stored or sent. Seeds are secrets; JWTs are not, without their seed they open nothing.
"""

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Literal, Self

import nkeys
from pydantic import BaseModel, SecretStr

from remuda.core.entropy import Entropy
from remuda.core.errors import Invalid, Misconfigured
from remuda.core.ids import NodeId

UserKind = Literal["backend", "agent"]
Claims = dict[str, object]

_UNLIMITED = -1
_USER_LIMITS: Claims = {"subs": _UNLIMITED, "data": _UNLIMITED, "payload": _UNLIMITED}
_ACCOUNT_LIMITS: Claims = {
    **_USER_LIMITS,
    **dict.fromkeys(("imports", "exports", "conn", "leaf"), _UNLIMITED),
    "wildcards": True,
}


@dataclass(frozen=True, slots=True)
class BusUser:
    """One bus user: what it shows (jwt), what it signs with (seed), and how it is revoked (public_key)."""

    jwt: str = field(repr=False)
    seed: SecretStr
    public_key: str
    expires_at: datetime | None


class _KeyPair:
    """An nkey, and the signing of claims with it."""

    def __init__(self, seed: SecretStr) -> None:
        self.seed = seed
        self._pair = nkeys.from_seed(seed.get_secret_value().encode())
        self.public: str = self._pair.public_key.decode()

    @classmethod
    def from_bytes(cls, raw: bytes, prefix: int) -> Self:
        return cls(SecretStr(nkeys.encode_seed(raw, prefix).decode()))

    def derive_user(self, label: str) -> "_KeyPair":
        """The same label always gives the same user, and only who holds this seed can tell which."""
        _, own = nkeys.decode_seed(self.seed.get_secret_value().encode())
        return _KeyPair.from_bytes(hmac.digest(own, label.encode(), "sha256"), nkeys.PREFIX_BYTE_USER)

    def sign(
        self, subject: str, name: str, now: datetime, nats: Claims, expires: datetime | None = None
    ) -> str:
        claims: Claims = {
            "iss": self.public,
            "sub": subject,
            "name": name,
            "iat": int(now.timestamp()),
            "nats": {**nats, "version": 2},
        }
        if expires is not None:
            claims["exp"] = int(expires.timestamp())
        digest = hashlib.new("sha512_256", _json(claims)).digest()
        claims["jti"] = base64.b32encode(digest).decode().rstrip("=")
        signed = f"{_segment(_json({'typ': 'JWT', 'alg': 'ed25519-nkey'}))}.{_segment(_json(claims))}"
        return f"{signed}.{_segment(self._pair.sign(signed.encode()))}"


class Account:
    """An account's seed at work: mints its users. All that is needed on an external bus."""

    def __init__(self, seed: SecretStr) -> None:
        if not seed.get_secret_value().startswith("SA"):
            raise Misconfigured("the bus account seed is not one", hint="an account seed begins with SA")
        try:
            self._keys = _KeyPair(seed)
        except (nkeys.NkeysError, ValueError):
            raise Misconfigured("the bus account seed is damaged", hint="copy it again, whole") from None

    @property
    def public_key(self) -> str:
        return self._keys.public

    def mint_frontend(self, name: str, *, now: datetime, ttl: timedelta | None = None) -> BusUser:
        """A user without limits: frontends publish everywhere."""
        return self._mint(f"frontend/{name}", f"remuda-frontend-{name}", {}, now, ttl)

    def mint_worker(
        self,
        node_type: UserKind,
        node: NodeId,
        *,
        subscribe: Sequence[str],
        publish: Sequence[str],
        now: datetime,
        ttl: timedelta,
    ) -> BusUser:
        """A user that hears and says only what is named."""
        limits: Claims = {"sub": {"allow": list(subscribe)}, "pub": {"allow": list(publish)}}
        return self._mint(_worker_label(node), f"localai-{node_type}-{node}", limits, now, ttl)

    def worker_public_key(self, node: NodeId) -> str:
        """Whom to revoke when a node is removed: derived, so that no row has to remember it."""
        return self._keys.derive_user(_worker_label(node)).public

    def _mint(self, label: str, name: str, limits: Claims, now: datetime, ttl: timedelta | None) -> BusUser:
        user = self._keys.derive_user(label)
        expires_at = None if ttl is None else (now + ttl).replace(microsecond=0)
        jwt = self._keys.sign(user.public, name, now, {"type": "user", **_USER_LIMITS, **limits}, expires_at)
        return BusUser(jwt, user.seed, user.public, expires_at)


@dataclass(frozen=True, slots=True)
class ClusterKeys:
    """The seeds of a bus of our own. Made once per fleet and kept; every JWT can be made again from them."""

    operator_seed: SecretStr
    system_account_seed: SecretStr
    account_seed: SecretStr

    @classmethod
    def create(cls, entropy: Entropy) -> Self:
        def seed(prefix: int) -> SecretStr:
            return _KeyPair.from_bytes(hashlib.sha256(entropy.token(32).encode()).digest(), prefix).seed

        return cls(
            operator_seed=seed(nkeys.PREFIX_BYTE_OPERATOR),
            system_account_seed=seed(nkeys.PREFIX_BYTE_ACCOUNT),
            account_seed=seed(nkeys.PREFIX_BYTE_ACCOUNT),
        )

    @property
    def account(self) -> Account:
        return Account(self.account_seed)

    @property
    def system_account(self) -> Account:
        return Account(self.system_account_seed)

    def operator_jwt(self, now: datetime) -> str:
        operator = _KeyPair(self.operator_seed)
        claims: Claims = {"type": "operator", "system_account": self.system_account.public_key}
        return operator.sign(operator.public, "remuda", now, claims)

    def account_jwt(self, now: datetime, revocations: Mapping[str, datetime]) -> str:
        """The fleet's account. A user is out if its JWT was issued no later than its revocation."""
        revoked: Claims = {key: int(since.timestamp()) for key, since in revocations.items()}
        return self._account_jwt(self.account, "remuda", now, {"revocations": revoked})

    def system_account_jwt(self, now: datetime) -> str:
        return self._account_jwt(self.system_account, "system", now, {})

    def _account_jwt(self, account: Account, name: str, now: datetime, extra: Claims) -> str:
        claims: Claims = {"type": "account", "limits": _ACCOUNT_LIMITS, **extra}
        return _KeyPair(self.operator_seed).sign(account.public_key, name, now, claims)


class _AccountPart(BaseModel):
    revocations: dict[str, int] = {}


class _Read(BaseModel):
    nats: _AccountPart = _AccountPart()


def revocations(account_jwt: str) -> dict[str, datetime]:
    """Who an account JWT shuts out, by public key. Its signature is the server's to check."""
    try:
        _, body, _ = account_jwt.split(".")
        read = _Read.model_validate_json(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    except ValueError:
        raise Invalid("this is not a bus JWT") from None  # The text itself stays out of the message.
    return {key: datetime.fromtimestamp(at, UTC) for key, at in read.nats.revocations.items()}


def signature(seed: SecretStr, nonce: str) -> bytes:
    """The proof of holding a seed, in the form the server asks for."""
    try:
        pair = nkeys.from_seed(seed.get_secret_value().encode())
    except (nkeys.NkeysError, ValueError):
        raise Misconfigured("the bus user seed is damaged", hint="copy it again, whole") from None
    return base64.b64encode(pair.sign(nonce.encode()))


def _worker_label(node: NodeId) -> str:
    return f"worker/{node}"


def _json(value: Claims | dict[str, str]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _segment(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
