"""How smoothly the console's page runs and whether its memory stays flat: a real browser, a scripted API.

300 machines and 50 operations, each of whose steps moves with every tick. Prints
- times between frames, p50 and p95, and the layout shift of the page while it ticks (aims: 33 ms, 0);
- the heap of the page, after forced garbage collections, before and after as many ticks as come in an hour.

    uv run --group dev python -m bench.console_page [--nodes 300] [--operations 50] [--quick]
"""

import argparse
import asyncio
import json
import mimetypes
import os
import statistics
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from aiohttp import web
from playwright.async_api import CDPSession, Page, async_playwright
from tests.support.debian import debian_program

STATIC: Final = Path(__file__).resolve().parent.parent / "src/remuda/ui/static"
GIB: Final = 1 << 30
HOUR_TICKS: Final = 3600
PAGES: Final = ("/fleet?view=table", "/operations")
FRAMES: Final = """
() => {
  window.frames_ms = []; window.shift = 0;
  let last = performance.now();
  const step = (now) => { window.frames_ms.push(now - last); last = now; requestAnimationFrame(step); };
  requestAnimationFrame(step);
  new PerformanceObserver((list) => {
    for (const one of list.getEntries()) if (!one.hadRecentInput) window.shift += one.value;
  }).observe({ type: 'layout-shift' });
}
"""


@dataclass
class Fleet:
    """What a frontend would tell, and the change of every tick."""

    nodes: int
    operations: int
    tick: int = 0
    listeners: set[asyncio.Queue[str]] = field(default_factory=set)

    def node(self, number: int) -> dict[str, Any]:
        return {
            "id": f"node-{number}",
            "name": f"machine-{number:03}",
            "status": "healthy",
            "address": f"10.0.0.{number}:50051",
            "total_ram": 64 * GIB,
            "available_ram": (20 + (number + self.tick) % 40) * GIB,
            "total_disk": 1000 * GIB,
            "available_disk": 300 * GIB,
            "in_flight_count": (number * 7 + self.tick) % 5,
            "labels": {"room": f"r{number % 9}"},
        }

    def operation(self, number: int) -> dict[str, Any]:
        done = (self.tick * 3 + number) % 100
        step = {
            "node_id": f"node-{number}",
            "node_name": f"machine-{number:03}",
            "state": "running",
            "progress": {
                "phase": "downloading",
                "file_name": "layer.tar",
                "current_bytes": done * (GIB // 100),
                "total_bytes": GIB,
                "percentage": done,
                "rate_bytes_s": 40_000_000 + done,
                "left_s": 100 - done,
            },
        }
        return {
            "id": f"op-{number:03}",
            "kind": "install",
            "status": "running",
            "backend": f"backend-{number}",
            "percentage": done,
            "counts": {"running": 1},
            "asked_at": "2026-01-01T00:00:00Z",
            "steps": [step],
            "whole": True,
        }

    def attention(self) -> list[dict[str, Any]]:
        return []

    def snapshot(self) -> str:
        body = {
            "nodes": [self.node(number) for number in range(self.nodes)],
            "operations": [self.operation(number) for number in range(self.operations)],
            "models": [],
            "replicas": [],
            "attention": self.attention(),
        }
        return _event("snapshot", body)

    def advance(self) -> None:
        """A tenth of all nodes have sent a heartbeat, and all operations have moved."""
        self.tick += 1
        heard = [self.node(number) for number in range(self.tick % 10, self.nodes, 10)]
        moved = [self.operation(number) for number in range(self.operations)]
        told = _event("change", {"nodes": {"set": heard}, "operations": {"set": moved}})
        for listener in self.listeners:
            listener.put_nowait(told)


def _event(name: str, body: object) -> str:
    return f"event: {name}\nid: 1\ndata: {json.dumps(body)}\n\n"


@asynccontextmanager
async def scripted_api(fleet: Fleet) -> AsyncIterator[str]:
    async def events(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        mine: asyncio.Queue[str] = asyncio.Queue()
        fleet.listeners.add(mine)
        try:
            await answer.write(fleet.snapshot().encode())
            while True:
                await answer.write((await mine.get()).encode())
        except ConnectionError:
            return answer  # The page was left.
        finally:
            fleet.listeners.discard(mine)

    async def session(_request: web.Request) -> web.Response:
        return web.json_response({"authenticated": True, "scope": "admin", "loopback": True})

    async def file(request: web.Request) -> web.Response:
        path = STATIC / request.path.lstrip("/")
        found = path if path.is_file() else STATIC / "index.html"
        kind = mimetypes.guess_type(found.name)[0] or "application/octet-stream"
        return web.Response(body=found.read_bytes(), content_type=kind)

    app = web.Application()
    app.router.add_get("/api/events", events)
    app.router.add_get("/api/session", session)
    app.router.add_get("/{path:.*}", file)
    runner = web.AppRunner(app, shutdown_timeout=0.5)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


async def heap_bytes(devtools: CDPSession) -> int:
    """What is left when all that can go has gone."""
    for _ in range(3):
        await devtools.send("HeapProfiler.collectGarbage")
    told = await devtools.send("Runtime.getHeapUsage")
    return int(told["usedSize"])


async def ticks(fleet: Fleet, count: int, every_s: float) -> None:
    for _ in range(count):
        fleet.advance()
        await asyncio.sleep(every_s)


async def smoothness(page: Page, fleet: Fleet, path: str, count: int) -> str:
    await page.goto(path)
    await page.get_by_text("machine-000" if "fleet" in path else "backend-0", exact=False).first.wait_for()
    await page.evaluate(FRAMES)
    await ticks(fleet, count, 1.0)
    frames_ms, shift = await page.evaluate("() => [window.frames_ms, window.shift]")
    p95 = statistics.quantiles(frames_ms, n=20)[-1]
    return f"{path:20} {statistics.median(frames_ms):8.1f} {p95:8.1f} {max(frames_ms):8.1f} {shift:8.4f}"


async def measure(fleet: Fleet, url: str, seconds: int, hour: int) -> None:
    async with async_playwright() as playwright:
        program = debian_program("chromium", "chromium")
        browser = await playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = await browser.new_page(base_url=url, viewport={"width": 1440, "height": 900})
        print("page                   p50 ms   p95 ms   max ms    shift")
        for path in PAGES:
            print(await smoothness(page, fleet, path, seconds))
        devtools = await page.context.new_cdp_session(page)
        for path in PAGES:
            await page.goto(path)
            await ticks(fleet, hour // 20, 0.02)
            before = await heap_bytes(devtools)
            await ticks(fleet, hour, 0.02)
            after = await heap_bytes(devtools)
            print(f"{path:20} heap before {before / 1e6:.2f} MB, after {hour} ticks {after / 1e6:.2f} MB")
        await browser.close()


async def run(given: argparse.Namespace) -> None:
    fleet = Fleet(given.nodes, given.operations)
    async with scripted_api(fleet) as url:
        seconds, hour = (3, 60) if given.quick else (20, HOUR_TICKS)
        await measure(fleet, url, seconds, hour)


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--nodes", type=int, default=300)
    options.add_argument("--operations", type=int, default=50)
    options.add_argument("--quick", action="store_true", help="a few ticks: does it work at all?")
    given = options.parse_args()
    print(
        f"{given.nodes} machines, {given.operations} operations, load {os.getloadavg()[0]:.1f} at the start"
    )
    asyncio.run(run(given))
    print(f"load {os.getloadavg()[0]:.1f} at the end")


if __name__ == "__main__":
    main()
