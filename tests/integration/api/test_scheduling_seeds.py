"""Replicas that are declared by settings are stored when a frontend starts."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.frontends import LiveFrontend, live_frontend
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def declared(frontend: LiveFrontend) -> dict[str, int]:
    rows: list[dict[str, Any]] = (await frontend.admin.get("/api/nodes/scheduling")).json()
    return {row["model_name"]: row["min_replicas"] for row in rows}


async def test_declared_at_the_start_and_what_was_changed_since_stays(tmp_path: Path) -> None:
    seeds = [{"model_name": "a", "min_replicas": 1}, {"model_name": "b", "min_replicas": 2}]
    async with live_frontend(tmp_path, model_scheduling=seeds) as first:

        async def all_there() -> bool:
            return await declared(first) == {"a": 1, "b": 2}

        await wait_until(all_there, what="what the setting says")
        changed = {"model_name": "a", "min_replicas": 3}
        assert (await first.admin.post("/api/nodes/scheduling", json=changed)).status_code == 200
        assert (await first.admin.delete("/api/nodes/scheduling/b")).status_code == 204
        key = first.admin.headers
    async with live_frontend(tmp_path, model_scheduling=seeds) as again:
        again.admin.headers = key

        async def seeded_again() -> bool:
            return (await declared(again)).get("b") == 2

        await wait_until(seeded_again, what="what was withdrawn")
        assert await declared(again) == {"a": 3, "b": 2}
