"""What a LocalAI frontend on the same bus tells of models that it brings to its nodes (2.6.3, 8.6, 8.7)."""

import json
from pathlib import Path

import pytest

from tests.support.frontends import live_frontend
from tests.support.nats_servers import connected, plain_server
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

TOLD = {
    "model_id": "org/qwen.v1",
    "status": {
        "model_id": "org/qwen.v1",
        "node_name": "theirs",
        "file_name": "qwen.gguf",
        "speed": "12.5 MB/s",
        "message": "Staging file 2/3",
        "bytes_sent": 0,
        "total_bytes": 900,
        "progress": 41.7,
        "file_index": 2,
        "total_files": 3,
        "started_at": "2026-03-01T12:00:00Z",
    },
    "done": False,
}


async def test_staging_of_another_frontend_is_shown_until_it_is_done(tmp_path: Path) -> None:
    async with (
        plain_server(tmp_path) as server,
        live_frontend(tmp_path / "ours", nats_url=server.url, insecure_no_token=True) as frontend,
        connected(server.url) as bus,
    ):
        shown: list[dict[str, object]] = []

        async def listed(count: int) -> bool:
            payload = TOLD if count else {"model_id": "org/qwen.v1", "done": True}
            await bus.publish("staging.org-qwen-v1.progress", json.dumps(payload).encode())
            shown[:] = (await frontend.admin.get("/api/operations")).json()["operations"]
            return len(shown) == count

        await wait_until(lambda: listed(1), within=20, what="the staging to be listed")
        assert shown == [
            {
                "id": "staging:org/qwen.v1",
                "fullName": "org/qwen.v1",
                "name": "org/qwen.v1",
                "jobID": "staging:org/qwen.v1",
                "progress": 41,
                "taskType": "staging",
                "isDeletion": False,
                "isBackend": False,
                "isQueued": False,
                "cancellable": False,
                "message": "Staging file 2/3",
                "nodeName": "theirs",
                "phase": "staging",
                "currentBytes": 0,
                "totalBytes": 900,
                "nodes": [],
            }
        ]
        status = await frontend.admin.get("/api/models/org/qwen.v1/load-status")
        assert (status.status_code, status.json()) == (
            200,
            {
                "model": "org/qwen.v1",
                "state": "staging",
                "node": "theirs",
                "progress": 41.7,
                "bytes_sent": 0,
                "total_bytes": 900,
                "file_index": 2,
                "total_files": 3,
            },
        )
        await wait_until(lambda: listed(0), within=20, what="its end")
        assert (await frontend.admin.get("/api/models/org/qwen.v1/load-status")).status_code == 404
