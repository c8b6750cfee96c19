"""Tokens per second of the llama-cpp backend over gRPC, against xllamacpp called directly in this process.

    uv run --group dev python -m bench.engine [--model FILE] [--threads 1] [--tokens 128] [--rounds 5]

Both hold the same model with the same threads and slots, and stream answers to the same requests. A busy
neighbour slows both: rounds alternate between them, and the ratio is the median of those of each round.
Without --model it fetches SmolLM2.
Aim: at least 0.95 of the direct call's rate, alone and with 8 at a time.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import grpc
import xllamacpp  # type: ignore[import-untyped]
from tests.support.models import smollm2

from remuda.rpc import backend_pb2 as pb
from remuda.rpc.backend_pb2_grpc import BackendStub

SLOTS = 8
CONTEXT = 4096
BATCH = 512
PROMPT_CACHE_MIB = 1024  # As the backend has it.
START_S = 60.0
AIM = 0.95
TEMPERATURE = 0.8
TOP_K = 40
PROMPT = "Number {number}. Tell a long story about a river, a bridge and the people who built it."

Streamed = Callable[[int], int]  # From a prompt's number to how many tokens came.


@dataclass(frozen=True, slots=True)
class Job:
    model: Path
    threads: int
    tokens: int
    rounds: int


def main() -> None:
    job = _job()
    with _through_grpc(job) as ours:
        direct = _direct(job)
        print(f"{job.model.name}, {job.threads} engine thread(s), {job.tokens} tokens for each answer")
        for at_once in (1, SLOTS):
            _compare(job, ours, direct, at_once)


def _compare(job: Job, ours: Streamed, direct: Streamed, at_once: int) -> None:
    kinds = {"grpc": ours, "direct": direct}
    for stream in kinds.values():
        _rate(stream, at_once)  # Prompts are in the cache afterwards, of both.
    rates: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(job.rounds):
        for kind in sorted(kinds, reverse=bool(number % 2)):
            rates[kind].append(_rate(kinds[kind], at_once))
    ratio = median(ours / direct for ours, direct in zip(rates["grpc"], rates["direct"], strict=True))
    shown = ", ".join(
        f"{kind} {median(values):.1f} tok/s ({min(values):.1f}-{max(values):.1f})"
        for kind, values in rates.items()
    )
    print(f"{at_once} at a time: {shown}, ratio {ratio:.3f} (aim {AIM})", flush=True)


def _rate(stream: Streamed, at_once: int) -> float:
    """Tokens per second of this many answers together."""
    with ThreadPoolExecutor(at_once) as pool:
        began = time.perf_counter()
        tokens = sum(pool.map(stream, range(at_once)))
        return tokens / (time.perf_counter() - began)


def _direct(job: Job) -> Streamed:
    params = xllamacpp.CommonParams()
    params.model.path = str(job.model)
    params.n_ctx = CONTEXT
    params.n_parallel = SLOTS
    params.n_batch = params.n_ubatch = BATCH
    params.cache_ram_mib = PROMPT_CACHE_MIB
    params.kv_unified = True
    params.verbosity = 1
    params.n_gpu_layers = 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = job.threads
    server = xllamacpp.Server(params)

    def stream(number: int) -> int:
        body = {
            "prompt": PROMPT.format(number=number),
            "max_tokens": job.tokens,
            "temperature": TEMPERATURE,
            "top_k": TOP_K,
            "min_p": 0,
            "seed": number,
            "ignore_eos": True,
            "stream": True,
        }
        last: list[dict[str, Any]] = []

        def keep(event: dict[str, Any]) -> None:
            last[:] = [event]

        server.handle_completions(body, keep)
        return int(last[0]["usage"]["completion_tokens"])

    return stream


@contextmanager
def _through_grpc(job: Job) -> Iterator[Streamed]:
    command = [sys.executable, "-m", "remuda.backends.llama_cpp", "--addr", "127.0.0.1:0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        address = next(line for line in process.stderr if "listening" in line).split("address=")[1].split()[0]
        with grpc.insecure_channel(address) as channel:
            backend = BackendStub(channel)
            options = pb.ModelOptions(
                Model="bench",
                ModelFile=str(job.model),
                ContextSize=CONTEXT,
                Threads=job.threads,
                NBatch=BATCH,
                MMap=True,
                Options=[f"parallel:{SLOTS}"],
            )
            loaded = backend.LoadModel(options, timeout=START_S)
            assert loaded.success, loaded.message

            def stream(number: int) -> int:
                request = pb.PredictOptions(
                    Prompt=PROMPT.format(number=number),
                    Tokens=job.tokens,
                    Temperature=TEMPERATURE,
                    TopK=TOP_K,
                    Seed=number,
                    IgnoreEOS=True,
                )
                return int([reply.tokens for reply in backend.PredictStream(request)][-1])

            yield stream
        process.terminate()


def _job() -> Job:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--model", type=Path, help="a GGUF file")
    arguments.add_argument("--threads", type=int, default=1)
    arguments.add_argument("--tokens", type=int, default=128)
    arguments.add_argument("--rounds", type=int, default=5)
    given = arguments.parse_args()
    return Job(given.model or smollm2(), given.threads, given.tokens, given.rounds)


if __name__ == "__main__":
    main()
