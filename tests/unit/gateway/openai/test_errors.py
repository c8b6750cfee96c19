"""What clients are told of errors: OpenAI's object, the right status, and when to come back."""

import json

import pytest

from remuda.core.errors import Forbidden, Invalid, NoCapacity, NotFound, RemudaError, TooLarge, Unavailable
from remuda.gateway.inference.admission import InvalidKey
from remuda.gateway.inference.body_errors import InvalidField
from remuda.gateway.openai.errors import refusal
from remuda.inference.failures import ContextExceeded, Fault, UpstreamFailed
from remuda.router.loading import LoadStatus, ModelLoadFailed, ModelLoading, ModelUnknown, Overloaded


def test_reasons_are_told_one_by_one_as_well() -> None:
    said = json.loads(refusal(NoCapacity("no node: a: b; c: d", details=["a: b", "c: d"])).body)["error"]
    assert said["details"] == ["a: b", "c: d"]


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (InvalidField("no", "n"), 400, "invalid_request_error", "invalid"),
        (Invalid("a reference cycle"), 400, "invalid_request_error", "invalid"),
        (InvalidKey("no"), 401, "invalid_request_error", "invalid_api_key"),
        (Forbidden("no"), 403, "invalid_request_error", "forbidden"),
        (NotFound("no"), 404, "invalid_request_error", "not_found"),
        (ModelUnknown("no"), 404, "invalid_request_error", "model_not_found"),
        (TooLarge("no"), 413, "invalid_request_error", "too_large"),
        (Overloaded("no"), 429, "rate_limit_error", "overloaded"),
        (NoCapacity("no"), 503, "server_error", "no_capacity"),
        (ModelLoadFailed("no"), 503, "server_error", "model_load_failed"),
        (Unavailable("no"), 503, "server_error", "unavailable"),
        (UpstreamFailed(Fault.BROKE, "no"), 502, "server_error", "backend_failed"),
        (UpstreamFailed(Fault.REFUSED, "no", status=422), 422, "invalid_request_error", "backend_failed"),
        (UpstreamFailed(Fault.SILENT, "no", status=504), 504, "server_error", "backend_failed"),
    ],
)
def test_every_error_has_its_status_type_and_code(
    error: RemudaError, status: int, kind: str, code: str
) -> None:
    told = refusal(error)
    said = json.loads(told.body)["error"]
    assert (told.status, told.code) == (status, code)
    assert said.keys() == {"message", "type", "param", "code"}
    assert (said["type"], said["code"]) == (kind, code)


def test_the_field_is_named_and_the_hint_is_in_the_message() -> None:
    said = json.loads(refusal(InvalidField("must be positive", "n", hint="send 1")).body)["error"]
    assert (said["param"], said["message"]) == ("n", "must be positive (send 1)")


def test_without_a_field_there_is_no_param() -> None:
    assert json.loads(refusal(InvalidField("not JSON")).body)["error"]["param"] is None


@pytest.mark.parametrize(("wanted_s", "told_s"), [(0, b"5"), (42, b"42"), (9000, b"300")])
def test_who_waits_for_a_load_is_told_when_to_come_back(wanted_s: int, told_s: bytes) -> None:
    told = refusal(ModelLoading("m is loading", LoadStatus("m"), wanted_s))
    assert dict(told.headers)[b"retry-after"] == told_s


@pytest.mark.parametrize("error", [Overloaded("no"), NoCapacity("no"), ModelLoadFailed("no")])
def test_what_may_work_later_says_when(error: RemudaError) -> None:
    assert b"retry-after" in dict(refusal(error).headers)


def test_what_does_not_work_later_says_no_time() -> None:
    assert b"retry-after" not in dict(refusal(UpstreamFailed(Fault.FAILED, "no")).headers)


def test_a_load_under_way_is_told_in_the_contracts_words() -> None:
    status = LoadStatus("qwen", "staging", "gpu-1", 41.5, 10, 20, 1, 2, 30)
    said = json.loads(refusal(ModelLoading("qwen is being loaded", status, 30)).body)
    assert said == {
        "error": {
            "message": "qwen is being loaded",
            "type": "model_loading",
            "param": None,
            "code": "model_loading",
        },
        "loading": {
            "model": "qwen",
            "state": "staging",
            "node": "gpu-1",
            "progress": 41.5,
            "bytes_sent": 10,
            "total_bytes": 20,
            "file_index": 1,
            "total_files": 2,
            "eta_seconds": 30,
        },
    }


def test_of_a_load_without_a_node_or_an_end_these_are_left_out() -> None:
    said = json.loads(refusal(ModelLoading("no", LoadStatus("qwen"), 5)).body)["loading"]
    assert said.keys() == {
        "model",
        "state",
        "progress",
        "bytes_sent",
        "total_bytes",
        "file_index",
        "total_files",
    }


def test_in_a_stream_an_error_is_one_event() -> None:
    told = refusal(UpstreamFailed(Fault.BROKE, "two\nlines"))
    assert b"\n" not in told.body


def test_a_prompt_that_is_too_long_has_openais_words_too() -> None:
    """By which LiteLLM and others know it."""
    answer = refusal(ContextExceeded("9 tokens do not fit the context of 8"))
    error = json.loads(answer.body)["error"]
    assert error["code"] == "context_length_exceeded"
    words = (
        "This model's maximum context length is 8 tokens. However, you requested 9 tokens: 9 tokens do not"
    )
    assert error["message"].startswith(words)
    assert "of 8" in json.loads(refusal(ContextExceeded("too many of 8")).body)["error"]["message"]
