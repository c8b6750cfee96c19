"""How every built-in backend begins, guards its calls, and ends."""

import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from remuda.host.ports import free_port
from remuda.rpc import backend_pb2 as pb
from tests.integration.backends.programs import ECHO, BackendProcess, loaded, running, status_of
from tests.support.waiting import wait_until_blocking

MIB = 1 << 20
UNRULY = "tests.integration.backends.unruly"
# Ends when the last one who could write to it is gone.
KEEPER = f"import subprocess, sys; subprocess.Popen([sys.executable, '-m', '{ECHO}', *sys.argv[1:]]); input()"


def test_health_is_ok_before_any_model_is_loaded(tmp_path: Path) -> None:
    with running(tmp_path) as backend, backend.calls() as calls:
        assert calls.Health(pb.HealthMessage()).message == b"OK"


def test_an_address_that_is_none_is_a_usage_error(tmp_path: Path) -> None:
    backend = BackendProcess(tmp_path, "--addr", "50051")
    assert backend.wait() == 2
    assert "--addr: '50051' is not HOST:PORT" in backend.log


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "localhost"])
def test_a_port_in_use_is_refused_also_where_only_one_of_its_addresses_is(tmp_path: Path, host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        backend = BackendProcess(tmp_path, "--addr", f"{host}:{port}")
        assert backend.wait() == 1
    assert f"cannot listen on {host}:{port}: port {port} is in use" in backend.log


def test_two_backends_never_share_a_port(tmp_path: Path) -> None:
    (tmp_path / "second").mkdir()
    with running(tmp_path) as first:
        second = BackendProcess(tmp_path / "second", "--addr", first.address)
        assert second.wait() == 1
        assert "is in use" in second.log


def test_of_two_started_together_one_listens(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port('127.0.0.1')}"
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    with (
        running(tmp_path / "one", "--addr", address) as one,
        running(tmp_path / "other", "--addr", address) as other,
    ):
        wait_until_blocking(lambda: not (one.running and other.running), what="the end of one")
        left, ended = (other, one) if other.running else (one, other)
        assert left.address == address
        assert ended.wait() == 1


def test_an_unknown_host_is_refused(tmp_path: Path) -> None:
    backend = BackendProcess(tmp_path, "--addr", "no-such-host.invalid:0")
    assert backend.wait() == 1
    assert "no-such-host.invalid is not known" in backend.log


def test_a_closed_standard_input_does_no_harm(tmp_path: Path) -> None:
    log = tmp_path / "log"
    words = [sys.executable, "-m", ECHO, "--addr", "127.0.0.1:0"]
    with log.open("wb") as err:
        backend = subprocess.Popen(["sh", "-c", 'exec "$@" 0<&-', "sh", *words], stderr=err)
    try:
        wait_until_blocking(lambda: "listening" in log.read_text(), what="a backend that listens")
        backend.terminate()
        assert backend.wait(10.0) == 0
    finally:
        backend.kill()
        backend.wait()


# The token


@pytest.mark.parametrize("token", ["", "wrong", "secre", "secret "])
def test_every_call_with_a_wrong_token_is_refused(tmp_path: Path, token: str) -> None:
    with running(tmp_path, LOCALAI_GRPC_AUTH_TOKEN="secret") as backend, backend.calls(token) as calls:
        refused = ("UNAUTHENTICATED", "invalid token")
        assert status_of(lambda: calls.Health(pb.HealthMessage())) == refused
        assert status_of(lambda: calls.LoadModel(pb.ModelOptions())) == refused
        assert status_of(lambda: list(calls.PredictStream(pb.PredictOptions()))) == refused
        assert status_of(lambda: list(calls.Forward(iter(())))) == refused, "not implemented, and not told so"


def test_calls_with_the_right_token_are_answered(tmp_path: Path) -> None:
    with running(tmp_path, LOCALAI_GRPC_AUTH_TOKEN="secret") as backend, backend.calls("secret") as calls:
        assert calls.Health(pb.HealthMessage()).message == b"OK"
        assert calls.LoadModel(pb.ModelOptions()).success
        assert list(calls.PredictStream(pb.PredictOptions(Prompt="hello")))
    assert "secret" not in backend.log


def test_without_a_token_set_any_is_welcome(tmp_path: Path) -> None:
    with running(tmp_path, LOCALAI_GRPC_AUTH_TOKEN="") as backend, backend.calls("whatever") as calls:
        assert calls.Health(pb.HealthMessage()).message == b"OK"


# The model


def test_without_a_model_calls_that_need_one_are_refused(tmp_path: Path) -> None:
    with running(tmp_path) as backend, backend.calls() as calls:
        refused = ("FAILED_PRECONDITION", "model not loaded")
        assert status_of(lambda: calls.Predict(pb.PredictOptions())) == refused
        assert status_of(lambda: list(calls.PredictStream(pb.PredictOptions()))) == refused
        assert status_of(lambda: calls.Detokenize(pb.DetokenizeRequest())) == refused


def test_a_freed_model_has_to_be_loaded_again(tmp_path: Path) -> None:
    with loaded(tmp_path) as (_, calls):
        assert calls.Free(pb.HealthMessage()).success
        assert status_of(lambda: calls.Predict(pb.PredictOptions()))[0] == "FAILED_PRECONDITION"
        assert calls.LoadModel(pb.ModelOptions(Model="parrot")).success
        assert calls.Predict(pb.PredictOptions(Prompt="again")).message == b"again"


def test_calls_for_another_model_are_refused(tmp_path: Path) -> None:
    with loaded(tmp_path) as (_, calls):
        for call in (
            lambda: calls.Predict(pb.PredictOptions(ModelIdentity="owl")),
            lambda: list(calls.PredictStream(pb.PredictOptions(ModelIdentity="owl"))),
            lambda: calls.Embedding(pb.PredictOptions(ModelIdentity="owl")),
            lambda: calls.TokenizeString(pb.PredictOptions(ModelIdentity="owl")),
            lambda: calls.Rerank(pb.RerankRequest(ModelIdentity="owl")),
        ):
            status, message = status_of(call)
            assert status == "NOT_FOUND"
            assert "model identity mismatch" in message


def test_calls_for_the_loaded_model_or_for_any_are_answered(tmp_path: Path) -> None:
    with loaded(tmp_path) as (_, calls):
        assert calls.Predict(pb.PredictOptions(Prompt="hello", ModelIdentity="parrot")).message == b"hello"
        assert calls.Predict(pb.PredictOptions(Prompt="hello")).message == b"hello"


def test_a_model_that_failed_to_load_does_not_take_the_name(tmp_path: Path) -> None:
    with loaded(tmp_path) as (_, calls):
        assert not calls.LoadModel(pb.ModelOptions(Model="owl", Options=["echo_load_fail:no"])).success
        assert calls.Predict(pb.PredictOptions(Prompt="hello", ModelIdentity="parrot")).message == b"hello"


def test_calls_that_a_backend_does_not_take_are_unimplemented(tmp_path: Path) -> None:
    with loaded(tmp_path) as (backend, calls):
        assert status_of(lambda: calls.TTS(pb.TTSRequest()))[0] == "UNIMPLEMENTED"
        assert status_of(lambda: list(calls.TTSStream(pb.TTSRequest())))[0] == "UNIMPLEMENTED"
        assert status_of(lambda: list(calls.Forward(iter(()))))[0] == "UNIMPLEMENTED"
    assert "Traceback" not in backend.log


def test_models_are_loaded_one_at_a_time(tmp_path: Path) -> None:
    with running(tmp_path, module=UNRULY) as backend, backend.calls() as calls, ThreadPoolExecutor(4) as pool:
        results = list(pool.map(calls.LoadModel, [pb.ModelOptions()] * 4))
    assert [result.message for result in results] == ["1"] * 4


def test_an_error_of_the_engine_is_internal_and_stands_in_the_log(tmp_path: Path) -> None:
    with running(tmp_path, module=UNRULY) as backend, backend.calls() as calls:
        calls.LoadModel(pb.ModelOptions())
        fallen = ("INTERNAL", "RuntimeError: the engine fell over")
        assert status_of(lambda: calls.Predict(pb.PredictOptions())) == fallen
        stream = calls.PredictStream(pb.PredictOptions())
        assert next(stream).message == b"one"
        assert status_of(lambda: next(stream)) == fallen
        assert calls.Health(pb.HealthMessage()).message == b"OK"
    assert "call_failed" in backend.log
    assert "Traceback" in backend.log


# Sizes


def test_a_message_may_have_fifty_mebibytes_and_no_more(tmp_path: Path) -> None:
    with loaded(tmp_path) as (_, calls):
        assert calls.TokenizeString(pb.PredictOptions(Prompt="x" * (50 * MIB - 64))).length == 1
        too_big = status_of(lambda: calls.TokenizeString(pb.PredictOptions(Prompt="x" * (50 * MIB + 1))))
        assert too_big[0] == "RESOURCE_EXHAUSTED"


# The end


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_streams_finish_and_the_exit_code_is_zero(
    tmp_path: Path, number: signal.Signals
) -> None:
    with loaded(tmp_path) as (backend, calls):
        metadata = {"echo_token_rate": "40"}
        stream = calls.PredictStream(pb.PredictOptions(Prompt="word " * 20, Metadata=metadata))
        next(stream)

        backend.send(number)
        rest = list(stream)

        assert rest[-1].tokens == 21, "the last space is a token too"
        assert backend.wait() == 0
    assert f"stopping signal={number.name}" in backend.log


def test_a_stream_that_never_ends_does_not_keep_the_process(tmp_path: Path) -> None:
    with loaded(tmp_path) as (backend, calls):
        stream = calls.PredictStream(pb.PredictOptions(Prompt="word", Metadata={"echo_hang_at_token": "1"}))
        next(stream)

        backend.send(signal.SIGTERM)
        backend.send(signal.SIGTERM)  # Said twice, it is the same.

        assert status_of(lambda: next(stream))[0] in ("CANCELLED", "UNAVAILABLE")
        assert backend.wait(within=10.0) == 0
    assert "stopped" in backend.log


def test_an_engine_that_does_not_let_go_does_not_keep_the_process(tmp_path: Path) -> None:
    with running(tmp_path, module=UNRULY) as backend:
        assert backend.address
        backend.send(signal.SIGTERM)
        assert backend.wait(within=10.0) == 0


def test_a_backend_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    environ = {"LOCALAI_BACKEND_PARENT_WATCH_INTERVAL": "50ms"}
    with log.open("wb") as err:
        keeper = subprocess.Popen(
            [sys.executable, "-c", KEEPER, "--addr", "127.0.0.1:0"],
            stdin=subprocess.PIPE,
            stderr=err,
            env={**psutil.Process().environ(), **environ},
        )
    with keeper:
        wait_until_blocking(lambda: "listening" in log.read_text(), what="a backend that listens")
        (backend,) = psutil.Process(keeper.pid).children()

        keeper.kill()

        wait_until_blocking(lambda: not lives(backend), what="the orphan's end")
    assert f"parent_gone pid={keeper.pid}" in log.read_text()


def lives(process: psutil.Process) -> bool:
    """Whether it still runs; one that only nobody has awaited does not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
