import json

import pytest

from remuda.core.errors import (
    Conflict,
    Forbidden,
    HeadTooLarge,
    Internal,
    Invalid,
    NoCapacity,
    NotFound,
    RemudaError,
    TooLarge,
    WrongMethod,
)
from remuda.gateway.anthropic.errors import refusal
from remuda.gateway.inference.admission import InvalidKey
from remuda.inference.failures import ContextExceeded, Fault, UpstreamFailed
from remuda.router.loading import LoadStatus, ModelLoading, Overloaded


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (Invalid("x"), 400, "invalid_request_error"),
        (InvalidKey("x"), 401, "authentication_error"),
        (Forbidden("x"), 403, "permission_error"),
        (NotFound("x"), 404, "not_found_error"),
        (WrongMethod("x"), 405, "invalid_request_error"),
        (Conflict("x"), 409, "invalid_request_error"),
        (TooLarge("x"), 413, "request_too_large"),
        (HeadTooLarge("x"), 431, "invalid_request_error"),
        (Overloaded("x"), 429, "rate_limit_error"),
        (Internal("x"), 500, "api_error"),
        (UpstreamFailed(Fault.BROKE, "x"), 502, "api_error"),
        (NoCapacity("x"), 529, "overloaded_error"),
        (ModelLoading("x", LoadStatus("m"), 30), 529, "overloaded_error"),
        (UpstreamFailed(Fault.SILENT, "x", status=504), 504, "timeout_error"),
    ],
)
def test_each_error_has_its_type_and_status(error: RemudaError, status: int, kind: str) -> None:
    told = refusal(error)
    body = json.loads(told.body)

    assert (told.status, told.code) == (status, error.code)
    assert (body["type"], body["error"]["type"]) == ("error", kind)
    assert body["error"]["message"] == error.public_text
    assert body["error"]["details"]["error_code"] == error.code


def test_who_has_to_wait_is_told_how_long() -> None:
    assert (b"retry-after", b"30") in refusal(ModelLoading("x", LoadStatus("m"), 30)).headers
    assert (b"retry-after", b"5") in refusal(Overloaded("x")).headers
    assert (b"www-authenticate", b"Bearer") in refusal(InvalidKey("x")).headers


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("305 tokens do not fit the context of 256", "prompt is too long: 305 tokens > 256 maximum; 305"),
        ("the backend refuses this", "prompt is too long: the backend refuses this"),
    ],
)
def test_a_prompt_that_is_too_long_is_said_in_the_words_that_clients_know(message: str, words: str) -> None:
    assert json.loads(refusal(ContextExceeded(message)).body)["error"]["message"].startswith(words)


def test_fields_have_the_names_that_the_client_knows() -> None:
    place = "tools[2].function.parameters"
    error = json.loads(refusal(Invalid(f"{place}: nested too deeply", param=place)).body)["error"]

    assert error["message"] == "tools[2].input_schema: nested too deeply"
    assert error["details"] == {"error_code": "invalid", "param": "tools[2].input_schema"}


def test_every_reason_is_told() -> None:
    error = NoCapacity("no node can take m", details=["a: too small", "b: gone"])

    assert json.loads(refusal(error).body)["error"]["details"]["reasons"] == ["a: too small", "b: gone"]
