"""The llama-cpp backend with a model that makes sense: the smallest one that answers questions."""

import json
import subprocess
from pathlib import Path

import anyio
import pytest

from tests.integration.backends.llama_cpp_process import client_of, loaded, said, started, text_of
from tests.support.models import smollm2

pytestmark = pytest.mark.anyio

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "inhabitants": {"type": "integer"}},
    "required": ["city", "inhabitants"],
    "additionalProperties": False,
}
HEALTH_S = 0.1


async def test_a_small_real_model_answers_in_sentences_and_in_json(tmp_path: Path) -> None:
    try:
        model = smollm2()
    except (subprocess.SubprocessError, OSError) as error:
        pytest.skip(f"SmolLM2 cannot be fetched: {error}")
    with started(tmp_path) as process:
        async with client_of(process) as client, anyio.create_task_group() as loading:
            load = {"Model": "smol", "ModelFile": str(model), "ContextSize": 1024}
            loading.start_soon(lambda: loaded(client, **load))
            while (await client.status()).state != "READY":  # Nor does loading keep Health waiting.
                with anyio.fail_after(HEALTH_S):
                    await client.health()
        async with client_of(process) as client:
            question = {"Messages": [{"role": "user", "content": "Name the capital of France."}]}
            asked = {**question, "UseTokenizerTemplate": True, "Tokens": 40}
            assert "Paris" in text_of(await said(client, **asked))
            answer = await client.predict(**asked, Metadata={"json_schema": json.dumps(SCHEMA)})
            assert set(json.loads(answer.text)) == {"city", "inhabitants"}
