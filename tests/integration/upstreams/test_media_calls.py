"""Speech, images and sounds end to end: files of requests on a worker that is a process, read and written by
a backend that is one.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import nats as nats_client
import pytest
from anyio.to_thread import run_sync

from remuda.core.clock import SystemClock
from remuda.core.entropy import SeededEntropy
from remuda.core.tasks import TaskOwner
from remuda.inference.failures import Fault, UpstreamFailed
from remuda.inference.media_requests import (
    ImageRequest,
    InputFile,
    MediaRequest,
    SoundRequest,
    SpeechRequest,
    TranscriptionRequest,
)
from remuda.inference.model import InferenceCall, ReplicaEndpoint, RequestKind
from remuda.models.config import ModelConfig
from remuda.upstreams.grpc.upstream import GrpcUpstream
from remuda.upstreams.http import request_files
from remuda.upstreams.http.client import Pool
from remuda.upstreams.http.request_files import RequestFiles
from tests.integration.upstreams import grpc_scripts
from tests.peers.backend_client import BackendClient
from tests.peers.localai_files import LocalAiFiles
from tests.peers.localai_frontend import LocalAiFrontend
from tests.peers.shell_backend.install import install_shell_backend
from tests.support.answer_sinks import MediaClient
from tests.support.nats_servers import plain_server
from tests.support.processes import TOKEN, Ranch
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

NAME = "gpu-1"
MODEL = ModelConfig.model_validate({"name": "polly", "backend": "shell", "parameters": {"model": "parrot"}})
KINDS: dict[type, RequestKind] = {
    ImageRequest: RequestKind.IMAGE,
    TranscriptionRequest: RequestKind.TRANSCRIPTION,
    SpeechRequest: RequestKind.SPEECH,
    SoundRequest: RequestKind.SOUND,
}


@dataclass
class Rig:
    """The frontend's end, and a worker process with a backend process."""

    backend: ReplicaEndpoint
    worker: ReplicaEndpoint
    staging: Path
    tasks: TaskOwner = field(default_factory=TaskOwner)

    async def ask(self, request: MediaRequest) -> MediaClient:
        async with self.asking(request) as client:
            return client

    @asynccontextmanager
    async def asking(self, request: MediaRequest) -> AsyncIterator[MediaClient]:
        pool, client = Pool(request_files.TIMEOUTS), MediaClient()
        files = RequestFiles(pool, SeededEntropy(7), self.tasks)
        upstream = GrpcUpstream(self.backend, SystemClock(), SeededEntropy(7), files=files)
        call = InferenceCall(KINDS[type(request)], request, b"", MODEL, "r1", 0, files=self.worker)
        try:
            await upstream.serve(call, client)
            yield client
        finally:
            await upstream.aclose()
            pool.close()

    def held(self) -> list[str]:
        """Files of requests on the worker."""
        return [path.name for path in self.staging.rglob("*") if path.is_file()]


@pytest.fixture(scope="module")
async def rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    ranch = Ranch(tmp_path_factory.mktemp("ranch"))
    async with (
        plain_server(tmp_path_factory.mktemp("nats")) as nats,
        LocalAiFrontend(token=TOKEN) as frontend,
    ):
        install_shell_backend(ranch.folder / NAME / "worker" / "backends" / "shell")
        worker = ranch.worker(
            NAME, LOCALAI_REGISTER_TO=frontend.url, LOCALAI_NATS_URL=nats.url, LOCALAI_NODE_NAME=NAME
        )
        try:
            await run_sync(worker.wait_for, "ready")
            bus = await nats_client.connect(nats.url)
            node = frontend.node(NAME)
            wanted = json.dumps({"backend": "shell", "model_id": "polly"}).encode()
            reply = json.loads(
                (await bus.request(f"nodes.{node.id}.backend.install", wanted, timeout=60)).data
            )
            assert reply["success"], reply
            await bus.close()
            async with BackendClient(reply["address"], TOKEN) as client:
                assert (await client.load_model(Model="parrot")).success
            server = ReplicaEndpoint(str(node.registrations[-1]["http_address"]), token=TOKEN)
            staging = ranch.folder / NAME / "staging"
            yield Rig(ReplicaEndpoint(reply["address"], token=TOKEN), server, staging)
        finally:
            await run_sync(ranch.clear)


SPEECH = InputFile("speech.wav", b"the house on the hill")


async def test_a_recording_is_read_by_the_backend(rig: Rig) -> None:
    client = await rig.ask(TranscriptionRequest(model="polly", audio=SPEECH, language="en"))

    assert client.heard is not None
    assert (client.heard.text, client.heard.language, client.heard.duration_s) == (
        "the house on the hill",
        "en",
        2.5,
    )
    first, second, *_ = client.heard.segments
    assert (first.text, first.start_s, first.end_s, second.start_s) == ("the", 0.0, 1.0, 1.0)
    assert rig.held() == []


async def test_a_recording_is_written_down_while_it_is_heard(rig: Rig) -> None:
    client = await rig.ask(TranscriptionRequest(model="polly", audio=SPEECH, stream=True))

    assert client.parts == ["the", "house", "on", "the", "hill"]
    assert client.heard is not None
    assert client.heard.text == "the house on the hill"


async def test_speech_is_fetched_from_the_worker(rig: Rig) -> None:
    client = await rig.ask(SpeechRequest(model="polly", text="hello there", voice="joe"))

    assert (client.sample_rate, client.sound, client.ended) == (0, b"joe: hello there", True)
    assert rig.held() == []


async def test_a_voice_may_be_a_recording(rig: Rig) -> None:
    client = await rig.ask(
        SpeechRequest(model="polly", text="hello", voice=InputFile("me.wav", b"my own voice"))
    )

    assert client.sound == b"my own voice: hello"


async def test_speech_is_streamed(rig: Rig) -> None:
    client = await rig.ask(SpeechRequest(model="polly", text="hello there", stream=True))

    assert (client.sample_rate, client.sound, client.ended) == (16000, b"hellothere", True)


async def test_images_are_made_from_images(rig: Rig) -> None:
    request = ImageRequest(
        model="polly",
        prompt="a house",
        width=64,
        height=32,
        seed=5,
        count=2,
        source=InputFile("a.png", b"sketch"),
        references=(InputFile("b.png", b"style"), InputFile("c.png", b"mood")),
    )

    client = await rig.ask(request)

    assert client.files == [b"a house 64x32 5 sketch style mood", b"a house 64x32 6 sketch style mood"]
    assert rig.held() == []


async def test_a_sound_is_made_from_a_sound(rig: Rig) -> None:
    client = await rig.ask(SoundRequest(model="polly", text="rain", source=InputFile("a.wav", b"wind")))

    assert client.sound == b"rain wind"


@pytest.mark.parametrize(("text", "words"), [("fail", "lost its voice"), ("nothing", "wrote no output")])
async def test_a_backend_that_fails_leaves_nothing(rig: Rig, text: str, words: str) -> None:
    with pytest.raises(UpstreamFailed, match=words) as failed:
        await rig.ask(SpeechRequest(model="polly", text=text, voice=SPEECH))

    assert (failed.value.fault, rig.held()) == (Fault.FAILED, [])


async def test_files_go_through_a_localai_workers_server_too(rig: Rig, tmp_path: Path) -> None:
    with LocalAiFiles(tmp_path / "peer", token=TOKEN).serving() as peer:
        there = Rig(rig.backend, ReplicaEndpoint(peer.address, token=TOKEN), peer.root / "staging")
        client = await there.ask(SpeechRequest(model="polly", text="hello", voice=SPEECH))

        assert client.sound == b"the house on the hill: hello"
        assert sum(path.stat().st_size for path in there.staging.rglob("*[!6]") if path.is_file()) == 0


async def test_a_client_that_leaves_leaves_no_files(rig: Rig) -> None:
    async def never(request: object, context: object) -> None:
        await anyio.sleep_forever()

    async with grpc_scripts.scripted(TTS=never) as address, rig.tasks.open():
        stuck = Rig(ReplicaEndpoint(address), rig.worker, rig.staging, rig.tasks)
        async with anyio.create_task_group() as leaving:
            leaving.start_soon(stuck.ask, SpeechRequest(model="polly", text="x", voice=SPEECH))
            await wait_until(lambda: len(rig.held()) > 1, what="files of the request")
            leaving.cancel_scope.cancel()
        await wait_until(lambda: not rig.held(), what="their removal")


async def test_a_backend_without_streams_answers_at_once(rig: Rig) -> None:
    async def transcribe(request: object, context: object) -> bytes:
        return b"\x12\x05hello"

    async with grpc_scripts.scripted(AudioTranscription=transcribe) as address:
        plain = Rig(ReplicaEndpoint(address), rig.worker, rig.staging)
        client = await plain.ask(TranscriptionRequest(model="polly", audio=SPEECH, stream=True))

    assert (client.parts, client.heard and client.heard.text) == ([], "hello")


async def test_what_a_backend_does_not_do_is_told(rig: Rig) -> None:
    async with grpc_scripts.scripted() as address:
        plain = Rig(ReplicaEndpoint(address), rig.worker, rig.staging)
        with pytest.raises(UpstreamFailed, match="polly does not do speech"):
            await plain.ask(SpeechRequest(model="polly", text="x"))

    assert rig.held() == []
