"""From what is installed to the command that is executed."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.core.errors import Invalid
from remuda.worker.launching.manifest import BackendManifest, parse_manifest
from remuda.worker.launching.starting import HttpNeeds, grpc_recipe, http_recipe
from remuda.worker.processes.model import Protocol

FOLDER = Path("/backends/engine")
LLAMA = b"""
protocol: http
command:
  - ./llama-server
  - --host
  - 127.0.0.1
  - --port
  - "{port}"
  - --model
  - "{model_path}"
  - [--ctx-size, "{context_size}"]
  - [--parallel, "{parallel}"]
  - "{options}"
env:
  LD_LIBRARY_PATH: ./lib
  ADDRESS: 127.0.0.1:{port}
start_limit: 2m
"""


def llama(needs: HttpNeeds) -> tuple[str, ...]:
    return http_recipe(parse_manifest(LLAMA), FOLDER, {}, needs).command(9000).argv[5:]


def small(*arguments: str) -> BackendManifest:
    listed = ", ".join(f'"{argument}"' for argument in arguments)
    return parse_manifest(f'protocol: http\ncommand: [serve, "{{port}}", {listed}]'.encode())


# gRPC


def test_a_grpc_backend_is_started_from_its_folder_with_nothing_but_its_address() -> None:
    recipe = grpc_recipe(FOLDER / "run.sh", {"PATH": "/bin"}, "")
    command = recipe.command(50051)
    assert command.argv == ("./run.sh", "--addr", "0.0.0.0:50051")
    assert (command.cwd, command.env) == (FOLDER, {"PATH": "/bin"})
    assert recipe.protocol is Protocol.GRPC


def test_a_grpc_backend_gets_the_token_and_its_vulkan_drivers() -> None:
    files = [FOLDER / "vulkan/icd.d/a.json", FOLDER / "vulkan/icd.d/b.json"]
    env = grpc_recipe(FOLDER / "run.sh", {}, "secret", files).env
    listed = os.pathsep.join(map(str, files))
    assert env == {
        "LOCALAI_GRPC_AUTH_TOKEN": "secret",
        "VK_DRIVER_FILES": listed,
        "VK_ICD_FILENAMES": listed,
    }


def test_an_empty_token_is_none() -> None:
    assert grpc_recipe(FOLDER / "run.sh", {}, "").env == {}


def test_a_recipe_shows_no_token() -> None:
    assert "secret" not in repr(grpc_recipe(FOLDER / "run.sh", {}, "secret"))


# HTTP


def test_an_http_backend_is_started_as_its_manifest_says() -> None:
    needs = HttpNeeds("/models/x.gguf", "x", 4096, 2, ("--flash-attn", "on"))
    recipe = http_recipe(parse_manifest(LLAMA), FOLDER, {"PATH": "/bin", "LD_LIBRARY_PATH": "/usr"}, needs)
    command = recipe.command(9000)
    assert command.argv == (
        *("./llama-server", "--host", "127.0.0.1", "--port", "9000", "--model", "/models/x.gguf"),
        *("--ctx-size", "4096", "--parallel", "2", "--flash-attn", "on"),
    )
    assert command.env == {"PATH": "/bin", "LD_LIBRARY_PATH": "./lib", "ADDRESS": "127.0.0.1:9000"}
    assert (command.cwd, recipe.protocol, recipe.health_path) == (FOLDER, Protocol.HTTP, "/health")
    assert recipe.start_limit.total_seconds() == 120


def test_optional_arguments_go_with_what_they_are_about() -> None:
    assert llama(HttpNeeds("/m", parallel=3)) == ("--model", "/m", "--parallel", "3")


def test_zero_is_something_that_was_given() -> None:
    assert llama(HttpNeeds("/m", context_size=0)) == ("--model", "/m", "--ctx-size", "0")


@pytest.mark.parametrize("name", ["model_path", "model_name", "context_size", "parallel"])
def test_what_is_needed_and_was_not_given_is_named(name: str) -> None:
    with pytest.raises(Invalid, match=rf"command of this backend uses \{{{name}\}}, and none was given"):
        http_recipe(small(f"--x={{{name}}}"), FOLDER, {}, HttpNeeds())


def test_a_port_that_is_not_the_placeholder_is_refused_rather_than_replaced() -> None:
    with pytest.raises(Invalid, match="would become the port"):
        http_recipe(small("{model_path}"), FOLDER, {}, HttpNeeds(model_path="/m/{port}"))
    with pytest.raises(Invalid, match="would become the port"):
        http_recipe(small("{options}"), FOLDER, {}, HttpNeeds(options=("{port}",)))


TEXTS = st.text(min_size=1).filter(lambda text: "{port}" not in text and "\0" not in text)


@given(TEXTS, st.lists(TEXTS))
def test_whatever_was_given_arrives_as_it_is(path: str, options: list[str]) -> None:
    needs = HttpNeeds(model_path=path, options=tuple(options))
    argv = http_recipe(small("a{{b", "{model_path}", "{options}"), FOLDER, {}, needs).command(1).argv
    assert argv == ("serve", "1", "a{b", path, *options)
