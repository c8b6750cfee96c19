"""A console's side of the stream of everything: what it knows, kept up to date by the events it is sent."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx

PATIENCE_S = 30.0
Json = dict[str, Any]


class Console:
    """What a console shows: entities by collection and id."""

    def __init__(self) -> None:
        self.shown: dict[str, dict[str, Json]] = {}
        self.events: list[tuple[str, Json]] = []
        self.place = ""
        self.trouble: Json | None = None
        self.ended = False
        self._changed = anyio.Event()

    def take(self, name: str, place: str, data: Json) -> None:
        self.events.append((name, data))
        self.place = place or self.place
        match name:
            case "snapshot":
                self.shown = {key: {one["id"]: one for one in found} for key, found in data.items()}
            case "change":
                for key, changed in data.items():
                    known = self.shown.setdefault(key, {})
                    known.update({one["id"]: one for one in changed.get("set", ())})
                    for gone in changed.get("gone", ()):
                        del known[gone]
            case "trouble":
                self.trouble = data
            case "well":
                self.trouble = None
        self.wake()

    def wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def until(self, holds: Callable[["Console"], Any], within_s: float = PATIENCE_S) -> None:
        with anyio.fail_after(within_s):
            while not holds(self):
                await self._changed.wait()

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.events]

    def named(self, collection: str) -> dict[str, Json]:
        return {one["name"]: one for one in self.shown.get(collection, {}).values()}


@asynccontextmanager
async def console(
    client: httpx.AsyncClient, *, place: str = "", known: Console | None = None
) -> AsyncIterator[Console]:
    """A console that follows the frontend of `client` while the block lasts. `known`: one that was cut off
    continues."""
    shown = known or Console()
    headers = {"Last-Event-ID": place or shown.place} if place or shown.place else {}
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_follow, client, headers, shown)
        yield shown
        tasks.cancel_scope.cancel()


async def _follow(client: httpx.AsyncClient, headers: dict[str, str], shown: Console) -> None:
    shown.ended = False
    try:
        async with client.stream("GET", "/api/events", headers=headers, timeout=PATIENCE_S) as answer:
            if answer.status_code != 200:
                raise AssertionError((await answer.aread()).decode())
            event: dict[str, str] = {}
            async for line in answer.aiter_lines():
                if line.startswith(":"):
                    continue
                if line:
                    field, _, value = line.partition(": ")
                    event[field] = value
                    continue
                if "event" in event:
                    shown.take(event["event"], event.get("id", ""), json.loads(event["data"]))
                event = {}
    except httpx.TransportError:
        pass
    shown.ended = True
    shown.wake()
