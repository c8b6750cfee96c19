"""How long one request can hold up the event loop, at each place where a client's bytes decide that.

    python -m bench.loop_holds

Every place is given the largest input that it takes. What is printed is the longest slice, for which nobody
else gets a turn, in CPU time. `tests/unit/inference/test_loop_holds.py` counts slices and refusals.
"""

import base64
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
from pydantic import JsonValue
from starlette.datastructures import QueryParams

from remuda.core import gbnf, limits
from remuda.core.errors import RemudaError
from remuda.core.gbnf import check_grammar
from remuda.core.hints import near_names
from remuda.core.schema_shape import SchemaShape
from remuda.core.slices import Sliced
from remuda.fleet.model import Label, LabelSource, labels_match
from remuda.gateway.openai.endpoints import ENDPOINTS
from remuda.gateway.openai.rendering import embedding_list
from remuda.inference import requests
from remuda.inference.answers import Usage
from remuda.inference.large_bodies import CHEAP_BYTES_MAX, STEPS_MAX, check_json_cost
from remuda.inference.model import InferenceCall, RequestKind
from remuda.models.config import ModelConfig
from remuda.models.grammar import ToolSpec, grammar_of_schema, grammar_of_tools
from remuda.models.reading import read_model
from remuda.models.tool_text import tool_calls_in
from remuda.rpc import backend_pb2 as pb
from remuda.upstreams.grpc import limits as grpc_limits
from remuda.upstreams.grpc.grammars import Grammars
from remuda.upstreams.grpc.media import media_in
from remuda.upstreams.grpc.predict_request import Preset, chat_generations
from remuda.upstreams.http.relaying import Renamer
from remuda.upstreams.http.upstream import RENAMED_AT_ONCE_BYTES
from remuda.wire.codec import decode
from remuda.wire.nodes import Heartbeat, Labels

CHAT: Final = ENDPOINTS["/v1/chat/completions"]
COMPLETION: Final = ENDPOINTS["/v1/completions"]
MEDIA_BYTES: Final = 16 << 20
_CHATML: Final = {
    "chat_message": "<{{.RoleName}}>{{if .Content}}{{.Content}}{{end}}{{if .FunctionCall}}!{{end}}",
    "chat": "{{.Input}}",
}


@dataclass(frozen=True, slots=True)
class Place:
    """`largest` works on the most that is allowed, in at least `slices_min` slices. `beyond` is more than
    that, and refused: at once, or where only working on it shows that it is too much, some slices later."""

    name: str
    largest: Callable[[], Sliced[object]]
    slices_min: int = 1
    beyond: Callable[[], Sliced[object]] | None = None
    refused_within_slices: int = 1


def done(work: Callable[[], object]) -> Sliced[object]:
    """What is done at once, as sliced work of one slice."""
    return work()
    yield


def _values(count: int) -> list[JsonValue]:
    return [f"value{number}" for number in range(count)]


def _referring(values: int, references: int) -> JsonValue:
    """One list of values, referred to from many properties with another word beside each."""
    properties: dict[str, JsonValue] = {
        f"p{number}": {"$ref": "#/$defs/e", "x-number": number} for number in range(references)
    }
    return {"$defs": {"e": {"enum": _values(values)}}, "properties": properties}


def _doubling(depth: int) -> JsonValue:
    """Each definition refers to the next one twice."""
    definitions: dict[str, JsonValue] = {
        f"d{number}": {"allOf": [{"$ref": f"#/$defs/d{number + 1}"}] * 2} for number in range(depth)
    }
    return {"$defs": {**definitions, f"d{depth}": {"type": "object"}}, "$ref": "#/$defs/d0"}


def _properties(count: int) -> JsonValue:
    return {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(count)}}


def _messages(count: int) -> bytes:
    return b'{"model":"m","messages":[%s]}' % b",".join([b'{"role":"user","content":"hello"}'] * count)


def _filled(start: bytes, part: bytes, end: bytes, size: int) -> bytes:
    return start + b",".join([part] * ((size - len(start) - len(end)) // (len(part) + 1))) + end


def _parsed(path: str, body: bytes) -> Sliced[object]:
    """As the gateway does it."""
    if len(body) > CHEAP_BYTES_MAX:
        yield from check_json_cost(body)
    return ENDPOINTS[path].parse(body)


def _chat(body: bytes, config: Mapping[str, object]) -> Sliced[object]:
    request = CHAT.parse(body).request
    assert isinstance(request, requests.ChatRequest)
    model = ModelConfig.model_validate({"name": "m", "parameters": {"model": "m.bin"}, **config})
    call = InferenceCall(RequestKind.CHAT, request, body, model, "r1", 0)
    return chat_generations(Preset(model, Grammars()), call, request, itertools.count().__next__)


def _picture(size: int) -> Sliced[object]:
    text = base64.b64encode(bytes(size * 3 // 4))
    raw = msgspec.Raw(b'{"url":"data:image/png;base64,%s"}' % text)
    return media_in([requests.RequestMessage("user", [requests.Part("image_url", image_url=raw)])])


def _embeddings(count: int, width: int) -> Sliced[object]:
    request = requests.EmbeddingRequest(model="m", input="x")
    vector = [number / 7 for number in range(width)]
    results = [pb.EmbeddingResult(embeddings=vector) for _ in range(count)]
    return embedding_list(request, [result.embeddings for result in results], Usage(1))


def _labels() -> Sliced[object]:
    """A selector as large as a body may be, and a thousand nodes that fit it as long as they can."""
    labels = {f"key{number}": Label("x", LabelSource.WORKER) for number in range(limits.NODE_LABELS_MAX)}
    selector = {f"key{number}": "x" for number in range(50_000)}
    return done(lambda: any(labels_match(labels, selector) for _ in range(1000)))


def _heartbeat(files: int) -> Sliced[object]:
    """The smallest objects there are, which cost most for their length."""
    sent = b'{"report":{"model_files":[%s]}}' % b",".join([b"{}"] * files)
    return done(lambda: decode(Heartbeat, sent, containers_max=limits.BODY_CONTAINERS_MAX))


def _label_body(count: int) -> Sliced[object]:
    sent = b"{%s}" % b",".join(b'"k%d":"v"' % number for number in range(count))
    return done(lambda: decode(Labels, sent, containers_max=limits.BODY_CONTAINERS_MAX))


def _model_file(words: int) -> Sliced[object]:
    return done(lambda: read_model(f"name: a\nstopwords: [{'a,' * words}]"))


TYPES: Final[JsonValue] = {"type": ["object"] * 60_000}
CHAT_PATH, COMPLETION_PATH = "/v1/chat/completions", "/v1/completions"
_MARKS: Final = b'{"choices":[' + b"[]," * (RENAMED_AT_ONCE_BYTES // 3)
PLACES: Final = (
    Place(
        "JSON schema: values behind references",
        lambda: grammar_of_schema(_referring(3800, 100)),
        4,
        lambda: grammar_of_schema(_referring(60_000, 200)),
    ),
    Place(
        "JSON schema: properties",
        lambda: grammar_of_schema(_properties(3500)),
        10,
        lambda: grammar_of_schema(_properties(60_000)),
    ),
    Place(
        "JSON schema: references that double",
        lambda: grammar_of_schema(_doubling(10)),
        2,
        lambda: grammar_of_schema(_doubling(40)),
        refused_within_slices=201,
    ),
    Place(
        "JSON schema: types",
        lambda: grammar_of_schema({"type": ["object", "string"]}),
        1,
        lambda: grammar_of_schema(TYPES),
    ),
    Place(
        "tools with parameters",
        lambda: grammar_of_tools(
            [ToolSpec(f"t{number}", parameters=_properties(3)) for number in range(requests.TOOLS_MAX)],
            parallel=True,
            no_action="answer",
        ),
        10,
    ),
    Place(
        "JSON schema for an engine",
        lambda: SchemaShape().check(_properties(12_000)),
        10,
        lambda: SchemaShape().check(_referring(60_000, 1)),
    ),
    Place(
        "grammar: length",
        lambda: check_grammar("root ::= " + "[a]" * (gbnf.CHARS_MAX // 3 - 4)),
        100,
        lambda: check_grammar("a" * (gbnf.CHARS_MAX + 1)),
    ),
    Place(
        "grammar: alternatives",
        lambda: check_grammar("root ::= " + '"a" | ' * gbnf.ALTERNATIVES_MAX + '"a"'),
        2,
        lambda: check_grammar("root ::= " + '"a" | ' * 60_000 + '"a"'),
        refused_within_slices=20,
    ),
    Place(
        "grammar: groups",
        lambda: check_grammar("root ::= " + "(" * gbnf.NESTING_MAX + '"a"' + ")" * gbnf.NESTING_MAX),
        1,
        lambda: check_grammar("root ::= " + "(" * 100_000),
    ),
    Place(
        "body: many small values",
        lambda: _parsed(COMPLETION_PATH, b'{"model":"m","prompt":[%s0]}' % (b"1," * (STEPS_MAX - 100))),
        15,
        lambda: _parsed(COMPLETION_PATH, _filled(b'{"model":"m","prompt":[', b"[]", b"]}", 4 << 20)),
        refused_within_slices=4,
    ),
    Place(
        "body: any, just below what is counted",
        lambda: _parsed(
            CHAT_PATH,
            _filled(
                b'{"model":"m","messages":[{"role":"user","content":[',
                b'{"type":""}',
                b"]}]}",
                CHEAP_BYTES_MAX,
            ),
        ),
        1,
        lambda: _parsed(
            CHAT_PATH,
            _filled(b'{"model":"m","messages":[{"role":"assistant","tool_calls":[', b"{}", b"]}]}", 1 << 20),
        ),
        refused_within_slices=2,
    ),
    Place(
        "body: long text",
        lambda: _parsed(
            CHAT_PATH, b'{"model":"m","messages":[{"role":"user","content":"%s"}]}' % (b"\\n" * (2 << 20))
        ),
        64,
    ),
    Place(
        "messages for the model's own template",
        lambda: _chat(_messages(requests.MESSAGES_MAX), {}),
        40,
        lambda: _parsed(CHAT_PATH, _messages(requests.MESSAGES_MAX + 1)),
        refused_within_slices=10,
    ),
    Place(
        "messages for a written template",
        lambda: _chat(_messages(requests.MESSAGES_MAX), {"template": _CHATML}),
        40,
    ),
    Place("base64", lambda: _picture(MEDIA_BYTES), 60),
    Place("embeddings", lambda: _embeddings(grpc_limits.INPUTS_MAX, 384), 30),
    Place(
        "names that are nearly right",
        lambda: done(lambda: near_names("ab" * 50, [f"{number:04}" + "ab" * 48 for number in range(5000)])),
    ),
    Place("label selectors", _labels),
    Place("admin body: objects", lambda: _heartbeat(4900), 1, lambda: _heartbeat(300_000)),
    Place("admin body: values", lambda: _label_body(19_000), 1, lambda: _label_body(70_000)),
    Place("a model's YAML", lambda: _model_file(4900), 1, lambda: _model_file(500_000)),
    Place("query", lambda: done(lambda: QueryParams("a=b&" * (limits.QUERY_BYTES_MAX // 4)))),
    Place("an answer's marks", lambda: done(lambda: Renamer(b'"m"').feed(_MARKS))),
    Place("tool calls in a text", lambda: done(lambda: tool_calls_in("<tool_call>" * 20_000, ["a"]))),
)


def slices(work: Sliced[object]) -> Iterator[float]:
    """How long each slice took, in seconds. An error ends the last one."""
    while True:
        began_s = time.thread_time()
        try:
            next(work)
        except (StopIteration, RemudaError):
            yield time.thread_time() - began_s
            return
        yield time.thread_time() - began_s


def main() -> None:
    print(f"{'place':46} {'longest hold':>12} {'slices':>7} {'in all':>10}")
    for place in PLACES:
        for what, make in ((place.name, place.largest), (f"{place.name}, beyond", place.beyond)):
            if make is None:
                continue
            taken = list(slices(make()))
            longest_ms, all_ms = max(taken) * 1000, sum(taken) * 1000
            print(f"{what:46} {longest_ms:9.1f} ms {len(taken):7} {all_ms:7.0f} ms", flush=True)


if __name__ == "__main__":
    main()
