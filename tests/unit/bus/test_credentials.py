"""Minted credentials: shaped as the server reads them, derived so that they can be revoked."""

import base64
import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import nkeys
import pytest
from nacl.signing import VerifyKey
from pydantic import SecretStr

from remuda.bus.credentials import Account, BusUser, ClusterKeys, revocations
from remuda.core.entropy import SeededEntropy
from remuda.core.errors import Invalid, Misconfigured
from remuda.core.ids import NodeId

NOW = datetime(2030, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
KEYS = ClusterKeys.create(SeededEntropy(1))
NODE = NodeId("0b1c6a5e-0000-4000-8000-000000000001")


def decode(segment: str) -> bytes:
    return base64.urlsafe_b64decode(segment + "=" * (-len(segment) % 4))


def claims(jwt: str) -> Mapping[str, Any]:
    read: Mapping[str, Any] = json.loads(decode(jwt.split(".")[1]))
    return read


def worker(node: NodeId = NODE) -> BusUser:
    return KEYS.account.mint_worker(
        "backend", node, subscribe=["nodes.1.>"], publish=["nodes.1.p"], now=NOW, ttl=timedelta(hours=24)
    )


def test_a_worker_hears_says_and_answers_only_what_was_named() -> None:
    nats = claims(worker().jwt)["nats"]
    assert nats["sub"] == {"allow": ["nodes.1.>"]}
    assert nats["pub"] == {"allow": ["nodes.1.p"]}
    assert nats["type"] == "user"


def test_a_worker_may_not_answer_wherever_a_request_asks_it_to() -> None:
    assert "resp" not in claims(worker().jwt)["nats"]


def test_a_frontend_is_not_limited_and_does_not_expire() -> None:
    minted = KEYS.account.mint_frontend("f", now=NOW)
    assert not {"sub", "pub", "resp"} & claims(minted.jwt)["nats"].keys()
    assert minted.expires_at is None
    assert "exp" not in claims(minted.jwt)


def test_the_expiry_told_is_the_one_in_the_jwt() -> None:
    minted = worker()
    assert minted.expires_at == datetime(2030, 1, 3, 3, 4, 5, tzinfo=UTC)
    assert minted.expires_at.timestamp() == claims(minted.jwt)["exp"]


def test_the_signature_is_the_accounts() -> None:
    header, body, signature = worker().jwt.split(".")
    assert json.loads(decode(header)) == {"typ": "JWT", "alg": "ed25519-nkey"}
    raw = base64.b32decode(KEYS.account.public_key + "=" * (-len(KEYS.account.public_key) % 8))[1:-2]
    VerifyKey(raw).verify(f"{header}.{body}".encode(), decode(signature))


def test_the_id_is_the_digest_of_the_claims() -> None:
    read = dict(claims(worker().jwt))
    jti = read.pop("jti")
    digest = hashlib.new("sha512_256", json.dumps(read, separators=(",", ":")).encode()).digest()
    assert jti == base64.b32encode(digest).decode().rstrip("=")


def test_a_nodes_key_is_derived_from_account_and_id() -> None:
    assert worker().public_key == KEYS.account.worker_public_key(NODE) == claims(worker().jwt)["sub"]
    assert worker(NodeId("other")).public_key != worker().public_key
    others = ClusterKeys.create(SeededEntropy(2))
    assert others.account.worker_public_key(NODE) != worker().public_key


def test_the_seed_belongs_to_the_public_key() -> None:
    minted = worker()
    pair = nkeys.from_seed(minted.seed.get_secret_value().encode())
    assert pair.public_key.decode() == minted.public_key


def test_revocations_survive_in_the_account_jwt() -> None:
    jwt = KEYS.account_jwt(NOW, {"UABC": NOW})
    assert claims(jwt)["nats"]["revocations"] == {"UABC": int(NOW.timestamp())}
    assert revocations(jwt) == {"UABC": NOW.replace(microsecond=0)}


def test_the_operator_names_its_system_account() -> None:
    assert (
        claims(KEYS.operator_jwt(NOW))["nats"]["system_account"]
        == claims(KEYS.system_account_jwt(NOW))["sub"]
    )


def test_an_account_seed_alone_mints_the_same_users() -> None:
    alone = Account(SecretStr(KEYS.account_seed.get_secret_value()))
    assert alone.worker_public_key(NODE) == KEYS.account.worker_public_key(NODE)


@pytest.mark.parametrize("seed", ["", "nonsense", "SAabc", worker().seed.get_secret_value()])
def test_what_is_no_account_seed_is_refused_without_repeating_it(seed: str) -> None:
    with pytest.raises(Misconfigured, match="account seed") as refused:
        Account(SecretStr(seed))
    assert not seed or seed not in str(refused.value)


@pytest.mark.parametrize("text", ["", "a.b", "a.!.c", "a.e30x.c"])
def test_what_is_no_jwt_has_no_revocations_to_read(text: str) -> None:
    with pytest.raises(Invalid):
        revocations(text)


def test_printing_credentials_prints_no_secret() -> None:
    minted = worker()
    printed = repr((minted, KEYS))
    assert minted.seed.get_secret_value() not in printed
    assert minted.jwt not in printed
    assert KEYS.account_seed.get_secret_value() not in printed
