"""What a failed call means for the client, and for the replica."""

import pytest

from remuda.inference.failures import Fault
from remuda.upstreams.grpc import troubles
from remuda.upstreams.http2.failures import BrokenOff, CallFailed, Garbled, HungUp, Status, TurnedAway, reset
from remuda.upstreams.http2.frames import Code

MISMATCH = 'model identity mismatch: loaded "a", asked for "b"'


def _fault(failed: CallFailed, *, heard: bool = False) -> Fault:
    return troubles.failure_of(failed, "b", heard=heard).fault


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (Status.NOT_FOUND, MISMATCH),
        (Status.FAILED_PRECONDITION, "load a model first"),
        (Status.UNKNOWN, "Model not loaded"),
    ],
)
def test_replica_that_has_lost_its_model_is_known_by_status_and_words(code: Status, words: str) -> None:
    assert _fault(CallFailed(code, words)) is Fault.NOT_LOADED


@pytest.mark.parametrize("code", [Status.INVALID_ARGUMENT, Status.INTERNAL])
def test_a_clients_own_words_quoted_in_an_error_cost_no_replica(code: Status) -> None:
    assert _fault(CallFailed(code, f"cannot parse: {MISMATCH}")) is not Fault.NOT_LOADED


def test_something_else_not_found_is_no_lost_model() -> None:
    assert _fault(CallFailed(Status.NOT_FOUND, "no such voice")) is not Fault.NOT_LOADED


@pytest.mark.parametrize(
    ("failed", "before", "after"),
    [
        (TurnedAway("connection refused"), Fault.UNREACHABLE, Fault.BROKE),
        (BrokenOff(Status.UNAVAILABLE, "the connection was lost"), Fault.UNREACHABLE, Fault.BROKE),
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


def test_what_was_wrong_with_the_bytes_is_not_told_to_clients() -> None:
    failure = troubles.failure_of(Garbled("stream 7 was never begun"), "b", heard=False)

    assert failure.message == "the backend of b answered what cannot be understood"
