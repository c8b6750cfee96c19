"""What a failed call means for the client, and for the replica."""

import pytest

from remuda.inference.failures import Fault
from remuda.inference.model import RequestKind
from remuda.upstreams.grpc import error_mapping
from remuda.upstreams.http2.failures import (
    BackendTurnedAway,
    BrokenOff,
    CallFailed,
    Garbled,
    GrpcStatus,
    HungUp,
    reset,
)
from remuda.upstreams.http2.frames import Code

MISMATCH = 'model identity mismatch: loaded "a", asked for "b"'


def _fault(failed: CallFailed, *, heard: bool = False) -> Fault:
    return error_mapping.failure_of(failed, "b", RequestKind.CHAT, begun=heard).fault


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (GrpcStatus.NOT_FOUND, MISMATCH),
        (GrpcStatus.FAILED_PRECONDITION, "load a model first"),
        (GrpcStatus.UNKNOWN, "Model not loaded"),
    ],
)
def test_replica_that_has_lost_its_model_is_known_by_status_and_words(code: GrpcStatus, words: str) -> None:
    assert _fault(CallFailed(code, words)) is Fault.NOT_LOADED


@pytest.mark.parametrize("code", [GrpcStatus.INVALID_ARGUMENT, GrpcStatus.INTERNAL])
def test_a_clients_own_words_quoted_in_an_error_cost_no_replica(code: GrpcStatus) -> None:
    assert _fault(CallFailed(code, f"cannot parse: {MISMATCH}")) is not Fault.NOT_LOADED


def test_something_else_not_found_is_no_lost_model() -> None:
    assert _fault(CallFailed(GrpcStatus.NOT_FOUND, "no such voice")) is not Fault.NOT_LOADED


@pytest.mark.parametrize(
    ("failed", "before", "after"),
    [
        (BackendTurnedAway("connection refused"), Fault.UNREACHABLE, Fault.BROKE),
        (BrokenOff(GrpcStatus.UNAVAILABLE, "the connection was lost"), Fault.UNREACHABLE, Fault.BROKE),
        (reset(Code.REFUSED_STREAM), Fault.UNREACHABLE, Fault.BROKE),
        (reset(Code.INTERNAL_ERROR), Fault.BROKE, Fault.BROKE),
        (reset(Code.CANCEL), Fault.BROKE, Fault.BROKE),
        (Garbled("a frame of 5521493 bytes"), Fault.BROKE, Fault.BROKE),
        (HungUp(), Fault.BROKE, Fault.BROKE),
    ],
)
def test_a_lost_connection_matters_by_what_was_heard_before(
    failed: CallFailed, before: Fault, after: Fault
) -> None:
    assert (_fault(failed), _fault(failed, heard=True)) == (before, after)


@pytest.mark.parametrize(
    ("failed", "unprocessed"),
    [
        (BackendTurnedAway("connection refused"), True),
        (reset(Code.REFUSED_STREAM), True),
        (CallFailed(GrpcStatus.FAILED_PRECONDITION, "model not loaded"), True),
        (BrokenOff(GrpcStatus.UNAVAILABLE, "the connection was lost"), False),
        (CallFailed(GrpcStatus.UNAVAILABLE, "gone"), False),
    ],
)
def test_only_a_call_that_was_never_taken_is_certainly_unprocessed(
    failed: CallFailed, unprocessed: bool
) -> None:
    failure = error_mapping.failure_of(failed, "b", RequestKind.CHAT, begun=False)

    assert failure.unprocessed is unprocessed


def test_what_was_wrong_with_the_bytes_is_not_told_to_clients() -> None:
    failure = error_mapping.failure_of(Garbled("frame for idle stream 7"), "b", RequestKind.CHAT, begun=False)

    assert failure.message == "the backend of b answered what cannot be understood"
