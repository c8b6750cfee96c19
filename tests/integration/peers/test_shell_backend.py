"""The peers' client and backend agree with each other, over real gRPC between processes."""

import json
from contextlib import aclosing
from pathlib import Path

import psutil
import pytest

from tests.integration.peers.conftest import Running, Start
from tests.peers.backend_client import BackendClient, CallFailed, Outcome
from tests.peers.shell_backend.install import install_shell_backend

pytestmark = pytest.mark.anyio

TOKEN = "s3cret"


@pytest.fixture
async def backend(start: Start, tmp_path: Path) -> Running:
    running = start(install_shell_backend(tmp_path / "shell"), LOCALAI_GRPC_AUTH_TOKEN=TOKEN)
    await running.wait_until_it_answers()
    return running


async def test_it_loads_answers_and_lets_go(backend: Running) -> None:
    async with BackendClient(backend.address, TOKEN) as client:
        assert await client.health() == "OK"
        assert await client.load_model(Model="m.gguf") == Outcome(True, "m.gguf is loaded")
        reply = await client.predict(Prompt="to be or not", Tokens=3, ModelIdentity="m.gguf")
        assert (await client.free()).success
        with pytest.raises(CallFailed) as refused:
            await client.predict(Prompt="to be")
    assert (reply.text, reply.tokens, reply.prompt_tokens) == ("to be or", 3, 4)
    assert refused.value.code == "FAILED_PRECONDITION"


async def test_a_stream_counts_as_it_goes(backend: Running) -> None:
    async with BackendClient(backend.address, TOKEN) as client:
        await client.load_model(Model="m.gguf")
        messages = [{"role": "user", "content": "grüß dich"}]
        stream = client.predict_stream(UseTokenizerTemplate=True, Messages=messages)
        replies = [reply async for reply in stream]
    assert [(reply.text, reply.tokens, reply.prompt_tokens) for reply in replies] == [
        ("grüß", 1, 2),
        (" dich", 2, 2),
    ]


async def test_a_caller_may_leave_a_stream(backend: Running) -> None:
    async with BackendClient(backend.address, TOKEN) as client:
        await client.load_model(Model="m.gguf")
        async with aclosing(client.predict_stream(Prompt="word " * 100_000)) as stream:
            first = await anext(stream)
        assert await client.health() == "OK"
    assert first.text == "word"


async def test_a_load_that_fails_says_why(backend: Running) -> None:
    async with BackendClient(backend.address, TOKEN) as client:
        assert await client.load_model() == Outcome(False, "no model was named")


@pytest.mark.parametrize("token", ["", "wrong"])
async def test_without_the_token_every_call_is_refused(backend: Running, token: str) -> None:
    async with BackendClient(backend.address, token) as client:
        stream = client.predict_stream(Prompt="x")
        for call in (client.health(), client.load_model(Model="m"), anext(stream), client.status()):
            with pytest.raises(CallFailed) as refused:
                await call
            assert (refused.value.code, refused.value.details) == ("UNAUTHENTICATED", "invalid token")


async def test_without_a_token_of_its_own_it_asks_for_none(start: Start, tmp_path: Path) -> None:
    running = start(install_shell_backend(tmp_path / "shell"))
    await running.wait_until_it_answers()
    assert await running.health() == "OK"


async def test_a_request_for_another_model_is_refused(backend: Running) -> None:
    async with BackendClient(backend.address, TOKEN) as client:
        await client.load_model(Model="m.gguf")
        with pytest.raises(CallFailed, match="model identity mismatch") as refused:
            await client.predict(Prompt="x", ModelIdentity="other.gguf")
        with pytest.raises(CallFailed, match="model identity mismatch"):
            await anext(client.predict_stream(Prompt="x", ModelIdentity="other.gguf"))
        unnamed = await client.predict(Prompt="x")
    assert (refused.value.code, unnamed.text) == ("NOT_FOUND", "x")


async def test_other_calls_are_unimplemented(backend: Running) -> None:
    async with BackendClient(backend.address, TOKEN) as client:
        calls = (
            client.status(),
            client.metrics(),
            client.embedding(Embeddings="x"),
            client.rerank(query="x"),
        )
        for call in (*calls, client.tokenize(Prompt="x"), client.detokenize((1,)), client.model_metadata()):
            with pytest.raises(CallFailed) as refused:
                await call
            assert refused.value.code == "UNIMPLEMENTED"


async def test_the_process_that_was_started_is_the_one_that_answers(backend: Running) -> None:
    words = psutil.Process(backend.process.pid).cmdline()
    assert "tests.peers.shell_backend.server" in words


def test_it_is_installed_as_an_installer_leaves_it(tmp_path: Path) -> None:
    run_file = install_shell_backend(tmp_path / "shell")
    metadata = run_file.with_name("metadata.json")
    assert run_file == tmp_path / "shell" / "run.sh"
    assert [path.stat().st_mode & 0o777 for path in (run_file, metadata)] == [0o755, 0o644]
    assert json.loads(metadata.read_text())["name"] == "shell"
