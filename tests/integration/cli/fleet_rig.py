"""A real fleet of one for commands: `remuda up`, a registry whose line can be made slow, and a gallery."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from zlib import crc32

from anyio.from_thread import start_blocking_portal
from click.testing import Result

from remuda.host.ports import free_port
from tests.support.images import image, layer, noise_layer
from tests.support.processes import Frontend, Process, Ranch, ranch
from tests.support.registry import HOST, RegistryServer, registry_server
from tests.support.trickle import Relay, relay
from tests.support.waiting import wait_until_blocking

MB = 1_000_000
START = f'#!/bin/sh\nexec "{sys.executable}" -m remuda.backends.echo "$@"\n'.encode()
Json = dict[str, Any]


@dataclass(slots=True)
class FleetRig:
    ranch: Ranch
    up: Frontend
    port: int
    registry: RegistryServer
    link: Relay
    galleries: str
    site: Path

    def remuda(self, *words: str, code: int = 0) -> Result:
        done = self.ranch.invoke(*words)
        assert done.exit_code == code, (words, done.stdout, done.stderr)
        return done

    def json(self, *words: str, code: int = 0) -> Any:
        return json.loads(self.remuda(*words, "--json", code=code).stdout)

    def begin(self, *words: str) -> Process:
        """A command that goes on until it is told otherwise."""
        return self.ranch.program("remuda", *words, REMUDA_DATA_DIR=str(self.ranch.folder / "up"))

    def push(self, name: str, version: int = 1, size: int = 10_000, tag: str = "latest") -> str:
        """An image of a backend that works, under the tag that the gallery names; answers its reference."""
        own = layer({"run.sh": START, "version": b"%d" % version})
        bulk = noise_layer(size, crc32(f"{name} {version}".encode()))  # Shared with no other backend.
        self.registry.pusher.push(f"fleet/{name}", tag, image([bulk, own]))
        return self.reference(name, tag)

    def push_server(self, name: str, version: int, *, starts: bool) -> str:
        """An image of a server that speaks HTTP and has a `check`; or that ends at its start."""
        does = ["-m", "http.server", "--bind", HOST] if starts else ["-c", "raise SystemExit('broken')"]
        words = [sys.executable, *does, "{port}"]
        manifest = {"protocol": "http", "command": [*words, "{model_path}"], "check": words, "health": "/"}
        files = {"remuda.yaml": json.dumps(manifest).encode(), "version": b"%d" % version}
        self.registry.pusher.push(f"fleet/{name}", "latest", image([layer(files)]))
        return self.reference(name)

    def reference(self, name: str, tag: str = "latest") -> str:
        return f"{self.link_name}/fleet/{name}:{tag}"

    @property
    def link_name(self) -> str:
        """The registry as references name it."""
        return f"{HOST}:{self.link.port}"

    @contextmanager
    def in_gallery(self, name: str, uri: str) -> Iterator[None]:
        """The gallery has one more entry while the block lasts."""
        index = self.site / "index.yaml"
        before = index.read_text()
        index.write_text(f'{before}\n- {{name: {name}, uri: "{uri}"}}\n')
        try:
            yield
        finally:
            index.write_text(before)

    @contextmanager
    def cut_off(self) -> Iterator[None]:
        """Neither the gallery nor the registry answers."""
        index, away = self.site / "index.yaml", self.site / "index.away"
        index.rename(away)
        self.link.reset_after, before = 0, self.link.reset_after
        try:
            yield
        finally:
            self.link.reset_after = before
            away.rename(index)

    def installed_version(self, name: str) -> str:
        """What `push` called the version that is on the node's disk."""
        return (self.ranch.folder / "up/worker/backends" / name / "version").read_text()

    def restart(self) -> None:
        self.up.stop()
        self.up = start(self.ranch, self.port, self.galleries)

    def wait_until_at_work(self, process: Process) -> Json:
        """The one operation that is under way, once bytes of it arrive."""

        def arriving() -> Json | None:
            assert process.running, (process.shown, process.log)
            for op in self.up.get("/api/ops?state=live")["operations"]:
                whole: Json = self.up.get(f"/api/ops/{op['id']}")
                if any(step.get("progress", {}).get("current_bytes") for step in whole["steps"]):
                    return whole
            return None

        return wait_until_blocking(arriving, within=30, what="bytes to arrive")

    @contextmanager
    def slow_line(self, bytes_per_s: float = 50_000) -> Iterator[None]:
        self.link.bytes_per_s, before = bytes_per_s, self.link.bytes_per_s
        try:
            yield
        finally:
            self.link.bytes_per_s = before


@contextmanager
def fleet_rig(folder: Path) -> Iterator[FleetRig]:
    site = folder / "site"
    site.mkdir()
    with (
        start_blocking_portal("asyncio") as portal,
        registry_server(folder) as registry,
        portal.wrap_async_context_manager(relay(registry.port)) as link,
        served(site) as port,
        ranch(folder / "ranch") as started,
    ):
        (site / "index.yaml").write_text(_index(f"{HOST}:{link.port}/fleet"))
        galleries = json.dumps([{"name": "mine", "url": f"http://{HOST}:{port}/index.yaml"}])
        at = free_port(HOST)
        yield FleetRig(started, start(started, at, galleries), at, registry, link, galleries, site)


def start(started: Ranch, port: int, galleries: str) -> Frontend:
    environ = {"REMUDA_BACKEND_GALLERIES": galleries, "REMUDA_FORCE_META_BACKEND_CAPABILITY": "default"}
    frontend = started.up("up", "--port", str(port), **environ)
    frontend.wait_for("up")
    return frontend


def _index(registry: str) -> str:
    names = ("slow", "slower", "slowest", "lazy", "patient")
    entries = [f'- {{name: {name}, uri: "{registry}/{name}:latest"}}' for name in names]
    return "\n".join(
        [
            "- name: shouter",
            "  description: Says it louder. And again.",
            "  capabilities: {default: cpu-shouter, nvidia: cuda12-shouter}",
            f'- {{name: cpu-shouter, alias: shouter, uri: "{registry}/shouter:latest"}}',
            f'- {{name: cuda12-shouter, alias: shouter, uri: "{registry}/cuda:latest"}}',
            "- name: gpu-only",
            "  capabilities: {nvidia: cuda12-shouter}",
            f'- {{name: missing, uri: "{registry}/missing:latest"}}',
            '- {name: echo, uri: "builtin:echo"}',
            *entries,
        ]
    )


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[int]:
    with ThreadingHTTPServer((HOST, 0), partial(_Quiet, directory=str(folder))) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()
