"""The model's name is exchanged in JSON texts on their way through."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.core import limits
from remuda.upstreams.http.model_renaming import Renamer, with_members
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
    passed = await rewritten(body, {"model": "new"})
    assert json.loads(passed) == json.loads(body) | {"model": "new"}
    assert b"1.50" in passed


def test_a_request_that_names_its_model_twice_names_the_other_once() -> None:
    assert with_members(b'{"model":"a","mod\\u0065l":"b"}', {"model": "new"}) == b'{"model":"new"}'
