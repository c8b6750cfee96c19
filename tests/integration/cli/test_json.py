"""What programs read: every list is an object with a named list, every failure an object with a code."""

import json
from pathlib import Path

import pytest

from remuda.cli.exits import Exit
from tests.integration.cli.conftest import LiveFrontend

LISTS = {
    "nodes": "nodes",
    "keys": "keys",
    "ops": "operations",
    "ops history": "operations",
    "models": "models",
    "models ps": "replicas",
    "models export": "models",
    "models search": "models",
    "backends": "backends",
    "backends available": "backends",
    "backends list --local": "backends",
    "backends search": "backends",
    "backends upgrades": "upgrades",
    "nodes drain listed": "nodes",
    "config": "settings",
    "config check": "settings",
    "doctor": "findings",
}
FAILURES = {
    "nodes show nobody": "not_found",
    "nodes label listed a=b nothing-": "not_found",
    "nodes label listed node.name-": "conflict",
    "ops show 3f2a": "not_found",
    "ops --node nobody": "not_found",
    "ops --model nothing": "not_found",
    "ops --backend nothing": "not_found",
    "ops list --kind instal": "usage",
    "models load nothing": "not_found",
    "models add {folder}/missing.yaml": "invalid",
    "models edit nothing --set a=b": "not_found",
    "models show nothing": "not_found",
    "models rename nothing other": "not_found",
    "models import {folder}": "invalid",
    "backends install echo --nodes nobody": "not_found",
    "backends upgrade": "usage",
    "backends list --local --config {folder}/missing.toml": "misconfigured",
    "nodes --url http://127.0.0.1:1": "frontend_unreachable",
    "nodes --url nonsense": "misconfigured",
    "keys revoke nobody": "not_found",
    "logs nobody": "not_found",
    "chat nothing hello": "model_not_found",
    "backends gc --budget lots": "usage",
    "config check --config {folder}/missing.toml": "misconfigured",
    "leave --data-dir {folder}": "misconfigured",
    "up": "usage",
    "completion bash": "usage",
    "nodes --bogus": "usage",
    "bogus": "usage",
}


EXITS = {
    "usage": Exit.MISUSED,
    "misconfigured": Exit.MISUSED,
    "frontend_unreachable": Exit.UNREACHABLE,
    "not_found": Exit.NOT_FOUND,
    "model_not_found": Exit.NOT_FOUND,
    "conflict": Exit.REJECTED,
    "invalid": Exit.REJECTED,
}


@pytest.mark.parametrize(("words", "name"), LISTS.items(), ids=LISTS)
def test_a_list_is_an_object_with_a_named_list(frontend: LiveFrontend, words: str, name: str) -> None:
    frontend.register("listed")

    result = frontend.remuda(*words.split(), "--json")

    assert isinstance(json.loads(result.stdout)[name], list)


@pytest.mark.parametrize(("words", "code"), FAILURES.items(), ids=FAILURES)
def test_a_failure_is_an_object_with_a_code(
    frontend: LiveFrontend, tmp_path: Path, words: str, code: str
) -> None:
    frontend.register("listed")

    result = frontend.remuda(*words.format(folder=tmp_path).split(), "--json")

    assert result.exit_code == EXITS[code]
    assert result.stdout == ""
    assert json.loads(result.stderr.splitlines()[-1])["error"]["code"] == code


def test_an_unknown_filter_is_refused_with_the_names_there_are(frontend: LiveFrontend) -> None:
    frontend.register("listed")

    assert "did you mean listed?" in frontend.remuda("ops", "--node", "lisetd").stderr
    assert "there are no models" in frontend.remuda("ops", "--model", "qwen").stderr
    assert "did you mean llama-cpp or" in frontend.remuda("ops", "--backend", "lama-cpp").stderr
