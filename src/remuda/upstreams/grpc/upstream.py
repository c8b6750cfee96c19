"""A replica that speaks backend.proto, as the router sees it: a call goes in, OpenAI's answer comes out."""

from dataclasses import dataclass

import grpc.aio
from google.protobuf.message import DecodeError

from remuda.core.clock import Clock
from remuda.core.entropy import Entropy
from remuda.inference.model import Call, Sink
from remuda.inference.requests import ChatRequest
from remuda.rpc import backend_pb2 as pb
from remuda.upstreams.grpc import limits, predicting, troubles
from remuda.upstreams.grpc.channels import Channel
from remuda.upstreams.grpc.exchange import Exchange, HungUp, Silence
from remuda.upstreams.grpc.hearing import Hearing, Said
from remuda.upstreams.grpc.rendering import ChatPen, Pen

_EVENTS = b"text/event-stream"
_JSON = b"application/json"


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a backend may say nothing."""

    silence_s: float = limits.SILENCE_S
    whole_s: float = limits.WHOLE_S


class GrpcUpstream:
    """`Upstream` over one channel."""

    def __init__(self, channel: Channel, clock: Clock, entropy: Entropy, patience: Patience) -> None:
        self._channel = channel
        self._clock = clock
        self._entropy = entropy
        self._patience = patience

    async def serve(self, call: Call, sink: Sink) -> None:
        model = call.model.id
        try:
            await self._serve(call, sink)
        except grpc.aio.AioRpcError as error:
            raise troubles.failure_of(
                error.code(), error.details() or "", model, heard=call.tally.first_token_s is not None
            ) from error
        except Silence as silence:
            raise troubles.silent(model, silence.seconds) from silence
        except HungUp as error:
            raise troubles.broke(model, "its connection was closed") from error
        except DecodeError as error:
            raise troubles.undecodable(model) from error

    async def _serve(self, call: Call, sink: Sink) -> None:
        request = call.request
        assert isinstance(request, ChatRequest)
        pen = ChatPen(call, request)
        (generation,) = predicting.chat_generations(call, request, self._draw)
        await self._stream(call, 0, generation.options, pen, sink)

    async def _stream(self, call: Call, index: int, options: pb.PredictOptions, pen: Pen, sink: Sink) -> None:
        hearing = Hearing(options.Tokens, wary=predicting.is_llama(call.model))
        open_call = self._channel.stream("PredictStream", options.SerializeToString())
        decode, opened = pb.Reply.FromString, False
        with Exchange(open_call, self._patience.silence_s) as exchange:
            while (message := await exchange.read()) is not None:
                said = hearing.hear(decode(message))
                if said is None:
                    continue
                self._heard(call)
                if opened:
                    await sink.write(pen.piece(index, said))
                else:
                    opened = True
                    await sink.begin(200, _EVENTS)
                    await sink.write(pen.opening(index) + pen.piece(index, said))
        last = hearing.end() or Said()
        call.tally.prompt_tokens = hearing.usage.prompt_tokens
        call.tally.completion_tokens += hearing.usage.completion_tokens
        if not opened:
            await sink.begin(200, _EVENTS)
        rest = b"" if opened else pen.opening(index)
        if last.content:
            rest += pen.piece(index, last)
        await sink.write(rest + pen.closing(index, hearing.finish_reason) + pen.ending(hearing.usage))

    def _heard(self, call: Call) -> None:
        now_s = self._clock.monotonic()
        if call.tally.first_token_s is None:
            call.tally.first_token_s = now_s
        call.tally.last_token_s = now_s

    def _draw(self) -> int:
        return int(self._entropy.fraction() * predicting.SEEDS)
