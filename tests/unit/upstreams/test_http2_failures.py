"""How answers say that a call failed."""

import pytest

from remuda.upstreams.http2 import failures, limits
from remuda.upstreams.http2.failures import BrokenOff, CallFailed, Garbled, GrpcStatus, Unprocessed
from remuda.upstreams.http2.frames import Code

OK = {b":status": b"200", b"content-type": b"application/grpc+proto"}


@pytest.mark.parametrize(
    ("number", "message", "code", "words"),
    [
        (b"5", b"no such voice", GrpcStatus.NOT_FOUND, "no such voice"),
        (b"13", b"gr%C3%BC%C3%9Fe 100%25", GrpcStatus.INTERNAL, "grüße 100%"),
        (b"2", b"half %C3", GrpcStatus.UNKNOWN, "half \N{REPLACEMENT CHARACTER}"),
        (b"2", b"not %zz coded %", GrpcStatus.UNKNOWN, "not %zz coded %"),
        (b"99", b"what", GrpcStatus.UNKNOWN, "what"),
        (b"zero", b"", GrpcStatus.UNKNOWN, ""),
    ],
)
def test_status_and_words_are_the_backends(
    number: bytes, message: bytes, code: GrpcStatus, words: str
) -> None:
    failed = failures.verdict({b"grpc-status": number, b"grpc-message": message}, alone=False)

    assert failed is not None
    assert (type(failed), failed.code, failed.details) == (CallFailed, code, words)


def test_a_good_end_is_no_failure() -> None:
    assert failures.verdict({b"grpc-status": b"0"}, alone=False) is None


def test_words_are_bounded() -> None:
    failed = failures.verdict({b"grpc-status": b"2", b"grpc-message": b"%20" * 60_000}, alone=False)

    assert failed is not None
    assert len(failed.details) == limits.WORDS_CHARS_MAX


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (b"400", GrpcStatus.INTERNAL),
        (b"401", GrpcStatus.UNAUTHENTICATED),
        (b"403", GrpcStatus.PERMISSION_DENIED),
        (b"404", GrpcStatus.UNIMPLEMENTED),
        (b"429", GrpcStatus.UNAVAILABLE),
        (b"502", GrpcStatus.UNAVAILABLE),
        (b"503", GrpcStatus.UNAVAILABLE),
        (b"504", GrpcStatus.UNAVAILABLE),
        (b"500", GrpcStatus.UNKNOWN),
        (b"302", GrpcStatus.UNKNOWN),
        (b"", GrpcStatus.UNKNOWN),
    ],
)
def test_http_status_stands_for_one_of_grpc(status: bytes, code: GrpcStatus) -> None:
    failed = failures.refusal({b":status": status})

    assert failed is not None
    assert failed.code is code
    assert failures.verdict({b":status": status}, alone=True).code is code  # type: ignore[union-attr]


def test_own_status_of_grpc_counts_more_than_that_of_http() -> None:
    failed = failures.verdict({b":status": b"503", b"grpc-status": b"16"}, alone=True)

    assert failed is not None
    assert failed.code is GrpcStatus.UNAUTHENTICATED


@pytest.mark.parametrize("content_type", [b"text/html", b"application/json", b""])
def test_answer_of_another_kind_cannot_be_understood(content_type: bytes) -> None:
    assert isinstance(failures.refusal(OK | {b"content-type": content_type}), Garbled)


def test_end_without_a_status_is_a_break() -> None:
    assert isinstance(failures.verdict({}, alone=False), BrokenOff)
    assert isinstance(failures.verdict(OK, alone=True), BrokenOff)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (Code.CANCEL, GrpcStatus.CANCELLED),
        (Code.ENHANCE_YOUR_CALM, GrpcStatus.RESOURCE_EXHAUSTED),
        (Code.INADEQUATE_SECURITY, GrpcStatus.PERMISSION_DENIED),
        (Code.NO_ERROR, GrpcStatus.INTERNAL),
        (4711, GrpcStatus.INTERNAL),
    ],
)
def test_reset_tells_why(code: int, status: GrpcStatus) -> None:
    failed = failures.reset(code)

    assert (type(failed), failed.code) == (BrokenOff, status)


def test_refused_call_has_not_begun() -> None:
    assert isinstance(failures.reset(Code.REFUSED_STREAM), Unprocessed)
