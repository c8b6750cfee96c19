"""The life of a backend process: read its arguments, listen, answer calls that carry the shared token, end
in order, or at once when its parent is gone: a worker that was killed must not leave engines behind.

Log lines are plain text on standard error, by the standard library: structlog alone takes a third of the
time in which a backend starts.
"""

import argparse
import errno
import hmac
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import NoReturn

import anyio
import grpc

from remuda.backends.calls import Backend, Calls
from remuda.core import durations

MESSAGE_BYTES_MAX = 50 << 20  # Of one gRPC message, either way: what LocalAI's peers use.
DRAIN_S = 5.0  # Calls in flight get this long when a backend is to stop.
FAILED_DRAIN_S = 1.0  # And so long when it has failed: all that is left to send them is an error.
CLOSE_S = 3.0  # Patience with an engine that lets go of its model.
EXIT_S = 12.0  # From the signal to the end, whatever hangs: sooner than the 15 s after which workers kill.
PARENT_WATCH_EVERY_S = 2.0


SWITCH_VARIABLE = "LOCALAI_BACKEND_PARENT_WATCH"
INTERVAL_VARIABLE = "LOCALAI_BACKEND_PARENT_WATCH_INTERVAL"

log = logging.getLogger(__name__)


def watch_parent(
    environ: Mapping[str, str], orphaned: Callable[[], None], *, getppid: Callable[[], int] = os.getppid
) -> threading.Thread | None:
    """Call `orphaned` once, from a thread, when this process gets another parent.

    None when there is nothing to watch: it was switched off, or the parent is the machine's first process.
    """
    parent = getppid()
    if parent <= 1 or _switched_off(environ):
        return None
    every = watch_interval(environ)
    thread = threading.Thread(
        target=_watch, args=(parent, every, orphaned, getppid), name="parent-watch", daemon=True
    )
    thread.start()
    return thread


def watch_interval(environ: Mapping[str, str]) -> timedelta:
    """How often to look: a duration as Go writes them, or plain seconds."""
    usual = timedelta(seconds=PARENT_WATCH_EVERY_S)
    text = environ.get(INTERVAL_VARIABLE, "").strip()
    if not text:
        return usual
    try:
        interval = _span(text)
    except (ValueError, OverflowError):
        interval = timedelta(0)
    if interval <= timedelta(0):
        log.warning("parent_watch_interval_ignored value=%r accepted=%r", text, durations.ACCEPTED)
        return usual
    return interval


def _span(text: str) -> timedelta:
    try:
        return timedelta(seconds=float(text))
    except ValueError:
        return durations.parse(text)


def _switched_off(environ: Mapping[str, str]) -> bool:
    return environ.get(SWITCH_VARIABLE, "").strip().lower() in ("false", "0", "no", "off")


def _watch(parent: int, every: timedelta, orphaned: Callable[[], None], getppid: Callable[[], int]) -> None:
    pause = threading.Event()  # Never set: waiting for it is how a thread lets time pass.
    while getppid() == parent:
        pause.wait(every.total_seconds())
    log.warning("parent_gone pid=%d", parent)
    orphaned()


TOKEN_VARIABLE = "LOCALAI_GRPC_AUTH_TOKEN"


class TokenCheck(grpc.aio.ServerInterceptor):  # type: ignore[misc] # grpc has no types.
    """Refuses calls without `authorization: Bearer <token>` before any of their messages is read."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()
        # Of this kind for every method: it can answer before, and without, a request.
        self._refusal = grpc.stream_stream_rpc_method_handler(_refuse)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler:
        given = dict(handler_call_details.invocation_metadata).get("authorization", "")
        if hmac.compare_digest(given.encode(), self._expected):
            return await continuation(handler_call_details)
        return self._refusal


async def _refuse(_requests: object, context: grpc.aio.ServicerContext) -> NoReturn:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "invalid token")
    raise AssertionError("abort does not return")


ADDRESS_DEFAULT = "localhost:50051"
_PORT_MAX = 65535
_STDERR = 2
_OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.so_reuseport", 0),  # Else a second process could listen beside us and take half of the calls.
)


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """`HOST:PORT`, an IPv6 host in brackets; ValueError says what is wrong. Port 0: any that is free."""
    host, _, port = text.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not bare or (":" in bare and bare == host):
        raise ValueError(f"{text!r} is not HOST:PORT, such as 127.0.0.1:50051 or [::1]:50051")
    if not (port.isascii() and port.isdigit() and int(port) <= _PORT_MAX):
        raise ValueError(f"{port!r} in {text!r} is not a port number up to {_PORT_MAX}")
    return Address(bare, int(port))


def serve(backend: Backend, argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run `backend` until SIGTERM, SIGINT or the end of its parent; returns the process's exit code.

    When the backend fails, the process ends here. `argv` is what follows the program's name. Raises
    SystemExit(2) when it cannot be understood.
    """
    address = _address_of(argv)
    _fill_standard_descriptors()
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    watch_parent(environ, _end_as_if_told)
    try:
        anyio.run(
            _serve, backend, address, environ.get(TOKEN_VARIABLE, ""), backend_options={"use_uvloop": True}
        )
    except _CannotListen as error:
        print(f"cannot listen on {address}: {error}", file=sys.stderr)
        return 1
    return 0


def _address_of(argv: Sequence[str]) -> Address:
    arguments = argparse.ArgumentParser(prog="backend", description="Serves backend.proto over gRPC.")
    arguments.add_argument(
        "--addr", metavar="HOST:PORT", default=ADDRESS_DEFAULT, help="where to listen (%(default)s)"
    )
    given: str = arguments.parse_args(argv).addr
    try:
        return parse_address(given)
    except ValueError as error:
        arguments.error(f"--addr: {error}")


def _fill_standard_descriptors() -> None:
    """LocalAI's worker starts backends without a standard input; libuv aborts when it gets that number."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        pass
    os.close(descriptor)


async def _serve(backend: Backend, address: Address, token: str) -> None:
    server = grpc.aio.server(interceptors=[TokenCheck(token)] if token else [], options=_OPTIONS)
    server.add_generic_rpc_handlers((Calls(backend).handlers(),))
    # Held to the end: a second signal does not cut short what the first began.
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        port = _listen(server, address)
        async with anyio.create_task_group() as tasks:
            await tasks.start(backend.run)
            await server.start()
            log.info("listening address=%s token_required=%s", Address(address.host, port), bool(token))
            failed = await _until_failed(backend, signals)
            _exit_in_time(int(failed))
            await server.stop(FAILED_DRAIN_S if failed else DRAIN_S)
            tasks.cancel_scope.cancel()
        with anyio.move_on_after(CLOSE_S):
            await backend.close()
        log.info("stopped")
        if failed:
            os._exit(1)  # At once: until it is gone, the worker takes this process for one that can serve.


async def _until_failed(backend: Backend, signals: AsyncIterator[signal.Signals]) -> bool:
    """Returns when it fails, or when it is asked to stop (not a failure)."""
    failed = False

    async def watch() -> None:
        nonlocal failed
        reason = await backend.failed()
        log.error("stopping reason=%r", reason)
        failed = True
        either.cancel_scope.cancel()

    async with anyio.create_task_group() as either:
        either.start_soon(watch)
        async for number in signals:
            log.info("stopping signal=%s", signal.Signals(number).name)
            break
        either.cancel_scope.cancel()
    return failed


class _CannotListen(Exception):
    """The address is taken, or is none of this machine's."""


def _listen(server: grpc.aio.Server, address: Address) -> int:
    """The port now listened on."""
    _check_free(address)
    try:
        port: int = server.add_insecure_port(str(address))
    except RuntimeError as error:
        raise _CannotListen(str(error)) from error
    return port


def _check_free(address: Address) -> None:
    """gRPC is content with one address of several, as with IPv6 where IPv4 is taken; our callers are not."""
    try:
        places = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise _CannotListen(f"{address.host} is not known: {error.strerror}") from error
    for family, *_, place in places:
        try:
            socket.create_server(place[:2], family=family).close()
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise _CannotListen(f"port {address.port} is in use") from error


def _end_as_if_told() -> None:
    _exit_in_time()  # Also if the event loop hangs and no signal reaches it.
    os.kill(os.getpid(), signal.SIGTERM)


def _exit_in_time(code: int = 0) -> None:
    """From here on the process ends, whatever an engine's threads and destructors do."""
    last_resort = threading.Timer(EXIT_S, os._exit, (code,))
    last_resort.daemon = True
    last_resort.start()
