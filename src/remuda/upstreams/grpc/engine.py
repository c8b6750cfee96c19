"""Backend processes as the scheduler uses them: load a model, check health."""

from typing import Final

import anyio
from google.protobuf.message import DecodeError

from remuda.core.errors import BackendFailed, NodeUnreachable, PeerFailed
from remuda.inference.failures import UpstreamFailed
from remuda.inference.model import ReplicaEndpoint
from remuda.models.config import ModelConfig
from remuda.rpc import backend_pb2 as pb
from remuda.scheduler.model import Place
from remuda.upstreams.grpc import limits
from remuda.upstreams.grpc.channels import Channel, GrpcCall
from remuda.upstreams.grpc.error_mapping import words_of
from remuda.upstreams.grpc.loading import model_options
from remuda.upstreams.http.client import Pool, ServerAddress, ServerTurnedAway
from remuda.upstreams.http.refusals import NOT_READY, REFUSAL_HEADER
from remuda.upstreams.http2 import failures
from remuda.upstreams.http2.failures import CallFailed, Unreachable, Vanished

HTTP: Final = "http"
_HEALTH: Final = pb.HealthMessage().SerializeToString()
_SIGNS_OF_LIFE: Final = ("/health", "/v1/models")  # Not every server has the first.
_OK: Final = 200
_MISSING: Final = 404
_SHUT: Final = (401, 403)


class GrpcEngine:
    """Implements scheduler.ports.ReplicaEngine."""

    def __init__(self, http: Pool) -> None:
        self._http = http

    async def load(self, endpoint: ReplicaEndpoint, model: ModelConfig, place: Place) -> None:
        """Has no time limit of its own: the caller sets one."""
        if endpoint.protocol == HTTP:
            await self._until_it_answers(endpoint, model)
            return
        options = model_options(model, place)
        try:
            answer = await _answer(endpoint, "LoadModel", options.SerializeToString())
            result = pb.Result.FromString(answer)
        except CallFailed as failed:
            raise _load_failure(model, failed) from failed
        except DecodeError as error:
            raise BackendFailed(f"loading {model.id} was answered with what cannot be understood") from error
        if not result.success:
            words = result.message[: limits.WORDS_CHARS_MAX] or "the backend does not say why"
            raise BackendFailed(f"{model.id} could not be loaded: {words}")

    async def healthy(self, endpoint: ReplicaEndpoint) -> bool | None:
        with anyio.move_on_after(limits.HEALTH_S):
            return await (
                _http_health(self._http, endpoint) if endpoint.protocol == HTTP else _health(endpoint)
            )
        return None

    async def _until_it_answers(self, endpoint: ReplicaEndpoint, model: ModelConfig) -> None:
        """Its worker said that it runs: if it says for long that it does not, it has ended or was stopped."""
        missing_since_s = 0.0
        while True:
            try:
                with anyio.move_on_after(limits.HTTP_CALL_S):
                    status, missing = await _status(self._http, endpoint)
                    if status == _OK:
                        return
                    missing_since_s = (missing_since_s or anyio.current_time()) if missing else 0.0
                    if status in _SHUT:
                        raise BackendFailed(
                            f"the server of {model.id} does not let this frontend in: {status}"
                        )
            except UpstreamFailed:
                pass  # It does not listen yet, or hangs up until it is ready.
            if missing_since_s and anyio.current_time() - missing_since_s > limits.HTTP_MISSING_S:
                raise BackendFailed(f"the server of {model.id} ended before it answered")
            await anyio.sleep(limits.HTTP_POLL_S)


def _load_failure(model: ModelConfig, failed: CallFailed) -> PeerFailed:
    """A backend that refuses connections has failed; of one out of reach another node knows nothing yet."""
    words = words_of(failed)
    if isinstance(failed, Unreachable | Vanished) and not isinstance(failed, failures.BackendTurnedAway):
        return NodeUnreachable(f"the backend of {model.id} cannot be reached: {words}")
    return BackendFailed(f"loading {model.id} failed: {failed.code.name}: {words}")


async def _health(endpoint: ReplicaEndpoint) -> bool | None:
    try:
        reply = pb.Reply.FromString(await _answer(endpoint, "Health", _HEALTH))
    except failures.BackendTurnedAway:
        return False
    except (CallFailed, DecodeError):
        return None
    return True if reply.message == b"OK" else None


async def _answer(endpoint: ReplicaEndpoint, method: str, request: bytes) -> bytes:
    """Over a connection of its own, by which it is seen whether the port is listened on now."""
    channel = Channel(endpoint.address, endpoint.token)
    try:
        with GrpcCall(await channel.call(method, request), limits.LOAD_S) as call:
            return await call.whole()
    finally:
        channel.close()


async def _http_health(pool: Pool, endpoint: ReplicaEndpoint) -> bool | None:
    try:
        status, missing = await _status(pool, endpoint)
        return False if missing else True if status == _OK else None
    except ServerTurnedAway:
        return False
    except UpstreamFailed:
        return None


async def _status(pool: Pool, endpoint: ReplicaEndpoint) -> tuple[int, bool]:
    """What a server that speaks HTTP answers when it is asked how it is, and whether it is its worker that
    answers, because no such process takes connections."""
    address, status, missing = ServerAddress.parsed(endpoint.address), 0, False
    for path in _SIGNS_OF_LIFE:
        lines = (
            f"GET {endpoint.path}{path} HTTP/1.1",
            f"Host: {endpoint.address}",
            *((f"Authorization: Bearer {endpoint.token}",) if endpoint.token else ()),
        )
        head = "\r\n".join((*lines, "", "")).encode()
        answer = await pool.exchange(address, head, b"")
        status, missing = answer.status, answer.headers.get(REFUSAL_HEADER) == NOT_READY
        pool.release(answer)
        if status != _MISSING:
            break
    return status, missing
