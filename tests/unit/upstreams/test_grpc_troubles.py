"""What a gRPC failure means for the client, and for the replica."""

import grpc
import pytest

from remuda.inference.failures import Fault
from remuda.upstreams.grpc import troubles

MISMATCH = 'model identity mismatch: loaded "a", asked for "b"'


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (grpc.StatusCode.NOT_FOUND, MISMATCH),
        (grpc.StatusCode.FAILED_PRECONDITION, "load a model first"),
        (grpc.StatusCode.UNKNOWN, "Model not loaded"),
    ],
)
def test_replica_that_has_lost_its_model_is_known_by_status_and_words(
    code: grpc.StatusCode, words: str
) -> None:
    assert troubles.failure_of(code, words, "b", heard=False).fault is Fault.NOT_LOADED


@pytest.mark.parametrize("code", [grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.INTERNAL])
def test_a_clients_own_words_quoted_in_an_error_cost_no_replica(code: grpc.StatusCode) -> None:
    assert (
        troubles.failure_of(code, f"cannot parse: {MISMATCH}", "b", heard=False).fault is not Fault.NOT_LOADED
    )


def test_something_else_not_found_is_no_lost_model() -> None:
    words = "no such voice"
    assert (
        troubles.failure_of(grpc.StatusCode.NOT_FOUND, words, "b", heard=False).fault is not Fault.NOT_LOADED
    )


_CONNECTING = "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.5:50100: "


@pytest.mark.parametrize(
    ("details", "dead"),
    [
        (f"{_CONNECTING}Failed to connect to remote host: Connection refused", True),
        (f"{_CONNECTING}getsockopt(SO_ERROR): Connection reset by peer", True),
        (f"{_CONNECTING}Socket closed", True),
        (f"{_CONNECTING}getsockopt(SO_ERROR): No route to host", False),
        (f"{_CONNECTING}connect: Network is unreachable (101)", False),
        ("errors resolving gpu-1:50100: Domain name not found", False),
        ("Socket closed", False),
        ("", False),
    ],
)
def test_only_an_address_that_turns_us_away_has_nobody_there(details: str, dead: bool) -> None:
    assert troubles.turned_away(grpc.StatusCode.UNAVAILABLE, details) is dead


def test_another_status_says_nothing_about_who_is_there() -> None:
    assert not troubles.turned_away(grpc.StatusCode.INTERNAL, f"{_CONNECTING}Connection refused")
