"""Say this, hear it back: real models of speech, through the official client, `remuda up`, a worker's files,
and backends that are processes."""

import io
import re
import shutil
import wave
from collections.abc import Iterator

import openai
import pytest
from openai import OpenAI

from tests.integration.serving.site import add_model
from tests.peers.speech_backend.install import install_speech_backend
from tests.support.fetched_models import joe_voice, whisper_base
from tests.support.plain_http import PLAIN
from tests.support.processes import Frontend, ranch
from tests.support.waiting import wait_until_blocking

pytestmark = pytest.mark.long

SENTENCE = "The old house on the hill has three windows and a red door."


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Frontend]:
    with ranch(tmp_path_factory.mktemp("speech") / "ranch") as place:
        frontend = place.up()
        install_speech_backend(frontend.data_dir / "worker" / "backends" / "speech")
        models = frontend.data_dir / "models"
        shutil.copytree(whisper_base(), models / "whisper-base")
        for file in joe_voice().parent.iterdir():
            shutil.copyfile(file, models / file.name)
        add_model(frontend, "ears", "speech", "whisper-base", known_usecases=["transcript"])
        add_model(frontend, "joe", "speech", joe_voice().name, known_usecases=["tts"])
        wait_until_blocking(lambda: _has_backend(frontend), within=60, what="the worker's report")
        yield frontend


def _has_backend(frontend: Frontend) -> bool:
    [node] = frontend.nodes().values()
    there = frontend.ask("GET", f"/api/nodes/{node['id']}/backends").raise_for_status().json()
    return any(one["name"] == "speech" for one in there or ())


@pytest.fixture
def client(up: Frontend) -> Iterator[OpenAI]:
    http = openai.DefaultHttpxClient(trust_env=False, verify=PLAIN)
    with OpenAI(
        api_key="sk-none", base_url=f"{up.url}/v1", http_client=http, max_retries=0, timeout=300
    ) as client:
        yield client


def words_of(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())


def alike(said: str, heard: str) -> float:
    """The share of the words said that were heard."""
    return sum(word in words_of(heard) for word in words_of(said)) / len(words_of(said))


def test_what_is_said_is_heard_back(client: OpenAI) -> None:
    said = client.audio.speech.create(model="joe", voice="joe", input=SENTENCE, response_format="wav").read()
    with wave.open(io.BytesIO(said)) as file:
        assert file.getnframes() / file.getframerate() > 1
    heard = client.audio.transcriptions.create(
        model="ears", file=("said.wav", said), language="en", response_format="verbose_json"
    )
    assert alike(SENTENCE, heard.text) >= 0.8, heard.text
    assert heard.language == "en"
    assert heard.segments
    assert heard.segments[-1].end <= heard.duration + 0.5
    srt = client.audio.transcriptions.create(model="ears", file=("said.wav", said), response_format="srt")
    assert "00:00:00,000 --> " in str(srt)


def test_speech_is_streamed_as_samples(client: OpenAI) -> None:
    with client.audio.speech.with_streaming_response.create(
        model="joe", voice="joe", input=f"{SENTENCE} {SENTENCE}", response_format="pcm"
    ) as streamed:
        kind = streamed.headers["content-type"]
        rate = int(re.findall(r"rate=(\d+)", kind)[0])
        samples = b"".join(streamed.iter_bytes())
    recorded = io.BytesIO()
    with wave.open(recorded, "wb") as file:
        file.setparams((1, 2, rate, 0, "NONE", ""))
        file.writeframes(samples)
    heard = client.audio.transcriptions.create(model="ears", file=("streamed.wav", recorded.getvalue()))
    assert alike(SENTENCE, heard.text) >= 0.8, heard.text


def test_a_model_is_asked_only_for_what_it_does(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError):
        client.audio.speech.create(model="ears", voice="joe", input="hello")


def test_a_recording_that_lies_about_its_length_is_refused_or_heard_as_far_as_it_goes(client: OpenAI) -> None:
    whole = client.audio.speech.create(model="joe", voice="joe", input=SENTENCE, response_format="wav").read()
    cut = whole[: len(whole) // 2]  # Its header still promises all of it.
    try:
        heard = client.audio.transcriptions.create(model="ears", file=("cut.wav", cut))
    except openai.BadRequestError:
        return
    assert alike(SENTENCE, heard.text) >= 0.3, heard.text
