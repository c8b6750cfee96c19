"""A worker as LocalAI's wire contract describes it, for our frontend to drive. It knows nothing of ours.

It installs and runs nothing: commands are recorded and answered. Used inside a test, or run as a program
that can be killed, and that prints what it hears.
"""

import argparse
import base64
import json
import os
import signal
import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

import anyio
import httpx
import nats
import nkeys
import yaml
from anyio.abc import TaskGroup, TaskStatus
from nats.aio.client import Client
from nats.aio.msg import Msg

JSON = dict[str, object]

_HTTP_S = 10.0
_FIRST_RETRY_S, _MOST_RETRY_S = 2.0, 30.0
_IDLE_POLL_S, _IDLE_POLLS = 1.0, 30
_PLAIN = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # Quicker to make than one with all certificates.
_OK: JSON = {"success": True}


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    register_to: str
    nats_url: str
    name: str
    token: str = field(default="", repr=False)
    address: str = "127.0.0.1:50051"
    http_address: str = "127.0.0.1:50050"
    require_auth: bool = False
    heartbeat_s: float = 10.0
    install_s: float = 0.0
    layers: int = 1  # Of each image; percentages begin anew with each.
    lacks: tuple[str, ...] = ()  # Subjects that this one is too old to know.
    first_retry_s: float = _FIRST_RETRY_S
    source: str = ""  # The address it calls from; empty: whichever the system takes.
    available_ram: int = 8 << 30  # As measured when it started.


class LocalAiWorker:
    """Run it in a task group. Started means subscribed; cancelling it is death without a farewell."""

    def __init__(self, options: WorkerOptions) -> None:
        self.id = ""
        self.registrations = 0  # That were answered.
        self.subscribed = 0  # How often: once for each login to the bus.
        self._bus = Client()
        self.received: list[tuple[str, object]] = []  # Subject below the node, and payload.
        self._options = options
        self._stop = anyio.Event()
        self._jwt = self._seed = ""
        headers = {"Authorization": f"Bearer {options.token}"} if options.token else {}
        self._http = httpx.AsyncClient(
            base_url=f"{options.register_to.rstrip('/')}/api/node",
            headers=headers,
            timeout=_HTTP_S,
            trust_env=False,
            transport=httpx.AsyncHTTPTransport(verify=_PLAIN, local_address=options.source or None),
        )

    def stop(self) -> None:
        """What SIGTERM and `nodes.<id>.stop` do."""
        self._stop.set()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        async with self._http:
            await self._register()
            self._bus = await self._connect()
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._heartbeats)
                    tasks.start_soon(self._refreshes, tasks)
                    await self._subscribe(self._bus, tasks)
                    task_status.started()
                    await self._stop.wait()
                    tasks.cancel_scope.cancel()
                await self._leave()
            finally:
                with anyio.CancelScope(shield=True), anyio.move_on_after(2):
                    await self._bus.close()

    # The frontend.

    async def _register(self) -> None:
        """Again and again until it is in; with `require_auth` also until there are credentials."""
        delay_s = self._options.first_retry_s
        while True:
            try:
                answer = await self._http.post("/register", json=self._introduction())
                reply: JSON = answer.json() if answer.is_success else {}
            except httpx.HTTPError:
                reply = {}
            self.registrations += bool(reply)
            complete = reply.get("status") != "pending" and reply.get("nats_jwt")
            if reply and (complete or not self._options.require_auth):
                self.id = str(reply["id"])
                self._jwt = str(reply.get("nats_jwt") or "")
                self._seed = str(reply.get("nats_user_seed") or "")
                return
            await anyio.sleep(delay_s)
            delay_s = min(delay_s * 2, _MOST_RETRY_S)

    async def _refreshes(self, tasks: TaskGroup) -> None:
        """Registers again after three quarters of its credentials' life. When the server hangs up on expired
        ones, Go's client logs in with those it has by then; this library's gives up, so that is done here."""
        while self._jwt:
            claims = self._jwt.split(".")[1]
            expires = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4))).get("exp")
            if not expires:
                return
            left_s = expires - time.time()  # noqa: TID251 - peers have nothing of ours.
            await anyio.sleep(max(0.75 * left_s, 0.5))
            await self._register()
            former, self._bus = self._bus, await self._connect()
            await self._subscribe(self._bus, tasks)
            await former.close()  # Not before: what is sent meanwhile would reach nobody.

    def _introduction(self) -> JSON:
        body: JSON = {
            "name": self._options.name,
            "address": self._options.address,
            "http_address": self._options.http_address,
            "total_vram": 0,
            "available_vram": 0,
            "total_ram": 16 << 30,
            "available_ram": self._options.available_ram,
            "total_disk": 1 << 40,
            "available_disk": 1 << 39,
            "gpu_vendor": "",
            "gpu_compute_capability": "",
            "capability": "default",
            "max_replicas_per_model": 1,
            "labels": {"node.replica-slots": "1"},
        }
        return body | ({"token": self._options.token} if self._options.token else {})

    async def _heartbeats(self) -> None:
        """The first after one full interval; none while the bus is down; answers are not looked at."""
        body = {"available_ram": 8 << 30, "total_disk": 1 << 40, "available_disk": 1 << 39}
        while True:
            await anyio.sleep(self._options.heartbeat_s)
            if self._bus.is_connected:
                try:
                    await self._http.post(f"/{self.id}/heartbeat", json=body)
                except httpx.HTTPError:
                    continue

    async def _leave(self) -> None:
        with anyio.move_on_after(60):
            try:
                if (await self._http.post(f"/{self.id}/drain")).status_code == 200:
                    await self._wait_idle()
                await self._http.post(f"/{self.id}/deregister")
            except httpx.HTTPError:
                return

    async def _wait_idle(self) -> None:
        for _ in range(_IDLE_POLLS):
            rows = (await self._http.get(f"/{self.id}/models")).json()
            if sum(row.get("in_flight", 0) for row in rows) == 0:
                return
            await anyio.sleep(_IDLE_POLL_S)

    # The bus.

    async def _connect(self) -> Client:
        if bool(self._jwt) != bool(self._seed):
            raise ValueError("half a bus login is none")
        if not self._jwt:
            return await nats.connect(self._options.nats_url, max_reconnect_attempts=-1)

        return await nats.connect(
            self._options.nats_url,
            max_reconnect_attempts=-1,
            user_jwt_cb=lambda: self._jwt.encode(),
            signature_cb=lambda nonce: _sign(self._seed, nonce),
        )

    async def _subscribe(self, bus: Client, tasks: TaskGroup) -> None:
        """Install and upgrade each get a task per request; all else is handled one at a time."""
        in_order: dict[str, Callable[[JSON], JSON]] = {
            "backend.list": lambda _: {"backends": None},
            "backend.delete": lambda _: _OK | {"reports_stopped_processes": True},
            "model.unload": lambda _: _OK,
            "model.stop": _nothing_to_stop,
            "model.delete": lambda _: _OK,
            "models.running": lambda _: {"models": []},
        }
        for verb, answer in in_order.items():
            await self._on(bus, verb, partial(self._reply, answer))
        for verb, done in (
            ("backend.install", _OK | {"address": self._options.address}),
            ("backend.upgrade", _OK | {"reports_stopped_processes": True}),
        ):
            await self._on(bus, verb, partial(self._install_aside, bus, tasks, done))
        await self._on(bus, "backend.stop", _ignore)
        await self._on(bus, "stop", self._stop_heard)
        await bus.flush()
        self.subscribed += 1

    async def _on(self, bus: Client, verb: str, handle: Callable[[Msg, JSON], Awaitable[None]]) -> None:
        async def received(message: Msg) -> None:
            body = json.loads(message.data or b"null")
            self.received.append((verb, body))
            await handle(message, body if isinstance(body, dict) else {})

        await bus.subscribe(f"nodes.{self.id}.{verb}", cb=received)

    async def _reply(self, answer: Callable[[JSON], JSON], message: Msg, body: JSON) -> None:
        await message.respond(json.dumps(answer(body)).encode())

    async def _stop_heard(self, message: Msg, body: JSON) -> None:
        self.stop()

    async def _install_aside(
        self, bus: Client, tasks: TaskGroup, done: JSON, message: Msg, body: JSON
    ) -> None:
        tasks.start_soon(self._install, bus, done, message, body)

    async def _install(self, bus: Client, done: JSON, message: Msg, body: JSON) -> None:
        for percentage in (0, 50):
            if body.get("op_id"):
                await self._progress(bus, body, percentage)
            await anyio.sleep(self._options.install_s / 2)
        await message.respond(json.dumps(done).encode())

    async def _progress(self, bus: Client, body: JSON, percentage: float, layer: str = "1/1") -> None:
        event = {
            "op_id": body["op_id"],
            "node_id": self.id,
            "backend": body.get("backend", ""),
            "file_name": f"Downloading {layer} registry.example/backend:latest",
            "current": f"{percentage / 100:.1f} MiB",
            "total": "1.0 MiB",
            "percentage": percentage,
            "phase": "downloading",
        }
        await bus.publish(
            f"nodes.{self.id}.backend.install.{body['op_id']}.progress", json.dumps(event).encode()
        )


class RememberingWorker(LocalAiWorker):
    """One that looks installs up in the galleries they come with, and lists what it has had to install."""

    def __init__(self, options: WorkerOptions) -> None:
        super().__init__(options)
        self.backends: dict[str, JSON] = {}  # Builds by name, as `backend.list` tells them.
        self._installed_s = 0

    def heard(self, verb: str, body: JSON) -> None:
        """Called with every command."""

    async def _on(self, bus: Client, verb: str, handle: Callable[[Msg, JSON], Awaitable[None]]) -> None:
        own = {"backend.list": self._listed, "backend.delete": self._deleted}
        answer = own.get(verb)

        async def heard(message: Msg, body: JSON) -> None:
            self.heard(verb, body)
            await (handle(message, body) if answer is None else self._reply(answer, message, body))

        if verb not in self._options.lacks:
            await super()._on(bus, verb, heard)

    async def _install(self, bus: Client, done: JSON, message: Msg, body: JSON) -> None:
        layers = self._options.layers
        for number in range(1, layers + 1):
            for percentage in (0, 50, 100):
                if body.get("op_id"):
                    await self._progress(bus, body, percentage, f"{number}/{layers}")
                await anyio.sleep(self._options.install_s / (3 * layers))
        try:
            row = await self._looked_up(body)
        except (httpx.HTTPError, LookupError, ValueError) as error:
            await message.respond(json.dumps({"success": False, "error": str(error)}).encode())
            return
        name, replaces = str(row["name"]), "address" not in done or bool(body.get("force"))
        if replaces or name not in self.backends:
            self.backends[name] = row | {"installed_at": self._installed_at()}
        await message.respond(json.dumps(done).encode())

    def _installed_at(self) -> str:
        """The time in whole seconds, as metadata.json has it; never the same twice."""
        self._installed_s = max(int(time.time()), self._installed_s + 1)  # noqa: TID251 - as above.
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._installed_s))

    async def _looked_up(self, body: JSON) -> JSON:
        """The build for a machine without a GPU. LookupError when no gallery has the backend."""
        name = str(body.get("backend", "")).rpartition("@")[2]
        async with httpx.AsyncClient(timeout=_HTTP_S, trust_env=False, verify=_PLAIN) as web:
            for gallery in json.loads(str(body.get("backend_galleries") or "[]")):
                index = yaml.safe_load((await web.get(gallery["url"])).raise_for_status().text)
                entries = {entry["name"]: entry for entry in index}
                build = entries.get(name, {}).get("capabilities", {}).get("default", name)
                if build in entries:
                    row: JSON = {"name": build, "is_system": False, "is_meta": False}
                    return row | {"gallery_url": gallery["url"], "uri": entries[build]["uri"]}
        raise LookupError(f"no backend found with name {name!r}")

    def _listed(self, request: JSON) -> JSON:
        return {"backends": list(self.backends.values()) or None}

    def _deleted(self, request: JSON) -> JSON:
        if self.backends.pop(str(request.get("backend")), None) is None:
            return {"success": False, "error": "backend not found", "reports_stopped_processes": True}
        return _OK | {"reports_stopped_processes": True}


class TellingWorker(RememberingWorker):
    """It prints every command, one line of JSON each."""

    def heard(self, verb: str, body: JSON) -> None:
        print(json.dumps({"verb": verb, "body": body}), flush=True)


def _nothing_to_stop(request: JSON) -> JSON:
    return {
        "matched": False,
        "freed": False,
        "terminated": True,
        "process_key": request.get("process_key", ""),
    }


async def _ignore(message: Msg, body: JSON) -> None:
    return None


def _sign(seed: str, nonce: str) -> bytes:
    pair = nkeys.from_seed(bytearray(seed.encode()))
    try:
        return base64.b64encode(pair.sign(nonce.encode()))
    finally:
        pair.wipe()


async def _main(options: WorkerOptions) -> None:
    worker = TellingWorker(options)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_stop_on_signal, worker)
        async with anyio.create_task_group() as running:
            await running.start(worker.run)
            print(f"ready {worker.id}", flush=True)
        tasks.cancel_scope.cancel()


async def _stop_on_signal(worker: LocalAiWorker) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            worker.stop()


def _options() -> WorkerOptions:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--register-to", required=True)
    parser.add_argument("--nats-url", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--require-auth", action="store_true")
    parser.add_argument("--heartbeat-s", type=float, default=10.0)
    parser.add_argument("--install-s", type=float, default=0.0)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--lacks", action="append", default=[])
    asked = vars(parser.parse_args())
    asked["lacks"] = tuple(asked["lacks"])
    return WorkerOptions(token=os.environ.get("LOCALAI_REGISTRATION_TOKEN", ""), **asked)


if __name__ == "__main__":
    anyio.run(_main, _options())
