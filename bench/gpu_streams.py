"""What a whole `up` adds to a real engine on a GPU: time to the first token, and tokens per second.

    python -m bench.gpu_streams --llama-server PATH --model FILE.gguf [--at-once 1 16 32 64] [--rounds 7]

Each round asks the engine's own port and the frontend's for the same streams, in turns; ratios are the median
of those of all rounds. It is the same process that answers both. For a machine with an NVIDIA GPU.
Aim: the first token within 1.1 times direct.
"""

import argparse
import asyncio
import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.gateway_load import FLOW_LIMIT_S, HOST, OPENAI, Place, Reader
from bench.gpu_memory import Fleet, fleet

AIM: Final = 1.1
MODEL: Final = "streams"
SLOTS: Final = 64
TOKENS_OF_CONTEXT: Final = 512  # For each slot.
WARM_UP: Final = 1
MS: Final = 1e3
CONFIG = """\
name: {name}
backend: llama-server
context_size: {context}
parallel: {slots}
gpu_layers: 99
parameters:
  model: shared.gguf
"""


@dataclass(frozen=True, slots=True)
class Round:
    first_s: float
    """The median of all streams."""
    tokens_per_s: float


class _Timed(Reader):
    """Knows when the first token came, and when the stream ended."""

    def ask(self) -> None:
        self._asked_s = time.perf_counter()
        self.first_s = 0.0
        super().ask()

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        if self.tokens and not self.first_s:
            self.first_s = time.perf_counter() - self._asked_s

    def on_message_complete(self) -> None:
        if not self.over.done():
            self.over.set_result(None)


async def asked(place: Place, requests: list[bytes]) -> Round:
    """All at once, on connections that are open already."""
    loop = asyncio.get_running_loop()
    readers: list[_Timed] = []
    for request in requests:
        whole = place.request(request)
        _, reader = await loop.create_connection(lambda w=whole: _Timed(w, OPENAI.mark), HOST, place.port)  # type: ignore[misc]
        readers.append(reader)
    began_s = time.perf_counter()
    try:
        for reader in readers:
            reader.ask()
        await asyncio.wait_for(asyncio.gather(*(reader.over for reader in readers)), FLOW_LIMIT_S)
    finally:
        for reader in readers:
            reader.transport.abort()
    took_s = time.perf_counter() - began_s
    return Round(
        statistics.median(one.first_s for one in readers), sum(one.tokens for one in readers) / took_s
    )


def requests(count: int, tokens: int, turn: str) -> list[bytes]:
    """Prompts that no cache has seen."""
    return [
        json.dumps(
            {
                "model": MODEL,
                "stream": True,
                "max_tokens": tokens,
                "temperature": 0,
                "messages": [
                    {"role": "user", "content": f"Number {turn}.{number}: tell a long story about a river."}
                ],
            }
        ).encode()
        for number in range(count)
    ]


async def measure(direct: Place, frontend: Place, at_once: int, given: argparse.Namespace) -> str:
    seen: dict[str, list[Round]] = {"direct": [], "up": []}
    for number in range(-WARM_UP, given.rounds):
        for name, place in (("direct", direct), ("up", frontend)):
            found = await asked(place, requests(at_once, given.tokens, f"{name}.{at_once}.{number}"))
            if number >= 0:
                seen[name].append(found)
    pairs = list(zip(seen["direct"], seen["up"], strict=True))
    later = statistics.median(up.first_s / alone.first_s for alone, up in pairs)
    rate = statistics.median(up.tokens_per_s / alone.tokens_per_s for alone, up in pairs)
    firsts = {name: statistics.median(one.first_s for one in rounds) * MS for name, rounds in seen.items()}
    rates = {name: statistics.median(one.tokens_per_s for one in rounds) for name, rounds in seen.items()}
    return (
        f"{at_once:3d} at once: first token {firsts['direct']:.0f} ms direct, {firsts['up']:.0f} ms by `up`:"
        f" {later:.2f} times (aim {AIM}); {rates['direct']:.0f} and {rates['up']:.0f} tokens/s: {rate:.3f}"
    )


def engine_port(running: Fleet, program: Path) -> int:
    for process in running.started.tree():
        words = process.cmdline()
        if words and Path(words[0]).name == program.name:
            return int(words[words.index("--port") + 1])
    raise SystemExit("the engine's process was not found")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--llama-server", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 16, 32, 64])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--server-options", default=f"--parallel {SLOTS}", help="more words for llama-server")
    given = parser.parse_args()
    given.context = SLOTS * TOKENS_OF_CONTEXT
    with fleet(given) as running:
        config = CONFIG.format(name=MODEL, context=given.context, slots=SLOTS)
        running.client.post("/api/models", json={"config": config}).raise_for_status()
        running.ask(MODEL)
        frontend = Place(running.client.base_url.port or 80)
        direct = Place(engine_port(running, given.llama_server))
        for at_once in given.at_once:
            running.say(asyncio.run(measure(direct, frontend, at_once, given)))


if __name__ == "__main__":
    main()
