"""Models that come, go, are broken or taken away: what the llama-cpp backend holds at every moment."""

import signal
from functools import partial
from pathlib import Path

import anyio
import pytest

from tests.integration.backends.llama_cpp_process import (
    TOKEN,
    client_of,
    engine_of,
    gone,
    holding,
    loaded,
    started,
)
from tests.peers.backend_client import BackendClient, CallFailed
from tests.support.models import tiny_model, tiny_reranker
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

LONG = 50_000  # Tokens: many seconds of work even for the tiny model.
TRIES = 3
BEYOND_MAX = LONG // 50  # It stops soon after the caller has left; how soon, a busy machine decides.
ENDLESS = {"Prompt": "the house", "Tokens": LONG, "IgnoreEOS": True}


async def failure(client: BackendClient) -> CallFailed:
    with pytest.raises(CallFailed) as failed:
        await client.predict(Prompt="the house", Tokens=1)
    return failed.value


async def test_before_a_model_is_loaded_there_is_nothing_to_ask(tmp_path: Path) -> None:
    with started(tmp_path) as process:
        async with client_of(process) as client:
            assert await client.health() == "OK"
            assert (await client.status()).state == "UNINITIALIZED"
            refused = await failure(client)
    assert (refused.code, "model not loaded" in refused.details) == ("FAILED_PRECONDITION", True)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "No such file"),
        (b"not a model at all", "not a GGUF file (wrong header)"),
        (b"half", "corrupted or incomplete"),
    ],
)
async def test_a_file_that_is_no_model_fails_the_load_and_nothing_else(
    tmp_path: Path, content: bytes | None, told: str
) -> None:
    broken = tmp_path / "broken.gguf"
    if content == b"half":
        whole = tiny_model().read_bytes()
        broken.write_bytes(whole[: len(whole) // 2])
    elif content is not None:
        broken.write_bytes(content)
    with started(tmp_path) as process:
        async with client_of(process) as client:
            outcome = await client.load_model(Model="broken", ModelFile=str(broken))
            assert (outcome.success, told in outcome.message) == (False, True), outcome.message
            assert await client.health() == "OK"
            await loaded(client)
            assert (await client.predict(Prompt="the house", Tokens=3, IgnoreEOS=True)).tokens == 3


async def test_a_model_is_found_below_the_models_folder(tmp_path: Path) -> None:
    where = {"ModelFile": "", "ModelPath": str(tiny_model().parent), "Model": tiny_model().name}
    async with holding(tmp_path, **where) as (_, client):
        assert (await client.predict(Prompt="a", Tokens=2, IgnoreEOS=True)).tokens == 2


async def test_loading_the_same_again_changes_nothing(tmp_path: Path) -> None:
    async with holding(tmp_path) as (process, client):
        engine = engine_of(process)
        await loaded(client)
        assert engine_of(process) == engine


async def test_another_model_takes_the_place_of_the_first(tmp_path: Path) -> None:
    async with holding(tmp_path) as (process, client):
        former = engine_of(process)
        await loaded(client, Model="ranks", ModelFile=str(tiny_reranker()), Reranking=True)
        assert gone(former)
        with pytest.raises(CallFailed) as failed:
            await client.predict(Prompt="a", ModelIdentity="tiny")
        assert failed.value.code == "NOT_FOUND"
        assert (await client.rerank(query="a", documents=["b"], ModelIdentity="ranks")).results


async def test_options_nobody_knows_are_told_in_the_log(tmp_path: Path) -> None:
    async with holding(tmp_path, Options=["parallel:2", "colour:blue"]) as (process, _):
        assert "options_ignored names=Options[colour]" in process.log


async def test_freed_memory_is_really_free(tmp_path: Path) -> None:
    async with holding(tmp_path) as (process, client):
        engine = engine_of(process)
        assert (await client.free()).success
        assert gone(engine)
        assert (await failure(client)).code == "FAILED_PRECONDITION"
        assert (await client.status()).state == "UNINITIALIZED"
        await loaded(client)
        assert (await client.predict(Prompt="a", Tokens=2, IgnoreEOS=True)).tokens == 2


async def test_who_leaves_stops_the_engine(tmp_path: Path) -> None:
    async with holding(tmp_path, ContextSize=LONG, Options=["parallel:1"]) as (_, client):
        beyond = [await generated_beyond(client, received=100) for _ in range(TRIES)]
    # A busy machine explains that word of the leaving is late some time, but not each time.
    assert 0 <= min(beyond) <= BEYOND_MAX, beyond


async def generated_beyond(client: BackendClient, received: int) -> int:
    """How many more tokens the engine makes when its caller leaves after so many."""
    before = (await client.metrics()).tokens_generated
    async for reply in client.predict_stream(**ENDLESS):
        if reply.tokens >= received:
            break  # Leaving the loop closes the call.
    # The only slot is free again at once, where the whole answer would have taken long.
    with anyio.fail_after(5):
        last = await client.predict(Prompt="a", Tokens=1, IgnoreEOS=True)
    generated = (await client.metrics()).tokens_generated - before
    return generated - reply.tokens - last.tokens


async def test_who_leaves_while_waiting_for_the_whole_answer_stops_it_too(tmp_path: Path) -> None:
    async with holding(tmp_path, ContextSize=LONG, Options=["parallel:1"]) as (process, client):
        async with BackendClient(process.address, TOKEN, call_s=0.3) as hasty:
            with pytest.raises(CallFailed, match="DEADLINE_EXCEEDED"):
                await hasty.predict(**ENDLESS)
        with anyio.fail_after(5):
            await client.predict(Prompt="a", Tokens=1)


async def test_the_end_of_the_engine_ends_the_backend_and_the_log_says_why(tmp_path: Path) -> None:
    async with holding(tmp_path, ContextSize=LONG) as (process, client):
        stream = client.predict_stream(**ENDLESS)
        await anext(stream)
        engine_of(process).kill()
        with pytest.raises(CallFailed) as under_way:
            _ = [reply async for reply in stream]
        assert under_way.value.code == "UNAVAILABLE"
        assert process.wait() == 1
    assert process.log.count("ERROR") == 1
    assert "stopping reason='the engine was ended by SIGKILL'" in process.log


async def test_an_idle_backend_ends_with_its_engine_too(tmp_path: Path) -> None:
    async with holding(tmp_path) as (process, client):
        assert (await client.free()).success
        await loaded(client)  # Only the engine that is loaded counts, not those before it.
        engine_of(process).kill()
        assert process.wait() == 1


async def test_a_backend_that_is_killed_leaves_no_engine(tmp_path: Path) -> None:
    async with holding(tmp_path) as (process, _):
        engine = engine_of(process)
        process.send(signal.SIGKILL)
        assert gone(engine)


async def test_a_backend_told_to_stop_ends_its_engine_and_itself(tmp_path: Path) -> None:
    async with holding(tmp_path) as (process, _):
        engine = engine_of(process)
        process.send(signal.SIGTERM)
        assert gone(engine)
        assert process.wait() == 0


def ambiguous(ways: int) -> str:
    """Each letter opens so many ways in which the text may go on, and none is ever closed. A grammar in which
    one rule shows this is refused before the engine sees it; here eight rules lead back to the first."""
    rules = (
        f"s{at} ::= " + " | ".join(f'[^\\x{way:02x}] s{(at + 1) % 8} "{way}"' for way in range(1, ways + 1))
        for at in range(8)
    )
    return "\n".join(["root ::= s0", *rules])


async def test_an_engine_held_by_a_grammar_is_ended_and_each_call_told_why(tmp_path: Path) -> None:
    options = {"ContextSize": LONG, "Options": ["step_seconds:1"]}
    async with holding(tmp_path, **options) as (process, client):
        engine = engine_of(process)
        other = client.predict_stream(**ENDLESS)
        await anext(other)
        with pytest.raises(CallFailed) as refused:
            await client.predict(Prompt="the house", Tokens=200, Grammar=ambiguous(2))
        assert gone(engine)
        assert refused.value.code == "INVALID_ARGUMENT"
        assert "the grammar of this request" in refused.value.details
        with pytest.raises(CallFailed) as under_way:
            _ = [reply async for reply in other]
        assert under_way.value.code == "FAILED_PRECONDITION"
        assert under_way.value.details.startswith("model not loaded")
        assert process.wait() == 1
    assert "stopping reason='the engine was ended by its watchdog: one step took more than" in process.log


async def test_a_grammar_holds_the_engine_no_longer_when_its_caller_has_left(tmp_path: Path) -> None:
    async with holding(tmp_path, Options=["step_seconds:1"]) as (process, client):
        engine = engine_of(process)
        idle_s = engine.cpu_times().user
        async with anyio.create_task_group() as calls:
            calls.start_soon(partial(client.predict, Prompt="the house", Tokens=200, Grammar=ambiguous(16)))
            await wait_until(lambda: engine.cpu_times().user > idle_s + 0.5)
            calls.cancel_scope.cancel()
        assert gone(engine)
        assert process.wait() == 1
    assert "s of CPU time with a grammar'" in process.log
