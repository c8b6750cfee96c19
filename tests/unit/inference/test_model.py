from remuda.inference.model import InferenceCall, RequestKind
from remuda.inference.requests import ChatRequest
from remuda.models.config import ModelConfig


def test_a_body_is_only_written_for_those_who_ask_for_it() -> None:
    written = list[str]()

    def write() -> bytes:
        written.append("once more")
        return b'{"model":"m"}'

    request = ChatRequest(model="m", messages=[])
    call = InferenceCall(RequestKind.CHAT, request, write, ModelConfig(name="m"), "r", 0)
    assert not call.stream
    assert not written
    assert call.body == b'{"model":"m"}'
    assert written


def test_a_body_that_came_as_openais_json_is_passed_on_as_it_came() -> None:
    body, request = b'{"model": "m"}', ChatRequest(model="m", messages=[])
    call = InferenceCall(RequestKind.CHAT, request, body, ModelConfig(name="m"), "r", 0)
    assert call.body is body
