"""What models take of a real GPU, learned and used. For a machine with an NVIDIA GPU and llama-server.

    python -m bench.gpu_memory --llama-server PATH --model FILE.gguf [--context 4096] [--server-options WORDS]

A `remuda up` loads three models of the same file, each by itself, and the figures are set side by side: what
was expected from the file's header, what the worker measured, and what `nvidia-smi` says. Then the node is
given just the room for two of them, by the measured figure. Two are to be loaded at once; the third is asked
for, and one of the two has to be gone by `nvidia-smi` before it is loaded. Another fleet gives way to a
program that keeps the GPU busy. The last one, which has measured nothing, is given the same room as the
first, to show what the estimate would have allowed: with options that no header tells, such as

    --context 32768 --server-options="--flash-attn off --cache-type-k q4_0 --batch-size 64 --ubatch-size 64"

the estimate is far above what is taken, and two fit only by the measured figure.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from bench.processes import Started, api_of, remuda

MODELS = ("one", "two", "three")
SLACK_MIB = 32
RECIPE = """\
protocol: http
command:
  - {server}
  - --host
  - 127.0.0.1
  - --port
  - "{{port}}"
  - --model
  - "{{model_path}}"
  - [--ctx-size, "{{context_size}}"]
  - --n-gpu-layers
  - "99"{options}
start_limit: 5m
"""
CONFIG = """\
name: {name}
backend: llama-server
context_size: {context}
gpu_layers: 99
parameters:
  model: {file}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--llama-server", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--server-options", default="", help="more words for llama-server")
    parser.add_argument("--without-owner", action="store_true", help="leave out the fleet that gives way")
    given = parser.parse_args()
    with fleet(given) as first:
        measured_mib = [learned(first, name) for name in MODELS]
        room_mib = 2 * max(measured_mib) + SLACK_MIB
        first.say(f"the node gets room for two by the measured figure: {room_mib} MiB")
        first.limit(room_mib)
        evicted(first)
    if not given.without_owner:
        with fleet(given, "--yield-gpu") as shared:
            yielded(shared, given)
    with fleet(given) as second:
        second.limit(room_mib)
        for name in MODELS[:2]:
            second.ask(name)
        kept = second.loaded()
        second.say(
            f"a fleet that has measured nothing, in the same room, after asking for two: {kept} loaded"
        )


@dataclass
class Fleet:
    started: Started
    client: httpx.Client
    began: float

    def say(self, words: str) -> None:
        print(f"{time.monotonic() - self.began:7.1f} s  {words}", flush=True)

    def get(self, path: str) -> Any:
        return self.client.get(path).raise_for_status().json()

    def replicas(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.get("/api/replicas")["replicas"]
        return rows

    def loaded(self) -> list[str]:
        return sorted(row["model"] for row in self.replicas() if row["state"] == "loaded")

    def ask(self, model: str) -> None:
        body = {"model": model, "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 8}
        reply = self.client.post("/v1/chat/completions", json=body)
        words = reply.json()["choices"][0]["message"]["content"] if reply.is_success else reply.text
        self.say(f"{model} answered {reply.status_code}: {words!r:.300}")

    def unload_all(self) -> None:
        for name in self.loaded():
            self.client.post(f"/api/models/{name}/unload").raise_for_status()
        until(lambda: not self.replicas(), "all are unloaded")

    def limit(self, mib: int) -> None:
        (node,) = self.get("/api/nodes")
        value = {"value": f"{mib}MiB"}
        self.client.put(f"/api/nodes/{node['id']}/vram-budget", json=value).raise_for_status()


def learned(fleet: Fleet, name: str) -> int:
    """MiB that this model takes, by itself."""
    before_mib = gpu_used_mib()
    fleet.ask(name)
    expected = next(row for row in fleet.replicas() if row["model"] == name)
    row = until(lambda: measured(fleet, name), f"{name} is measured")
    processes = gpu_processes()
    told_mib = row["memory_bytes"] >> 20
    fleet.say(
        f"{name}: set aside {expected['memory_bytes'] >> 20} MiB"
        f" ({'estimated' if expected.get('estimated') else 'measured'} by then),"
        f" measured {told_mib} MiB; nvidia-smi: {processes} MiB by process,"
        f" {gpu_used_mib() - before_mib} MiB more than before"
    )
    fleet.unload_all()
    return int(told_mib)


def measured(fleet: Fleet, name: str) -> dict[str, Any] | None:
    return next((row for row in fleet.replicas() if row["model"] == name and not row.get("estimated")), None)


def evicted(fleet: Fleet) -> None:
    fleet.ask("one")
    fleet.ask("two")
    before = gpu_processes()
    fleet.say(f"loaded together: {fleet.loaded()}; nvidia-smi: {before} MiB by process")
    fleet.ask("three")
    after = gpu_processes()
    gone = sorted(set(before) - set(after))
    fleet.say(f"loaded then: {fleet.loaded()}; nvidia-smi: {after} MiB by process; gone: {gone}")
    unloads = [op for op in fleet.get("/api/operations")["operations"] if op["kind"] == "unload"]
    for op in unloads[:1]:
        fleet.say(f"the unload's reason: {op.get('why') or op.get('title') or op}")


def until(look: Callable[[], Any], what: str, within_s: float = 120.0) -> Any:
    deadline = time.monotonic() + within_s
    while not (found := look()):
        if time.monotonic() > deadline:
            raise SystemExit(f"not seen within {within_s:.0f} s: {what}")
        time.sleep(0.2)
    return found


def gpu_processes() -> dict[int, int]:
    """MiB by pid."""
    rows = smi("--query-compute-apps=pid,used_memory")
    return {int(pid): int(used) for pid, used in rows if used.isdigit()}


def gpu_used_mib() -> int:
    return sum(int(used) for (used,) in smi("--query-gpu=memory.used"))


def smi(query: str) -> list[list[str]]:
    words = ("nvidia-smi", query, "--format=csv,noheader,nounits")
    told = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    return [[cell.strip() for cell in line.split(",")] for line in told.splitlines() if line.strip()]


def yielded(fleet: Fleet, given: argparse.Namespace) -> None:
    """Another program of the machine's owner keeps the GPU busy."""
    fleet.ask("one")
    port = 18_999
    words = (
        str(given.llama_server),
        "--port",
        str(port),
        "--model",
        str(given.model),
        "--n-gpu-layers",
        "99",
    )
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as owners:
        try:
            until(lambda: answers(port), "the owner's program")
            began = time.monotonic()
            while fleet.loaded() and time.monotonic() - began < 60:
                work(port)
            fleet.say(f"while the owner's program works: loaded {fleet.loaded()}")
            for one in fleet.get("/api/models/two/plan")["not_chosen"]:
                fleet.say(f"not chosen: {one}")
        finally:
            owners.terminate()
    began = time.monotonic()
    until(lambda: fleet.get("/api/models/two/plan")["node"], "the node takes models again")
    fleet.say(f"it takes models again {time.monotonic() - began:.0f} s after the owner's program ended")
    fleet.ask("two")


def answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def work(port: int) -> None:
    body = {"prompt": "Tell me a long story.", "n_predict": 400, "ignore_eos": True}
    httpx.post(f"http://127.0.0.1:{port}/completion", json=body, timeout=60, trust_env=False)


@contextmanager
def fleet(given: argparse.Namespace, *options: str) -> Iterator[Fleet]:
    env = {"REMUDA_BACKEND_GALLERIES": "[]"}
    began = time.monotonic()
    with remuda("up", "--no-starter", "--port", "0", *options, env=env) as started:
        url = api_of(started)
        with httpx.Client(base_url=url, timeout=300, trust_env=False) as client:
            made = Fleet(started, client, began)
            recipe = started.data / "llama-server.yaml"
            recipe.write_text(recipe_of(given))
            register(started, recipe)
            until(lambda: [node for node in made.get("/api/nodes") if node["status"] == "healthy"], "a node")
            models = started.data / "models"
            models.mkdir(exist_ok=True)
            os.symlink(given.model.resolve(), models / "shared.gguf")
            for name in MODELS:
                config = CONFIG.format(name=name, context=given.context, file="shared.gguf")
                client.post("/api/models", json={"config": config}).raise_for_status()
            made.say("a fleet of one node, up")
            yield made


def recipe_of(given: argparse.Namespace) -> str:
    options = "".join(f"\n  - {json.dumps(word)}" for word in shlex.split(given.server_options))
    return RECIPE.format(server=given.llama_server.resolve(), options=options)


def register(started: Started, recipe: Path) -> None:
    words = (sys.executable, "-m", "remuda", "backends", "register", str(recipe))
    subprocess.run([*words, "--data-dir", str(started.data)], check=True)


if __name__ == "__main__":
    main()
