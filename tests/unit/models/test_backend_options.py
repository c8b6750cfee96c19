"""Options of the backends that ship with Remuda: what they would refuse is refused when it is written."""

import grpc
import pytest

from remuda.backends.echo.script import read_script
from remuda.backends.llama_cpp import limits, load_options
from remuda.core.errors import Invalid
from remuda.models.backend_options import _STATUS_NAMES, KNOWN, STEP_SECONDS_MAX, check_options, option_doubts
from remuda.models.config import ModelConfig
from remuda.models.reading import located


def config(*options: str, backend: str = "echo") -> ModelConfig:
    return ModelConfig(name="m", backend=backend, options=options)


@pytest.mark.parametrize(
    ("backend", "option", "told"),
    [
        ("echo", "echo_token_rate:abc", "echo_token_rate of echo is a number from 0, not 'abc'"),
        ("echo", "echo_dim:0", "a whole number from 1 to 65536"),
        ("echo", "echo_fail:OK", "a gRPC status"),
        ("echo", "echo_crash:256", "an exit code or a signal"),
        ("echo", "echo_hang:yes", "true or false"),
        ("llama-cpp", "parallel:many", "a whole number from 1"),
        ("llama-cpp", "warmup:perhaps", "true or false"),
        ("llama-cpp", "pooling:3", "a word"),
        ("builtin-llama-cpp", "step_seconds:0", "a number of seconds from 1"),
    ],
)
def test_a_value_of_a_wrong_kind_is_refused_with_its_field(backend: str, option: str, told: str) -> None:
    with pytest.raises(Invalid, match=r"^options\[1\]: ") as refused:
        check_options(config("", option, backend=backend))
    assert told in refused.value.message


def test_the_line_of_the_option_is_named() -> None:
    text = "name: m\nbackend: echo\noptions:\n- echo_delay_ms:5\n- echo_token_rate:abc\n"
    with (
        pytest.raises(Invalid, match=r"^m\.yaml, line 5: options\[1\]: echo_token_rate"),
        located(text, "m.yaml"),
    ):
        check_options(config("echo_delay_ms:5", "echo_token_rate:abc"))


def test_what_is_accepted_by_its_backend_is_accepted() -> None:
    check_options(config("echo_token_rate:4.5", "echo_fail:UNAVAILABLE", "echo_crash:SIGKILL", "echo_dim:"))
    check_options(
        config("parallel:4", "cache_ram:-1", "jinja:1", "sps:0.5", "warmup:on", backend="llama-cpp")
    )
    assert not list(option_doubts(config("echo_hang:true", "echo_load_fail:anything")))


def test_options_without_an_effect_are_told() -> None:
    doubts = list(option_doubts(config("echo_tokens_rate:4", "echo_hang", "jinja:true")))
    assert "did you mean" in doubts[0]
    assert "NAME:VALUE" in doubts[1]
    assert "has no option 'jinja'" in doubts[2]
    (doubt,) = option_doubts(config("warmup:on", backend="llama-cpp"))
    assert "refuses 'on'" in doubt


def test_options_of_other_backends_are_their_own() -> None:
    for backend in ("vllm", "cuda12-llama-cpp", ""):
        check_options(config("parallel:many", "whatever", backend=backend))
        assert not list(option_doubts(config("parallel:many", "whatever", backend=backend)))


def test_those_that_are_known_are_those_that_the_backends_have() -> None:
    assert set(KNOWN["llama-cpp"]) == {*load_options._OPTIONS, load_options._STEP_SECONDS}
    assert limits.STEP_SECONDS_MAX == STEP_SECONDS_MAX
    with pytest.raises(ValueError, match="echo has no echo_nosuch; it has ") as known:
        read_script({"echo_nosuch": "1"})
    assert {one.name for one in grpc.StatusCode} == {*_STATUS_NAMES.split(), "OK"}
    assert set(KNOWN["echo"]) == set(str(known.value).partition("it has ")[2].split(", "))
