import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.inference.answers import Delta, Usage
from remuda.rpc import backend_pb2 as pb
from remuda.upstreams.grpc.predict_request import ToolCallSearch
from remuda.upstreams.grpc.reply_decoder import ReplyDecoder, Runes

WEATHER = ToolCallSearch(frozenset({"weather"}))
CALL = json.dumps({"name": "weather", "arguments": {"city": "Ulm"}})


def _content(decoder: ReplyDecoder, *replies: pb.Reply) -> str:
    said = [decoder.decode(reply) or Delta() for reply in replies]
    return "".join(part.text for part in [*said, decoder.end()])


@given(st.text(), st.lists(st.integers(0, 400)))
def test_text_cut_anywhere_comes_out_whole(text: str, cuts: list[int]) -> None:
    data, runes = text.encode(), Runes()
    places = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    pieces = [data[start:end] for start, end in itertools.pairwise(places)]

    told = [runes.feed(piece) for piece in pieces]

    assert "".join(told) + runes.feed(b"", last=True) == text


@given(st.lists(st.binary()))
def test_whatever_bytes_come_are_told_as_one_decoding_would(pieces: list[bytes]) -> None:
    runes = Runes()

    told = "".join(runes.feed(piece) for piece in pieces) + runes.feed(b"", last=True)

    assert told == b"".join(pieces).decode(errors="replace")


def test_deltas_that_come_together_are_joined() -> None:
    reply = pb.Reply(
        chat_deltas=[
            pb.ChatDelta(content="a", reasoning_content="x"),
            pb.ChatDelta(content="b", tool_calls=[pb.ToolCallDelta(name="f")]),
        ]
    )

    said = ReplyDecoder().decode(reply)

    assert said is not None
    assert (said.text, said.reasoning, [call.name for call in said.tool_calls]) == ("ab", "x", ["f"])


def test_a_delta_without_words_leaves_the_text_in_force() -> None:
    assert _content(ReplyDecoder(), pb.Reply(message=b"hi", chat_deltas=[pb.ChatDelta()])) == "hi"


def test_how_long_it_took_is_known_from_the_reply_that_counts() -> None:
    decoder = ReplyDecoder()

    decoder.decode(pb.Reply(message=b"hi"))
    assert decoder.usage == Usage()
    decoder.decode(
        pb.Reply(tokens=2, prompt_tokens=3, timing_prompt_processing=1.5, timing_token_generation=20)
    )
    decoder.decode(pb.Reply(message=b"."))

    assert decoder.usage == Usage(3, 2, None, None, 1.5, 20)


def test_probabilities_are_told_only_when_asked_for() -> None:
    reply = pb.Reply(message=b"a", logprobs=b'{"content": [{"token": "a"}]}')

    unasked, asked = ReplyDecoder().decode(reply), ReplyDecoder(logprobs=True).decode(reply)

    assert unasked == Delta("a")
    assert asked == Delta("a", logprobs=b'[{"token": "a"}]')


@pytest.mark.parametrize("garbage", [b"", b"{", b"[]", b'{"content": 1}', b"\xff"])
def test_probabilities_that_cannot_be_read_are_left_out(garbage: bytes) -> None:
    assert ReplyDecoder(logprobs=True).decode(pb.Reply(message=b"a", logprobs=garbage)) == Delta("a")


def test_text_that_may_be_an_errors_is_held_until_more_comes() -> None:
    decoder = ReplyDecoder(hold_suspect_text=True)

    first = decoder.decode(pb.Reply(message=b"one"))
    second = decoder.decode(pb.Reply(message=b"two"))
    third = decoder.decode(pb.Reply(message=b"three", tokens=3))

    assert (first, second, third) == (None, Delta("one"), Delta("twothree"))


def test_a_call_in_the_text_of_a_backend_without_deltas_is_found() -> None:
    decoder = ReplyDecoder(reading=WEATHER)

    heard = [decoder.decode(pb.Reply(message=piece.encode())) for piece in (CALL[:9], CALL[9:])]
    last = decoder.end()

    assert heard == [None, None]
    assert [(call.name, json.loads(call.arguments)) for call in last.tool_calls] == [
        ("weather", {"city": "Ulm"})
    ]
    assert (last.text, decoder.finish_reason) == ("", "tool_calls")


def test_plain_text_is_told_though_a_tool_could_have_been_called() -> None:
    decoder = ReplyDecoder(reading=WEATHER)

    assert _content(decoder, pb.Reply(message=b"Sunny, "), pb.Reply(message=b"I think.")) == "Sunny, I think."
    assert decoder.finish_reason == "stop"


def test_deltas_are_told_at_once_though_a_tool_could_be_called() -> None:
    decoder = ReplyDecoder(reading=WEATHER)

    said = decoder.decode(pb.Reply(message=b"hi", chat_deltas=[pb.ChatDelta(content="hi")]))

    assert said is not None
    assert said.text == "hi"
    assert decoder.end() == Delta()


def test_a_call_under_a_grammar_is_found_in_deltas_too() -> None:
    decoder = ReplyDecoder(reading=ToolCallSearch(frozenset({"weather"}), bound=True))

    said = decoder.decode(pb.Reply(message=CALL.encode(), chat_deltas=[pb.ChatDelta(content=CALL)]))

    assert said is None
    assert [call.name for call in decoder.end().tool_calls] == ["weather"]


def test_words_that_are_no_call_are_told_at_once_though_a_grammar_was_sent() -> None:
    decoder = ReplyDecoder(reading=ToolCallSearch(frozenset({"weather"}), bound=True))

    said = [
        decoder.decode(pb.Reply(chat_deltas=[pb.ChatDelta(content=piece)])) for piece in ("\n", "Sun", "ny {")
    ]

    assert [part and part.text for part in said] == [None, "\nSun", "ny {"]
    assert decoder.end() == Delta()


def test_text_beside_calls_that_the_backend_took_out_is_dropped() -> None:
    """It is the calls once more, in the model's own words."""
    decoder = ReplyDecoder(reading=WEATHER)
    call = pb.ToolCallDelta(name="weather", arguments="{}")

    decoder.decode(pb.Reply(message=b"<tool_call>{}</tool_call>"))
    decoder.decode(pb.Reply(chat_deltas=[pb.ChatDelta(tool_calls=[call])]))

    assert decoder.end() == Delta()
    assert decoder.finish_reason == "tool_calls"


def test_thoughts_in_the_text_of_a_chat_are_told_apart() -> None:
    decoder = ReplyDecoder(thoughts=True)

    told = [
        decoder.decode(pb.Reply(message=piece)) or Delta() for piece in (b"<think>h", b"m</think>", b"yes")
    ]
    told.append(decoder.end())

    assert "".join(part.reasoning for part in told) == "hm"
    assert "".join(part.text for part in told) == "yes"


@pytest.mark.parametrize(
    ("prompt", "answer", "reason"),
    [
        (200, 56, "length"),
        (200, 57, "length"),  # Some count the token that did not fit.
        (200, 54, "stop"),
        (200, 90, "stop"),  # The backend forgets what is oldest: it ended by itself.
        (256, 0, "stop"),
    ],
)
def test_an_answer_that_fills_the_context_was_cut(prompt: int, answer: int, reason: str) -> None:
    decoder = ReplyDecoder(context=256)
    decoder.decode(pb.Reply(message=b"a", tokens=answer, prompt_tokens=prompt))
    decoder.end()
    assert decoder.finish_reason == reason


def test_a_context_that_is_not_known_cuts_nothing() -> None:
    decoder = ReplyDecoder()
    decoder.decode(pb.Reply(message=b"a", tokens=1))
    assert decoder.finish_reason == "stop"


@pytest.mark.parametrize(("pieces", "reason"), [(3, "length"), (2, "stop")])
def test_the_end_by_length_is_known_also_of_a_backend_that_counts_nothing(pieces: int, reason: str) -> None:
    decoder = ReplyDecoder(3, hold_suspect_text=True)
    for _ in range(pieces):
        decoder.decode(pb.Reply(message=b"a"))
    decoder.decode(pb.Reply())
    decoder.end()
    assert decoder.finish_reason == reason


def test_no_more_calls_are_told_than_one_where_that_was_asked() -> None:
    def called(index: int, arguments: str) -> pb.Reply:
        call = pb.ToolCallDelta(index=index, name="weather", arguments=arguments)
        return pb.Reply(chat_deltas=[pb.ChatDelta(tool_calls=[call])])

    decoder = ReplyDecoder(one_call=True)
    told = [decoder.decode(called(*part)) for part in ((1, "{"), (2, "{}"), (1, "}"))]
    assert [call.arguments for said in told if said for call in said.tool_calls] == ["{", "}"]

    written = ReplyDecoder(reading=WEATHER, one_call=True)
    assert written.decode(pb.Reply(message=f"[{CALL}, {CALL}]".encode())) is None
    assert len(written.end().tool_calls) == 1


BOUND = ToolCallSearch(frozenset({"weather"}), "answer", bound=True)


@pytest.mark.parametrize(
    ("text", "told", "calls"),
    [
        (CALL[:-4], "", [("weather", '{"city": "Ul')]),
        ('{"name": "wea', "", []),
        ('{"name": "answer", "arguments": {"message": "It rai', "It rai", []),
    ],
)
def test_a_call_that_is_cut_at_the_limit_is_no_text(
    text: str, told: str, calls: list[tuple[str, str]]
) -> None:
    decoder = ReplyDecoder(5, reading=BOUND)
    decoder.decode(pb.Reply(message=text.encode(), tokens=5))
    last = decoder.end()
    assert last.text == told
    assert [(call.name, call.arguments) for call in last.tool_calls] == calls
    assert decoder.finish_reason == "length"


@pytest.mark.parametrize(
    ("arguments", "reason"), [('{"city": "Ul', "length"), ('{"city": "Ulm"}', "tool_calls")]
)
def test_a_call_that_a_backend_took_out_was_cut_if_its_arguments_were(arguments: str, reason: str) -> None:
    decoder = ReplyDecoder(5, reading=WEATHER)
    for number, part in enumerate((arguments[:3], arguments[3:])):
        call = pb.ToolCallDelta(index=0, name="" if number else "weather", arguments=part)
        decoder.decode(pb.Reply(chat_deltas=[pb.ChatDelta(tool_calls=[call])], tokens=4 + number))
    decoder.end()
    assert decoder.finish_reason == reason
