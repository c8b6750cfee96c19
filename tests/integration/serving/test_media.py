"""Speech and images the whole way: the official client, `remuda up`, a worker's files, a gRPC backend that is
a process."""

import base64
from collections.abc import Iterator

import httpx
import openai
import pytest
from openai import OpenAI

from tests.integration.serving.site import add_model
from tests.peers.shell_backend.install import install_shell_backend
from tests.support.plain_http import PLAIN
from tests.support.processes import Frontend
from tests.support.waiting import wait_until_blocking

SPEECH = ("speech.txt", b"the house on the hill")  # To this backend recordings are texts.


@pytest.fixture(scope="module")
def up(alone: Frontend) -> Frontend:
    install_shell_backend(alone.data_dir / "worker" / "backends" / "shell")
    add_model(alone, "polly", "shell")
    [node] = alone.nodes().values()

    def reported() -> bool:
        there = alone.ask("GET", f"/api/nodes/{node['id']}/backends").raise_for_status().json()
        return any(one["name"] == "shell" for one in there or ())  # `null` before the first.

    wait_until_blocking(reported, within=60, what="the worker's report of its new backend")
    return alone


@pytest.fixture
def client(up: Frontend) -> Iterator[OpenAI]:
    http = openai.DefaultHttpxClient(trust_env=False, verify=PLAIN)
    with OpenAI(api_key="sk-none", base_url=f"{up.url}/v1", http_client=http, max_retries=0) as client:
        yield client


def test_a_recording_is_written_down(client: OpenAI) -> None:
    heard = client.audio.transcriptions.create(
        model="polly", file=SPEECH, language="en", response_format="verbose_json"
    )
    assert (heard.text, heard.language, heard.duration) == ("the house on the hill", "en", 2.5)
    assert [(one.text, one.start, one.end) for one in heard.segments or ()][1] == ("house", 1.0, 2.0)


def test_a_recording_is_written_down_while_it_is_heard(client: OpenAI) -> None:
    stream = client.audio.transcriptions.create(model="polly", file=SPEECH, stream=True)
    *parts, done = list(stream)
    assert [part.delta for part in parts if part.type == "transcript.text.delta"] == SPEECH[
        1
    ].decode().split()
    assert done.type == "transcript.text.done"


def test_a_text_is_said_whole_and_streamed(client: OpenAI) -> None:
    said = client.audio.speech.create(model="polly", voice="joe", input="hello there")
    assert said.read() == b"joe: hello there"
    with client.audio.speech.with_streaming_response.create(
        model="polly", voice="joe", input="hello there", response_format="pcm"
    ) as streamed:
        assert streamed.headers["content-type"] == "audio/pcm;rate=16000;channels=1"
        assert b"".join(streamed.iter_bytes()) == b"hellothere"


def test_images_are_made_and_changed(client: OpenAI) -> None:
    made = client.images.generate(model="polly", prompt="a house", n=2, size="64x32", extra_body={"seed": 5})
    assert [base64.b64decode(one.b64_json or "") for one in made.data or ()] == [
        b"a house 64x32 5 ",
        b"a house 64x32 6 ",
    ]
    changed = client.images.edit(
        model="polly", prompt="redder", image=[("a.png", b"sketch"), ("b.png", b"style")]
    )
    assert base64.b64decode((changed.data or [])[0].b64_json or "").endswith(b"sketch style")


def test_a_backend_that_fails_is_no_fault_of_the_client_and_leaves_no_files(
    up: Frontend, client: OpenAI
) -> None:
    with pytest.raises(openai.InternalServerError, match="lost its voice"):
        client.audio.speech.create(model="polly", voice="joe", input="fail")
    staging = up.data_dir / "worker" / "staging"
    wait_until_blocking(
        lambda: not [path for path in staging.rglob("*") if path.is_file()], within=30, what="no files"
    )
    in_flight = [one["in_flight"] for one in up.get("/api/replicas")["replicas"] if one["model"] == "polly"]
    assert in_flight == [0]


def test_what_the_backend_does_not_do_is_refused(up: Frontend) -> None:
    body = {"model": "polly", "query": "a", "documents": ["b"]}
    answer = httpx.post(f"{up.url}/v1/rerank", json=body, trust_env=False, verify=PLAIN, timeout=60)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unsupported_request")
