"""The commands of README and guides, run as they are written against a real `remuda up`.

Names that stand for a reader's own (nodes, operations, addresses) are replaced by real ones. What cannot be
run here is listed with the reason; whatever is neither run nor listed fails.
"""

import io
import json
import shutil
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from remuda.cli.exits import Exit
from remuda.cli.verbs import root
from tests.integration.cli.fleet_rig import served
from tests.support.documented import PAGES, Documented, typed_in
from tests.support.images import image, layer
from tests.support.models import tiny_model
from tests.support.processes import Frontend, Ranch, ranch
from tests.support.registry import RegistryServer, registry_server
from tests.support.waiting import wait_until_blocking

RUN = f'#!/bin/sh\nexec "{sys.executable}" -m remuda.backends.echo "$@"\n'.encode()
SKIPPED = {
    "claude": "another project's program; integration/serving uses the anthropic client",
    "python -c": "the ollama package: integration/api/ollama/test_ollama_client.py",
    "./remuda up": "the fixture runs it; its banner is in integration/fleet/test_start.py",
    "curl http://127.0.0.1:8080/v1/chat/completions": "real model: integration/serving/test_first_page.py",
    "curl -N http://127.0.0.1:8080/api/ops/events": "does not end; integration/cli/test_ops.py reads it",
    "remuda join": "a second machine: integration/fleet/test_join.py",
    "./remuda chat": "the starter model: integration/serving/test_first_page.py",
    "./remuda run": "from a hub: integration/model_installs",
    "./remuda pull": "the same",
    "remuda run": "the same",
    "remuda models install": "the same",
    "remuda models remove qwen": "the same",
    "remuda usage --since 2026-03-01 --until 2026-03-31 --csv >": "a shell writes it: unit/cli/test_usage.py",
    "remuda explain": "of one request: integration/api/test_explain.py",
    "remuda servers add": "another program's server: integration/serving/test_servers.py",
    "remuda chat nas/": "the same",
    "export": "for the line after it",
    "remuda frontend --lan": "needs PostgreSQL and NATS: integration/fleet/test_two_frontends.py",
    "uv run --group dev python -m bench": "takes minutes: ./test --long runs them",
    "uv tool install": "another project's program, from a package index",
    "mkdir -p ~/.local/bin": "makes a command in the reader's home, which sets itself up on first use",
}
CODES = {"doctor": (Exit.DONE, Exit.UNHEALTHY)}  # A node that nobody runs is a problem.
HERE = ("search", "show", "pull", "register", "switch-back", "gc", "--local")  # Of `remuda backends`.


@dataclass(slots=True)
class Reader:
    """Somebody who follows the pages, in a folder with the files that they name."""

    folder: Path
    ranch: Ranch
    up: Frontend
    registry: RegistryServer
    galleries: str

    def push(self, name: str, version: int = 1, tag: str = "latest") -> None:
        own = layer({"run.sh": RUN, "version": b"%d" % version, "name": name.encode()})
        self.registry.pusher.push(f"me/{name}", tag, image([own]))

    def remuda(self, *words: str, elsewhere: bool = False) -> Result:
        environ = {
            "REMUDA_DATA_DIR": str(self.folder / "elsewhere" if elsewhere else self.up.data_dir),
            "REMUDA_BACKEND_GALLERIES": self.galleries,
            "REMUDA_FORCE_META_BACKEND_CAPABILITY": "default",
            "VISUAL": "true",  # An editor in which nothing is changed.
        }
        unset = {name: None for name in ("REMUDA_URL", "REMUDA_API_KEY", "REMUDA_CONFIG")}
        return CliRunner().invoke(root, words, env={**unset, **environ}, prog_name="remuda")

    def done(self, *words: str) -> Result:
        result = self.remuda(*words)
        assert result.exit_code == 0, (words, result.output)
        return result

    def anew(self) -> None:
        """A node that waits for approval, and nothing under way."""
        if "jetson-2" in self.up.nodes():
            self.done("nodes", "remove", "jetson-2", "--yes")
        self.up.register("jetson-2")

    def waiting(self) -> str:
        """An operation that waits for its node."""
        self.done("nodes", "drain", "up")
        op: str = json.loads(self.done("backends", "install", "echo", "--no-wait", "--json").stdout)["id"]
        return op

    def follow(self, one: Documented) -> Result:
        words = [self._real(word) for word in one.words[1:]]
        if words[:2] == ["backends", "switch-back"]:
            for version in (2, 3):
                self.push("llama-cpp", version)
                assert self.remuda("backends", "pull", "llama-cpp", elsewhere=True).exit_code == 0
        if words[:2] == ["ops", "cancel"]:
            words[2] = self.waiting()
        if words[:2] == ["ops", "retry"]:
            words[2] = self._latest(wanted="cancelled")
        elsewhere = words[0] == "backends" and any(word in HERE for word in words)
        return self.remuda(*words, elsewhere=elsewhere)

    def _latest(self, wanted: str) -> str:
        def found() -> str:
            listed = json.loads(self.done("ops", "--json").stdout)["operations"]
            return next((str(op["id"]) for op in listed if op["status"] == wanted), "")

        return wait_until_blocking(found, within=20, what=f"an operation that {wanted}")

    def _real(self, word: str) -> str:
        if word == "3f2a":
            return self._latest(wanted="succeeded")
        real = {
            "attic,cellar": "up",
            "attic": "up",
            "spark": "up",
            "qwen3-4b": "qwen",
            "NAME": "cpu-llama-cpp",
            "FILE": "vllm.yaml",
            "quay.io/me/my-backend:v2": f"{self.registry.name}/me/my-backend:v2",
            "https://example.org/my-backend.tar.gz": f"file://{self.folder}/my-backend.tar.gz",
        }
        return real.get(word, word)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    folder = tmp_path_factory.mktemp("reader")
    (folder / "site").mkdir()
    with (
        registry_server(folder) as registry,
        served(folder / "site") as port,
        ranch(folder / "ranch") as started,
    ):
        (folder / "site/index.yaml").write_text(_index(f"{registry.name}/me"))
        galleries = json.dumps([{"name": "mine", "url": f"http://127.0.0.1:{port}/index.yaml"}])
        environ = {"REMUDA_BACKEND_GALLERIES": galleries, "REMUDA_FORCE_META_BACKEND_CAPABILITY": "default"}
        up = started.up("up", "--no-auto-approve", **environ)
        up.wait_for("up")
        made = Reader(folder, started, up, registry, galleries)
        made.push("llama-cpp")
        made.push("whisper")
        made.push("my-backend", tag="v2")
        made.done("nodes", "label", "up", "gpu.vendor=nvidia")
        _write_files(folder)
        yield made


def _write_files(folder: Path) -> None:
    for name in ("SmolLM2-135M-Instruct.Q4_1.gguf", "Qwen3-8B-Q4_K_M.gguf"):
        shutil.copy(tiny_model(), folder / name)
    (folder / "qwen3-8b.yaml").write_text(_yaml("models.md", "name: qwen3-8b"))
    (folder / "vllm.yaml").write_text(_yaml("http-backends.md", "  - vllm"))
    (folder / "my-backend").mkdir()
    (folder / "my-backend/run.sh").write_bytes(RUN)
    with tarfile.open(folder / "my-backend.tar.gz", "w:gz") as archive:
        entry = tarfile.TarInfo("run.sh")
        entry.size, entry.mode = len(RUN), 0o755
        archive.addfile(entry, io.BytesIO(RUN))


def _yaml(page: str, has: str) -> str:
    """The block of that page with this line."""
    text = next(one for one in PAGES if one.name == page).read_text()
    blocks = [block.partition("```")[0] for block in text.split("```yaml\n")[1:]]
    return next(block for block in blocks if has in block)


def _index(registry: str) -> str:
    """Each has a build for this machine, as in real galleries."""
    lines = ['- {name: echo, uri: "builtin:echo"}']
    for name in ("llama-cpp", "whisper"):
        lines.append(f"- {{name: {name}, capabilities: {{default: cpu-{name}}}}}")
        lines.append(f'- {{name: cpu-{name}, uri: "{registry}/{name}:latest"}}')
    return "\n".join(lines)


def skipped(one: Documented) -> bool:
    return any(one.command.startswith(beginning) for beginning in SKIPPED)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_a_page_work_as_written(
    page: Path, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(reader.folder)
    reader.anew()
    for one in typed_in(page):
        if skipped(one):
            continue
        assert one.words[0] in ("remuda", "./remuda"), f"{one.command}: say why it cannot be run"
        result = reader.follow(one)
        assert result.exit_code in CODES.get(one.words[1], (Exit.DONE,)), (one.command, result.output)


def test_what_is_skipped_is_still_documented() -> None:
    typed = [one.command for page in PAGES for one in typed_in(page)]
    unused = [start for start in SKIPPED if not any(command.startswith(start) for command in typed)]
    assert unused == []
