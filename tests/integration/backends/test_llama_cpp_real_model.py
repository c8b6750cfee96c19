"""The llama-cpp backend with a model that makes sense: the smallest one that answers questions."""

import json
from pathlib import Path

import pytest

from tests.integration.backends.llama_cpp_process import (
    TOKEN,
    HealthWatch,
    allowed_s,
    client_of,
    loaded,
    said,
    started,
    text_of,
)
from tests.integration.backends.programs import running
from tests.support.models import smollm2

pytestmark = pytest.mark.anyio

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "inhabitants": {"type": "integer"}},
    "required": ["city", "inhabitants"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def model() -> Path:
    return smollm2()


async def test_a_small_real_model_answers_in_sentences_and_in_json(tmp_path: Path, model: Path) -> None:
    with started(tmp_path) as process:
        async with client_of(process) as client:
            await loaded(client, Model="smol", ModelFile=str(model), ContextSize=1024)
            question = {"Messages": [{"role": "user", "content": "Name the capital of France."}]}
            asked = {**question, "UseTokenizerTemplate": True, "Tokens": 40}
            assert "Paris" in text_of(await said(client, **asked))
            answer = await client.predict(**asked, Metadata={"json_schema": json.dumps(SCHEMA)})
            assert set(json.loads(answer.text)) == {"city", "inhabitants"}


async def test_loading_keeps_health_waiting_for_nothing(tmp_path: Path, model: Path) -> None:
    folders = [tmp_path / name for name in ("loading", "idle")]
    for folder in folders:
        folder.mkdir()
    with started(folders[0]) as process, running(folders[1], LOCALAI_GRPC_AUTH_TOKEN=TOKEN) as idle:
        async with client_of(process) as client:
            with HealthWatch(idle) as control, HealthWatch(process) as health:
                await loaded(client, Model="smol", ModelFile=str(model), ContextSize=1024)
    assert health.longest_s < allowed_s(control)
