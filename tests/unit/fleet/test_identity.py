"""Tokens that are derived: whose they are, and that nobody else's will do."""

from remuda.core.ids import NodeId
from remuda.fleet.admission import without_invite
from remuda.fleet.identity import NodeTokens
from tests.support.nodes import node

TOKENS = NodeTokens("key", "shared")


def test_a_node_with_a_secret_has_tokens_of_its_own_that_every_frontend_derives_alike() -> None:
    one, two = node(secret_hash="h"), node(secret_hash="h", id=NodeId("node-2"))
    own = TOKENS.of(one)
    assert NodeTokens("key", "other").of(one) == own
    assert len({own.http, own.grpc, TOKENS.of(two).http, TOKENS.of(two).grpc, "shared"}) == 5
    assert NodeTokens("another key", "shared").of(one) != own
    assert own.http not in repr(own)


def test_an_invited_node_is_opened_by_its_invite_and_others_by_the_shared_token() -> None:
    invited = node(secret_hash="h", invite="nonce")
    assert TOKENS.of(invited).grpc == TOKENS.of(invited).http == TOKENS.invite("gpu-1", "nonce")
    assert TOKENS.of(node()).grpc == TOKENS.of(node()).http == "shared"


def test_a_node_whose_invite_was_withdrawn_is_not_sent_the_shared_token() -> None:
    row = without_invite(node(secret_hash="h", invite="nonce"))
    assert TOKENS.of(row).grpc == TOKENS.of(row).http == TOKENS.invite("gpu-1", "nonce")


def test_an_invite_is_to_one_name() -> None:
    token = TOKENS.invite("gpu-1", "nonce")
    found = TOKENS.invited("gpu-1", token)
    assert found is not None
    assert found.nonce == "nonce"
    for name, given in (
        ("gpu-2", token),
        ("gpu-1", token + "x"),
        ("gpu-1", token[:-1]),
        ("gpu-1", NodeTokens("another key", "").invite("gpu-1", "nonce")),
        ("gpu-1", token.removeprefix("rmi_")),
        ("gpu-1", "shared"),
        ("gpu-1", ""),
        ("gpu-1", "rmi_nönce.x"),
    ):
        assert TOKENS.invited(name, given) is None
