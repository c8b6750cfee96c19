"""The engine's process, from the parent's side: started with a model, called, and ended; and why a load
failed, found in what it logged.
"""

import json
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import IO, Any
from urllib.parse import urlsplit

import anyio
import anyio.abc
import grpc

from remuda.backends.calls import Refused
from remuda.backends.llama_cpp import limits
from remuda.backends.llama_cpp.connection import EngineConnection, EngineGone, Json
from remuda.backends.llama_cpp.load_options import LoadPlan
from remuda.backends.llama_cpp.replies import metrics_response
from remuda.backends.llama_cpp.watchdog import BusiestThread, StepLimit, Watchdog
from remuda.core.entropy import Entropy
from remuda.rpc import backend_pb2 as pb

_ERROR = re.compile(r"^[\d.]+ E +(?P<text>.*)$")
_FATAL = re.compile(r"GGML_ASSERT|GGML_ABORT|terminate called|what\(\):|CUDA error|Error:")
_ECHOES = ("failed to load model", "model loading error", "trying to fit params")
_WRONG_HEADER = re.compile(r"invalid magic characters: .*")  # Followed by the first bytes of the file.
_LINES_MAX = 5
_LINE_LENGTH_MAX = 500


def reason_in(log: str) -> str:
    """The lines that tell most, joined, without those that only repeat that it failed; perhaps none."""
    reasons: list[str] = []
    for line in log.splitlines():
        error = _ERROR.match(line)
        text = " ".join((error["text"] if error else line).split())[:_LINE_LENGTH_MAX]
        if (error and not _is_echo(text)) or _FATAL.search(text):
            reasons.append(_WRONG_HEADER.sub("not a GGUF file (wrong header)", text))
    return "; ".join(dict.fromkeys(reasons[-_LINES_MAX:]))


def _is_echo(text: str) -> bool:
    return any(echo in text for echo in _ECHOES) and "error loading model" not in text


log = logging.getLogger(__name__)


class LoadFailed(Exception):
    """The model is not loaded; says why, in the engine's words where it had any."""


class Engine:
    """A process that holds one model. Use `load` to make one."""

    def __init__(
        self,
        process: anyio.abc.Process,
        connection: EngineConnection,
        plan: LoadPlan,
        properties: Json,
        pools: bool,
        token_s: float,
        at_load: pb.MetricsResponse,
    ) -> None:
        self._process = process
        limit = StepLimit(plan.step_s, token_s, plan.parallel, int(plan.settings["n_batch"]))
        self._watchdog = Watchdog(process.pid, connection, limit)
        self._watching = anyio.CancelScope()
        self.working = self._watchdog.working  # Surrounds each call for text.
        self._free_slots = anyio.Semaphore(plan.parallel)
        self._waiting = 0
        self.connection = connection
        self.plan = plan
        self.properties = properties
        self._at_load = at_load
        self.pools = pools  # One vector for a text, or one for each token of it.

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def context_size(self) -> int:
        """Tokens that one call may use, prompt and answer together."""
        return int(self.properties["default_generation_settings"]["n_ctx"])

    async def metrics(self) -> pb.MetricsResponse:
        """Of what clients asked for: what the load itself cost is not counted."""
        counters = await _metrics(self.connection)
        counters.tokens_generated -= self._at_load.tokens_generated
        counters.prompt_tokens_processed -= self._at_load.prompt_tokens_processed
        return counters

    @property
    def template_has_tools(self) -> bool:
        """Whether the model's chat template can tell it of tools."""
        able = self.properties.get("chat_template_caps", {}).get("supports_tools", True)
        return bool(able) or "chat_template_tool_use" in self.properties

    @property
    def ended(self) -> str:
        """What ended the process, unless `stop` did; empty while it runs."""
        if verdict := self._watchdog.verdict:
            return f"its watchdog: {verdict}"
        return _ending(self._process.returncode)

    @property
    def busy(self) -> bool:
        """Every slot is taken."""
        return self._free_slots.value == 0

    @asynccontextmanager
    async def slot(self) -> AsyncGenerator[None, None]:
        """One of the engine's slots. Waiting is done here, where giving up is free, not in its queue."""
        if self._waiting >= limits.CALLS_WAITING_MAX:
            message = f"{self._waiting} calls wait for this model already: try again later"
            raise Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, message)
        self._waiting += 1
        try:
            await self._free_slots.acquire()
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._free_slots.release()

    async def watch(self) -> None:
        """Until `stop`, or the end of the process: end it if one step takes too long."""
        with self._watching:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._watchdog.run, self._process.kill)
                await self._process.wait()
                tasks.cancel_scope.cancel()

    async def stop(self) -> None:
        """The process and what it held are gone when this returns; calls under way fail."""
        self._watching.cancel()
        await _end(self._process)


async def load(plan: LoadPlan, entropy: Entropy) -> Engine:
    """Start an engine with this model, however long that takes, or raise LoadFailed.

    Nothing of it is left if this is cancelled.
    """
    key = entropy.token()
    with tempfile.TemporaryFile() as stderr:
        process, log_fd = await _start(stderr)
        try:
            answer = await _order(
                process, {"settings": {**plan.settings, "api_keys": [key]}, "log_fd": log_fd}
            )
            if "address" not in answer:
                raise LoadFailed(_why(answer, process.returncode, _tail(stderr)))
            return await _meet(process, EngineConnection(_port(answer["address"]), key), plan)
        except BaseException:
            await _end(process)
            raise
        finally:
            _pass_on(_tail(stderr))


async def _meet(process: anyio.abc.Process, connection: EngineConnection, plan: LoadPlan) -> Engine:
    """Ask the engine, before the first request, what it made of its model."""
    try:
        properties = json.loads(await connection.get("/props"))
        pools = plan.embeds and await _pools(connection)
        token_s = 0.0 if plan.embeds or plan.reranks else await _token_s(process.pid, connection)
        at_load = await _metrics(connection)
    except (EngineGone, Refused, TimeoutError) as error:
        raise LoadFailed(f"the engine loaded the model, but does not answer: {error}") from error
    return Engine(process, connection, plan, properties, pools, token_s, at_load)


async def _metrics(connection: EngineConnection) -> pb.MetricsResponse:
    return metrics_response((await connection.get("/metrics")).decode())


async def _pools(connection: EngineConnection) -> bool:
    """Whether the model says how to make one vector of several; there is no other way to ask than to try."""
    try:
        await connection.post("/v1/embeddings", {"input": "a"})
    except Refused:
        return False
    return True


async def _token_s(pid: int, connection: EngineConnection) -> float:
    """CPU time of one token on this machine, when nothing else is asked of the engine."""
    busiest = BusiestThread(pid)
    try:
        await connection.post("/completion", {"prompt": "a", "n_predict": 1, "cache_prompt": False})
    except Refused:  # A model that writes no text.
        return 0.0
    return busiest.seconds()


def _port(address: str) -> int:
    port = urlsplit(address).port
    assert port, "an engine that has loaded says where it listens"
    return port


async def _start(stderr: IO[bytes]) -> tuple[anyio.abc.Process, int]:
    """The process, whose log goes to `said` until it has loaded, and the number by which it knows our log."""
    log_fd = os.dup(sys.stderr.fileno())
    try:
        process = await anyio.open_process(
            [sys.executable, "-P", "-m", "remuda.backends.llama_cpp.engine_main"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            pass_fds=(log_fd,),
            env={**os.environ, "GGML_NO_BACKTRACE": "1"},  # It would start a debugger on itself.
        )
    finally:
        os.close(log_fd)
    return process, log_fd


async def _order(process: anyio.abc.Process, order: Mapping[str, Any]) -> Any:
    """What became of it; an empty object if the process ended without a word."""
    assert process.stdin
    assert process.stdout
    answer = b""
    try:
        await process.stdin.send(json.dumps(order).encode() + b"\n")
        while not answer.endswith(b"\n"):
            answer += await process.stdout.receive()
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        await process.wait()
        return {}
    return json.loads(answer)


async def _end(process: anyio.abc.Process) -> None:
    with anyio.CancelScope(shield=True), anyio.move_on_after(limits.STOP_S):
        if process.returncode is None:
            process.kill()
        await process.aclose()


def _why(answer: Mapping[str, str], returncode: int | None, stderr: str) -> str:
    reason = reason_in(stderr)
    if "error" in answer:
        return reason or answer["error"]
    ending = f"the engine was ended by {_ending(returncode)} while it loaded the model"
    return f"{ending}: {reason}" if reason else ending


def _ending(returncode: int | None) -> str:
    if returncode is None:
        return ""
    try:
        return signal.Signals(-returncode).name
    except ValueError:
        return f"exit code {returncode}"


def _tail(stderr: IO[bytes]) -> str:
    size = stderr.seek(0, os.SEEK_END)
    stderr.seek(max(0, size - limits.LOAD_LOG_BYTES_MAX))
    return stderr.read().decode(errors="replace")


def _pass_on(text: str) -> None:
    for line in text.splitlines():
        log.info("engine_said %s", line)
