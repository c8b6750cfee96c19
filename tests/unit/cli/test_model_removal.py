"""What `remuda rm` says, and when."""

from collections.abc import Mapping
from typing import Any

import pytest
from click.testing import CliRunner

from remuda.cli import model_installs, ops_wait
from remuda.cli.client import AdminClient, ApiAnswer
from remuda.cli.exits import Exit
from remuda.cli.ops_state import Picture
from remuda.cli.target import Target
from remuda.cli.verbs import root
from remuda.gateway.attention import FRONTENDS
from remuda.wire.codec import encode
from remuda.wire.nodes import NodeView
from remuda.wire.operations import OpView, ProblemView
from remuda.wire.serving import ModelItem, ModelItems, ModelRemoved
from tests.unit.cli.ops_views import ID, NOON, a_step, an_op


class Removing(AdminClient):
    """A frontend with an alias of what is removed."""

    def call(
        self, method: str, *path: str, body: object = None, query: Mapping[str, str] | None = None
    ) -> ApiAnswer:
        assert path[-1] == "teeny"
        done = ModelRemoved(message="", operation=removing("pending"), file_kept="my.gguf")
        return ApiAnswer(200, encode(done), None)

    def get(self, *path: str, **query: str) -> ApiAnswer:
        if path == ("api", "ops", ID):
            return ApiAnswer(200, encode(removing("succeeded", reason="4 MB freed; a/b stays")), None)
        return ApiAnswer(200, encode(ModelItems(models=(ModelItem(name="tiny", alias="teeny"),))), None)


def removing(state: str, **facts: object) -> OpView:
    step = a_step("frontends", state, **facts).model_copy(update={"node_id": FRONTENDS})
    ended = None if state == "pending" else NOON
    return an_op(step, kind="remove_model", model="teeny", status=state, finished_at=ended)


def test_what_stays_of_a_removed_model_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_installs, "connect", lambda *_: Removing(Target("http://127.0.0.1:1")))
    monkeypatch.setattr(ops_wait, "_wait", lambda *_: Picture({ID: removing("succeeded")}))
    done = CliRunner().invoke(root, ["rm", "teeny"])
    assert done.stdout == "teeny: removed; 4 MB freed; a/b stays\n"
    assert done.stderr.splitlines() == [
        "note: my.gguf was not downloaded by Remuda and stays in the models folder; delete it there if it is "
        "not needed",
        "note: tiny is an alias of teeny, which is gone; remove it with: remuda rm tiny",
    ]


def test_a_model_is_said_to_be_removed_only_when_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = ProblemView(code="misconfigured", message="m.gguf cannot be removed: Permission denied")
    failed = removing("failed", problem=problem)
    monkeypatch.setattr(model_installs, "connect", lambda *_: Removing(Target("http://127.0.0.1:1")))
    monkeypatch.setattr(ops_wait, "_wait", lambda *_: Picture({ID: failed}))
    done = CliRunner().invoke(root, ["rm", "teeny"])
    assert (done.exit_code, done.stdout) == (Exit.NOT_EVERYWHERE, "")
    assert "m.gguf cannot be removed: Permission denied" in done.stderr
    later = CliRunner().invoke(root, ["rm", "teeny", "--no-wait"])
    assert later.stdout == (
        "teeny: removed; its files go from the frontends with operation 3f2a1b0c; "
        "watch it with: remuda ops watch 3f2a1b0c\n"
    )


def test_all_places_that_have_its_files_yet_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [a_step(name, "pending").model_copy(update={"node_id": name}) for name in ("attic", "nas")]
    peer = a_step("peer", "skipped", reason="it stays there").model_copy(update={"node_id": "peer"})
    own = a_step("frontends", "pending").model_copy(update={"node_id": FRONTENDS})
    op = an_op(own, *steps, peer, kind="remove_model", model="teeny", status="pending", finished_at=None)

    class Everywhere(Removing):
        def call(self, *words: Any, **more: Any) -> ApiAnswer:
            return ApiAnswer(200, encode(ModelRemoved(message="", operation=op, in_storage=True)), None)

        def nodes(self) -> tuple[ApiAnswer, list[NodeView]]:
            views = [
                NodeView(id="attic", name="attic", status="healthy"),
                NodeView(id="nas", name="nas", status="offline"),
            ]
            return ApiAnswer(200, b"", None), views

    monkeypatch.setattr(model_installs, "connect", lambda *_: Everywhere(Target("http://127.0.0.1:1")))
    done = CliRunner().invoke(root, ["rm", "teeny"])
    assert done.stdout == (
        "teeny: removed; its files go from the frontends and 2 nodes (attic, nas; offline, when back: nas) "
        "with operation 3f2a1b0c; its files in object storage go with the frontend that put them there, "
        "whose log says when; watch it with: remuda ops watch 3f2a1b0c\n"
    )
    assert "note: peer: it stays there" in done.stderr
