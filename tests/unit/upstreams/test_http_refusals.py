"""What an HTTP server's refusals mean."""

import pytest

from remuda.inference.failures import Fault, RateLimited
from remuda.upstreams.http.refusals import failure, in_words, is_openai_error, server_failure

_NO_MODEL = b'{"object":"error","message":"The model `x` does not exist.","code":404}'


@pytest.mark.parametrize(
    ("status", "refusal", "body", "fault", "client_gets"),
    [
        (503, b"not_ready", b"the process m#0 is not ready", Fault.NOT_LOADED, 503),
        (503, b"", b'{"error":{"message":"the queue is full"}}', Fault.BROKE, 503),
        (404, b"", _NO_MODEL, Fault.NOT_LOADED, 503),
        (404, b"", b'{"detail":"Not Found"}', Fault.REFUSED, 400),
        (501, b"", b'{"error":{"message":"no embeddings here"}}', Fault.REFUSED, 400),
        (502, b"backend_failed", b"the process m#0 did not answer", Fault.BROKE, 502),
        (500, b"", b'{"error":{"message":"out of memory"}}', Fault.FAILED, 502),
        (500, b"", b"<html>", Fault.FAILED, 502),
        (401, b"", b"unauthorized", Fault.UNREACHABLE, 502),
        (302, b"", b"", Fault.BROKE, 502),
    ],
)
def test_each_refusal_has_its_meaning(
    status: int, refusal: bytes, body: bytes, fault: Fault, client_gets: int
) -> None:
    failed = failure(status, refusal, body)

    assert failed is not None
    assert (failed.fault, failed.status) == (fault, client_gets)


@pytest.mark.parametrize("unread", [True, False])
def test_only_a_request_that_was_read_may_have_ended_the_backend(unread: bool) -> None:
    failed = failure(502, b"backend_failed", b"it hung up", unread=unread)

    assert failed is not None
    assert (failed.elsewhere, failed.unprocessed) == (True, unread)


@pytest.mark.parametrize(
    ("body", "lost"),
    [
        (b'{"error":{"message":"The model `x` does not exist.","param":"model","code":404}}', True),
        (b'{"error":{"message":"No such thing","code":"model_not_found"}}', True),
        (b'{"error":"model \'x\' not found"}', True),
        (b'{"message":"Model x is not loaded"}', True),
        (b'{"error":{"message":"This model has no such voice"}}', False),
        (b'{"error":{"message":"Cannot find \\"the model is not loaded\\""}}', False),
        (b'{"error":{"message":"Not Found"},"input":"the model does not exist"}', False),
        (b'{"detail":"Not Found","body":{"model":"x"}}', False),
        (b"<p>POST /v1/model not found</p>", False),
    ],
)
def test_a_model_is_lost_when_the_server_itself_says_so(body: bytes, lost: bool) -> None:
    failed = failure(404, b"", body)

    assert failed is not None
    assert (failed.fault is Fault.NOT_LOADED) is lost


@pytest.mark.parametrize("status", [400, 413, 422, 429])
def test_what_the_client_did_wrong_is_the_clients_to_know(status: int) -> None:
    assert failure(status, b"", b"{}") is None


@pytest.mark.parametrize(
    ("body", "relayed"),
    [
        (b'{"error":{"message":"too long","type":"invalid_request_error","code":"x"}}', True),
        (b'{"error":"bad prompt"}', False),
        (b'{"detail":"bad prompt"}', False),
        (b"bad prompt", False),
        (b"", False),
    ],
)
def test_only_openais_errors_are_relayed(body: bytes, relayed: bool) -> None:
    assert is_openai_error(body) is relayed


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error":"plain"}', "plain"),
        (b'{"message":"at the top"}', "at the top"),
        (b'{"error":{"message":"odd","code":{"deep":true}}}', "odd"),
        (b'{"detail":[{"msg":"wrong"}]}', '[{"msg":"wrong"}]'),
        (b"\xff\n<b>", "\ufffd <b>"),
        (b"[" * 100_000, "[" * 500 + "..."),
        (b"", ""),
    ],
)
def test_the_words_are_found_wherever_a_server_puts_them(body: bytes, words: str) -> None:
    assert in_words(body) == words


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        (b"3", 3.0),
        (b"7.5", 7.5),
        (b"0", 0.1),
        (b"-4", 0.1),
        (b"1e9", 86_400.0),
        (b"inf", 5.0),
        (b"nan", 5.0),
        (b"", 5.0),
        (b"soon", 5.0),
        (b"Thu, 19 Nov 2026 20:00:40 GMT", 40.0),
        (b"Thu, 19 Nov 2026 19:00:00 GMT", 0.1),
    ],
)
def test_when_a_server_wants_to_be_asked_again(said: bytes, seconds: float) -> None:
    headers = {b"retry-after": said, b"date": b"Thu, 19 Nov 2026 20:00:00 GMT"}
    failed = server_failure("nas", 429, headers, b"")

    assert isinstance(failed, RateLimited)
    assert failed.retry_after_s == seconds


def test_a_date_says_nothing_without_the_date_of_the_answer() -> None:
    failed = server_failure("nas", 429, {b"retry-after": b"Thu, 19 Nov 2026 20:00:40 GMT"}, b"")

    assert isinstance(failed, RateLimited)
    assert failed.retry_after_s == 5.0
