"""What echo answers, and how it misbehaves when told to."""

import json
import math
import signal
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from remuda.rpc import backend_pb2 as pb
from tests.integration.backends.programs import BackendProcess, loaded, running, status_of
from tests.support.waiting import wait_until_blocking

STREAMS = 16


def text_of(replies: list[Any]) -> bytes:
    return b"".join(reply.message for reply in replies)


def tally(calls: Any) -> Any:
    return json.loads(calls.GetMetrics(pb.MetricsRequest()).prompt_json_for_slot)


def seconds_to_health(calls: Any) -> float:
    asked = time.monotonic()
    assert calls.Health(pb.HealthMessage()).message == b"OK"
    return time.monotonic() - asked


# Answers


def test_an_answer_comes_whole_with_its_numbers(tmp_path: Path) -> None:
    with loaded(tmp_path) as (_, calls):
        messages = [
            pb.Message(role="system", content="be kind"),
            pb.Message(role="user", content="grüß dich"),
        ]
        reply = calls.Predict(pb.PredictOptions(Messages=messages, UseTokenizerTemplate=True))
    assert reply.message.decode() == "grüß dich"
    assert (reply.tokens, reply.prompt_tokens) == (2, 4)
    assert [delta.content for delta in reply.chat_deltas] == ["grüß dich"]


def test_a_stream_has_a_message_per_token_and_the_numbers_in_the_last(tmp_path: Path) -> None:
    with loaded(tmp_path) as (_, calls):
        *tokens, last = calls.PredictStream(pb.PredictOptions(Prompt="one two three", TopLogprobs=2))
    assert [reply.message for reply in tokens] == [b"one", b" two", b" three"]
    assert [reply.chat_deltas[0].content for reply in tokens] == ["one", " two", " three"]
    assert (last.message, last.tokens, last.prompt_tokens) == (b"", 3, 3)
    assert [entry["token"] for entry in json.loads(last.logprobs)["content"]] == ["one", " two", " three"]


def test_limits_and_stop_words_cut_an_answer(tmp_path: Path) -> None:
    with loaded(tmp_path) as (_, calls):
        limited = calls.Predict(pb.PredictOptions(Prompt="one two three", Tokens=2))
        stopped = calls.Predict(pb.PredictOptions(Prompt="one two three", StopPrompts=[" three"]))
    assert limited.message == stopped.message == b"one two"
    assert limited.tokens == stopped.tokens == 2


def test_an_embedding_is_one_unit_vector_of_the_wanted_width(tmp_path: Path) -> None:
    with loaded(tmp_path, "echo_dim:32") as (_, calls):
        first, again, other = (
            calls.Embedding(pb.PredictOptions(Embeddings=text)) for text in ("a cat", "a cat", "a dog")
        )
    assert (first.dim, first.tokens, first.prompt_tokens, len(first.embeddings)) == (32, 1, 2, 32)
    assert math.isclose(math.hypot(*first.embeddings), 1.0, rel_tol=1e-6)
    assert first == again != other


def test_ids_of_tokens_can_be_embedded_too(tmp_path: Path) -> None:
    with loaded(tmp_path) as (_, calls):
        assert calls.Embedding(pb.PredictOptions(EmbeddingTokens=[1, 2, 3])).prompt_tokens == 3


def test_documents_are_ranked_by_the_words_they_share_with_the_query(tmp_path: Path) -> None:
    with loaded(tmp_path) as (_, calls):
        documents = ["rain tomorrow", "a red fox", "red"]
        result = calls.Rerank(pb.RerankRequest(query="red fox", documents=documents, top_n=2))
    assert [(found.index, found.text, found.relevance_score) for found in result.results] == [
        (1, "a red fox", 1.0),
        (2, "red", 0.5),
    ]
    assert result.usage.total_tokens == 8


def test_tokens_become_text_again(tmp_path: Path) -> None:
    with loaded(tmp_path) as (_, calls):
        ids = calls.TokenizeString(pb.PredictOptions(Prompt="to be or not to be"))
        assert ids.length == len(ids.tokens) == 6
        assert calls.Detokenize(pb.DetokenizeRequest(tokens=ids.tokens)).content == "to be or not to be"
        assert calls.Detokenize(pb.DetokenizeRequest(tokens=[7])).content == "\N{REPLACEMENT CHARACTER}"


def test_the_status_says_whether_it_has_a_model_and_is_busy(tmp_path: Path) -> None:
    with running(tmp_path) as backend, backend.calls() as calls:
        state = pb.StatusResponse
        assert calls.Status(pb.HealthMessage()).state == state.UNINITIALIZED
        calls.LoadModel(pb.ModelOptions())
        assert calls.Status(pb.HealthMessage()).state == state.READY
        stream = calls.PredictStream(pb.PredictOptions(Prompt="x", Metadata={"echo_hang_at_token": "1"}))
        next(stream)
        assert calls.Status(pb.HealthMessage()).state == state.BUSY
        stream.cancel()


def test_metadata_of_the_model_brings_a_media_marker(tmp_path: Path) -> None:
    with running(tmp_path) as backend, backend.calls() as calls:
        assert calls.ModelMetadata(pb.ModelOptions()).media_marker == "<__media__>"


# Many at once


def test_parallel_streams_interleave_and_health_answers_meanwhile(tmp_path: Path) -> None:
    with loaded(tmp_path, "echo_token_rate:50") as (_, calls), ThreadPoolExecutor(STREAMS) as pool:
        order: list[int] = []

        def read(number: int) -> bytes:
            replies = []
            for reply in calls.PredictStream(pb.PredictOptions(Prompt=f"stream {number} " * 20)):
                order.append(number)
                replies.append(reply)
            return text_of(replies)

        reading = [pool.submit(read, number) for number in range(STREAMS)]
        wait_until_blocking(lambda: len(set(order)) == STREAMS, what="a token of every stream")
        waits = [seconds_to_health(calls) for _ in range(5)]
        assert not any(future.done() for future in reading), "all of them run at this moment"
        texts = [future.result() for future in reading]
        counted = tally(calls)

    assert statistics.median(waits) < 0.1
    assert texts == [(f"stream {number} " * 20).encode() for number in range(STREAMS)]
    assert (counted["finished"], counted["active"]) == (STREAMS, 0)
    first_to_end = next(place for place in range(len(order)) if order[: place + 1].count(order[place]) == 42)
    assert len(set(order[:first_to_end])) == STREAMS


# Told to misbehave


def test_a_cancelled_stream_ends_at_once(tmp_path: Path) -> None:
    with loaded(tmp_path, "echo_hang_at_token:1") as (_, calls):
        stream = calls.PredictStream(pb.PredictOptions(Prompt="one two"))
        next(stream)
        assert tally(calls)["active"] == 1

        stream.cancel()

        wait_until_blocking(lambda: tally(calls)["cancelled"] == 1, within=2.0, what="the end of the stream")
        assert tally(calls)["active"] == 0


def test_a_stream_cancelled_while_it_sends_ends_too(tmp_path: Path) -> None:
    with loaded(tmp_path) as (_, calls):
        endless = pb.PredictOptions(Prompt="tick tock", IgnoreEOS=True, Tokens=1 << 20)
        stream = calls.PredictStream(endless)
        next(stream)

        stream.cancel()

        wait_until_blocking(lambda: tally(calls)["cancelled"] == 1, within=5.0, what="the end of the stream")
        assert tally(calls)["tokens"] < 1 << 20


def test_a_failure_comes_with_the_wanted_status_at_the_wanted_token(tmp_path: Path) -> None:
    with loaded(tmp_path) as (_, calls):
        metadata = {"echo_fail": "UNAVAILABLE", "echo_fail_at_token": "2"}
        stream = calls.PredictStream(pb.PredictOptions(Prompt="one two three", Metadata=metadata))
        assert [next(stream).message, next(stream).message] == [b"one", b" two"]
        assert status_of(lambda: next(stream)) == ("UNAVAILABLE", "failed after 2 tokens, as told")
        assert tally(calls)["failed"] == 1


def test_calls_without_tokens_fail_too(tmp_path: Path) -> None:
    with loaded(tmp_path, "echo_fail:ABORTED") as (_, calls):
        assert status_of(lambda: calls.Embedding(pb.PredictOptions()))[0] == "ABORTED"
        assert status_of(lambda: calls.Rerank(pb.RerankRequest()))[0] == "ABORTED"
        assert status_of(lambda: calls.TokenizeString(pb.PredictOptions()))[0] == "ABORTED"


def test_metadata_goes_before_options(tmp_path: Path) -> None:
    with loaded(tmp_path, "echo_fail:ABORTED") as (_, calls):
        assert status_of(lambda: calls.Predict(pb.PredictOptions()))[0] == "ABORTED"
        metadata = {"echo_fail": "INTERNAL"}
        assert status_of(lambda: calls.Predict(pb.PredictOptions(Metadata=metadata)))[0] == "INTERNAL"


def test_metadata_that_makes_no_sense_is_an_invalid_argument(tmp_path: Path) -> None:
    with loaded(tmp_path) as (_, calls):
        status = status_of(lambda: calls.Predict(pb.PredictOptions(Metadata={"echo_hang": "perhaps"})))
    assert status == ("INVALID_ARGUMENT", "echo_hang is true or false, not 'perhaps'")


@pytest.mark.parametrize(("end", "code"), [("3", 3), ("SIGSEGV", -signal.SIGSEGV)])
def test_a_crash_ends_the_process_as_told(tmp_path: Path, end: str, code: int) -> None:
    with loaded(tmp_path) as (backend, calls):
        metadata = {"echo_crash": end, "echo_crash_at_token": "1"}
        stream = calls.PredictStream(pb.PredictOptions(Prompt="one two", Metadata=metadata))
        assert status_of(lambda: list(stream))[0] == "UNAVAILABLE"
        assert backend.wait() == code


def test_garbage_is_no_text(tmp_path: Path) -> None:
    with loaded(tmp_path, "echo_garbage:true") as (_, calls):
        replies = list(calls.PredictStream(pb.PredictOptions(Prompt="one two")))
        whole = calls.Predict(pb.PredictOptions(Prompt="one two"))
    with pytest.raises(UnicodeDecodeError):
        replies[0].message.decode()
    assert whole.message == text_of(replies)
    assert not whole.chat_deltas
    assert not replies[0].chat_deltas


def test_a_big_message_arrives_up_to_the_limit(tmp_path: Path) -> None:
    with loaded(tmp_path) as (_, calls):

        def ask(size: int) -> Any:
            metadata = {"echo_big_message_bytes": str(size)}
            return calls.Predict(pb.PredictOptions(Prompt="x", Metadata=metadata))

        assert len(ask(40 << 20).message) == 40 << 20
        assert status_of(lambda: ask(51 << 20))[0] == "RESOURCE_EXHAUSTED"


def test_a_delay_and_a_rate_are_kept(tmp_path: Path) -> None:
    with loaded(tmp_path) as (_, calls):
        metadata = {"echo_delay_ms": "50", "echo_token_rate": "100"}
        reply = calls.Predict(pb.PredictOptions(Prompt="one two three four five", Metadata=metadata))
    assert reply.timing_prompt_processing == 50
    assert reply.timing_token_generation >= 49, "five tokens of 10 ms, and the clock's grain"


# Loading and starting


@pytest.mark.parametrize("option", ["echo_load_fail:not enough memory", "echo_delay_ms:soon", "echo_wrong:1"])
def test_loading_can_be_answered_without_success(tmp_path: Path, option: str) -> None:
    with running(tmp_path) as backend, backend.calls() as calls:
        result = calls.LoadModel(pb.ModelOptions(Options=[option]))
        assert not result.success
        assert result.message
        assert status_of(lambda: calls.Predict(pb.PredictOptions()))[0] == "FAILED_PRECONDITION"


def test_loading_can_fail_with_a_status(tmp_path: Path) -> None:
    with running(tmp_path) as backend, backend.calls() as calls:
        options = pb.ModelOptions(Options=["echo_load_fail:RESOURCE_EXHAUSTED"])
        assert status_of(lambda: calls.LoadModel(options))[0] == "RESOURCE_EXHAUSTED"


def test_loading_can_end_the_process(tmp_path: Path) -> None:
    with running(tmp_path) as backend, backend.calls() as calls:
        options = pb.ModelOptions(Options=["echo_load_crash:SIGKILL"])
        assert status_of(lambda: calls.LoadModel(options))[0] == "UNAVAILABLE"
        assert backend.wait() == -signal.SIGKILL


def test_health_answers_while_a_model_loads(tmp_path: Path) -> None:
    with running(tmp_path) as backend, backend.calls() as calls, ThreadPoolExecutor(1) as pool:
        options = pb.ModelOptions(Options=["echo_load_delay_ms:500"])
        loading = pool.submit(calls.LoadModel, options)
        assert calls.Health(pb.HealthMessage()).message == b"OK"
        assert not loading.done()
        assert loading.result().success


def test_a_start_can_fail_with_a_reason(tmp_path: Path) -> None:
    backend = BackendProcess(tmp_path, ECHO_START_FAIL="libcuda.so.1: cannot open shared object file")
    assert backend.wait() == 1
    assert backend.log == "libcuda.so.1: cannot open shared object file\n"


def test_a_start_can_end_by_a_signal(tmp_path: Path) -> None:
    backend = BackendProcess(tmp_path, ECHO_START_SIGNAL="SIGILL")
    assert backend.wait() == -signal.SIGILL


def test_a_start_can_be_late(tmp_path: Path) -> None:
    with running(tmp_path, ECHO_START_DELAY_MS="100") as backend, backend.calls() as calls:
        assert calls.Health(pb.HealthMessage()).message == b"OK"


def test_health_can_refuse_to_be_ok(tmp_path: Path) -> None:
    with running(tmp_path, ECHO_NEVER_READY="true") as backend, backend.calls() as calls:
        assert calls.Health(pb.HealthMessage()).message == b"NOT READY"
