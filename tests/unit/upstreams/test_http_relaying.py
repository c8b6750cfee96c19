"""The model's name is exchanged in JSON texts on their way through."""

import json
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.core import limits
from remuda.inference.failures import Unpriceable
from remuda.inference.model import RequestKind
from remuda.upstreams.http.paid_requests import bounded, limit_name
from remuda.upstreams.http.relaying import LINE_HELD_BYTES_MAX, Events, Renamer, usage_in, with_members
from remuda.upstreams.http.upstream import rewritten

_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.sampled_from(['"model":"x"', 'model":"', "\\"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["model", "a", '"']) | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)
_cuts = st.lists(st.integers(0, 400), max_size=8)


def _passed(renamer: Renamer, text: bytes, cuts: list[int]) -> bytes:
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    return b"".join(renamer.feed(text[a:b]) for a, b in pairwise(edges)) + renamer.rest()


@given(before=st.dictionaries(st.text(max_size=5), _values, max_size=3), after=_values, cuts=_cuts)
def test_only_the_outermost_model_is_renamed_however_the_text_is_cut(
    before: dict[str, object], after: object, cuts: list[int]
) -> None:
    before.pop("model", None)
    answer = {**before, "model": 'their\\ "name"', "z": after}

    passed = _passed(Renamer(b'"ours"'), json.dumps(answer).encode(), cuts)

    assert json.loads(passed) == {**answer, "model": "ours"}


@given(cuts=_cuts)
def test_answer_that_has_the_name_passes_as_it_is(cuts: list[int]) -> None:
    stream = b'data: {"id": 1, "model": "ours", "a": [{"model": "x"}]}\n\ndata: {"model": "ours"}\n\n'
    assert _passed(Renamer(b'"ours"', by_line=True), stream, cuts) == stream


@pytest.mark.parametrize(
    "before",
    [
        b'"a":{"model":"ours"},',
        b'"a":[{"model":"ours"}],',
        b'"a":"{\\"model\\":\\"ours\\"",',
        b'"model ":"ours",',
    ],
)
def test_right_name_elsewhere_is_not_the_right_name(before: bytes) -> None:
    answer = b'{%s"model":"theirs"}' % before
    assert _passed(Renamer(b'"ours"'), answer, []) == b'{%s"model":"ours"}' % before


@given(chunks=st.lists(st.dictionaries(st.text(max_size=5), _values, max_size=3), max_size=4), cuts=_cuts)
def test_in_a_stream_every_event_is_renamed(chunks: list[dict[str, object]], cuts: list[int]) -> None:
    given_chunks = [{**chunk, "model": "theirs"} for chunk in chunks]
    stream = b": it's \"odd\n\n" + b"".join(
        b"data: %s\n\n" % json.dumps(each).encode() for each in given_chunks
    )

    passed = _passed(Renamer(b'"ours"', by_line=True), stream + b"data: [DONE]\n\n", cuts)

    lines = passed.decode().split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    assert [json.loads(line[6:]) for line in lines[1:-2]] == [{**each, "model": "ours"} for each in chunks]


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":{"model":"x"}}',
        b'[{"model":"x"}]',
        b'{"model":null}',
        b'{"models":"x"}',
        b'{"text":"\\"model\\":\\"x\\""}',
        b"",
        b"}}}]",
        b'"model":"x"',
        b'{"model":"x',
    ],
)
@pytest.mark.parametrize("cut", range(8))
def test_what_has_no_name_at_the_top_stays_as_it_is(text: bytes, cut: int) -> None:
    assert _passed(Renamer(b'"ours"'), text, [cut]) == text


def test_a_complete_event_is_not_held_back() -> None:
    renamer = Renamer(b'"ours"', by_line=True)

    assert renamer.feed(b'data: {"model":null}\n\n') == b'data: {"model":null}\n\n'


def test_of_a_long_text_little_is_held() -> None:
    renamer = Renamer(b'"ours"')
    piece = b"x" * 65536

    passed = len(renamer.feed(b'{"text":"')) + sum(len(renamer.feed(piece)) for _ in range(160))

    assert passed > 160 * 65536 - 4096


@pytest.mark.anyio
async def test_a_large_request_is_renamed_without_a_look_at_its_media() -> None:
    picture = "QUJD" * (limits.PARSED_AT_ONCE_BYTES_MAX // 4)
    body = b'{"model": "old", "n": 1.50, "x": {"model": "old"}, "picture": "%s"}' % picture.encode()
    passed = await rewritten(body, partial(with_members, changed={"model": "new"}))
    assert json.loads(passed) == json.loads(body) | {"model": "new"}
    assert b"1.50" in passed


def test_a_request_that_names_its_model_twice_names_the_other_once() -> None:
    assert with_members(b'{"model":"a","mod\\u0065l":"b"}', {"model": "new"}) == b'{"model":"new"}'


_CHUNK = b'data: {"choices":[]}\n\n'
_DONE = b"data: [DONE]\n\n"


@given(st.lists(st.integers(0, 90), max_size=5).map(sorted))
def test_a_stream_passes_unchanged_however_it_is_cut(cuts: list[int]) -> None:
    stream = _CHUNK * 3 + _DONE
    events, edges = Events(Renamer(b'"m"', by_line=True)), [0, *cuts, len(stream)]

    passed = b"".join(events.feed(stream[a:b]) for a, b in pairwise(edges))

    assert passed + events.rest() == stream
    assert (events.chunks, events.ended) == (3, True)


@pytest.mark.parametrize(
    ("last", "ended"),
    [
        (_DONE, True),
        (b"data: [DONE]", True),
        (b"data:[DONE]\r\n\r\n", True),
        (_CHUNK, False),
        (b'data: {"a":"data: [DONE]', False),
        (b"", False),
    ],
)
def test_only_its_own_last_word_ends_a_stream(last: bytes, ended: bool) -> None:
    events = Events(Renamer(b'"m"', by_line=True))
    events.feed(_CHUNK)
    events.feed(last)

    assert events.ended is ended


def test_a_line_that_is_broken_off_is_not_passed_on() -> None:
    events = Events(Renamer(b'"m"', by_line=True))

    assert events.feed(_CHUNK + b'data: {"cho') == _CHUNK
    assert events.breaking_off() == b""


def test_an_event_without_its_empty_line_is_completed_before_anything_follows() -> None:
    events = Events(Renamer(b'"m"', by_line=True))

    assert events.feed(b'data: {"a":1}\ndata: {"b') == b'data: {"a":1}\n'
    assert events.breaking_off() == b"\n"


def test_a_line_that_does_not_end_passes_in_parts() -> None:
    events = Events(Renamer(b'"m"', by_line=True))
    piece = b"x" * LINE_HELD_BYTES_MAX

    passed = sum(len(events.feed(piece)) for _ in range(160))

    assert passed >= 159 * LINE_HELD_BYTES_MAX
    assert events.breaking_off() == b"\n\n"


def test_usage_is_the_last_one_told() -> None:
    text = b'"usage":{"prompt_tokens": 1} "usage":{"prompt_tokens":7,"completion_tokens" : 9,"x":{"y":1}}'

    assert usage_in(text) == (7, 9)
    assert usage_in(b'{"usage":{"prompt_tokens":7}}') == (7, 0)
    assert usage_in(b'{"usage":null,"text":"\\"prompt_tokens\\":7"}') is None


def test_a_paid_server_is_sent_the_limit_that_was_reserved_and_no_field_that_is_not_known() -> None:
    asked = {"model": "m", "max_tokens": 3, "max_completion_tokens": 9, "seed": 1, "plugins": None}
    sent = json.loads(bounded("cloud", {"max_tokens": 9}, json.dumps(asked).encode()))
    assert sent == {"model": "m", "max_tokens": 9, "seed": 1}
    for name in ("models", "route", "provider", "plugins", "service_tier", "modalities", "audio", "x_new"):
        with pytest.raises(Unpriceable, match=f"the field '{name}'") as refused:
            bounded("cloud", {}, json.dumps({"model": "m", name: ["x"]}).encode())
        assert (refused.value.param, refused.value.status, refused.value.unprocessed) == (name, 400, True)


def test_a_limit_has_the_name_that_its_server_keeps_to() -> None:
    assert limit_name(RequestKind.CHAT, "openrouter.example:443") == "max_tokens"
    assert limit_name(RequestKind.CHAT, "api.openai.com:443") == "max_completion_tokens"
    assert limit_name(RequestKind.COMPLETION, "api.openai.com:443") == "max_tokens"
