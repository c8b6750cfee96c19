"""What an install tells beside its success."""

import pytest
from click.testing import CliRunner

from remuda.cli import model_installs, ops_wait
from remuda.cli.client import AdminClient, ApiAnswer
from remuda.cli.exits import Exit
from remuda.cli.target import Target
from remuda.cli.verbs import root
from remuda.wire.codec import encode
from remuda.wire.operations import OpSubmitted, OpView
from remuda.wire.serving import ModelItem
from tests.unit.cli.ops_views import NOON, a_step, an_op

RENAMED = "old/tiny is now called org/tiny; name it so"


def op(status: str, reason: str = "") -> OpView:
    step = a_step("frontends", status, reason=reason)
    return an_op(step, kind="install_model", model="tiny", status=status)


class Installing(AdminClient):
    note = RENAMED
    model = ModelItem(name="tiny", usecases=("chat", "completion"))

    def call(self, method: str, *path: str, **more: object) -> ApiAnswer:
        return ApiAnswer(202, encode(OpSubmitted(operation=op("running"))), NOON)

    def get(self, *path: str, **query: str) -> ApiAnswer:
        if path[1] == "models":
            return ApiAnswer(200, encode(self.model), NOON)
        return ApiAnswer(200, encode(op("succeeded", self.note)), NOON)


def installed(monkeypatch: pytest.MonkeyPatch, model: ModelItem, note: str = "") -> str:
    client = Installing(Target("http://127.0.0.1:1"))
    client.model, client.note = model, note
    monkeypatch.setattr(model_installs, "connect", lambda *_: client)
    monkeypatch.setattr(ops_wait, "wait_and_report", lambda *_, **__: Exit.DONE)
    return CliRunner().invoke(root, ["pull", "tiny"], catch_exceptions=False).stdout


@pytest.mark.parametrize(
    ("uses", "words"),
    [
        ((), "try it with: remuda chat tiny"),
        (("chat", "completion", "vision"), "try it with: remuda chat tiny"),
        (("embeddings",), "it is for embeddings: POST /v1/embeddings"),
        (("rerank",), "it is for rerank: POST /v1/rerank"),
        (("completion",), "it is for completion: POST /v1/completions"),
        (("image",), "it is for image"),
    ],
)
def test_a_chat_is_advised_of_what_can_chat(
    monkeypatch: pytest.MonkeyPatch, uses: tuple[str, ...], words: str
) -> None:
    assert installed(monkeypatch, ModelItem(name="tiny", usecases=uses)) == f"tiny: installed; {words}\n"


def test_what_no_node_can_take_is_not_to_be_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    model = ModelItem(name="tiny", problem="no node can take tiny: attic: it has no GPU")
    assert installed(monkeypatch, model) == f"tiny: installed, but {model.problem}\n"
    note = "no node can serve it yet: it needs the backend vllm"
    assert installed(monkeypatch, ModelItem(name="tiny"), note) == "tiny: installed\n"


def test_a_repository_with_another_name_by_now_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_installs, "connect", lambda *_: Installing(Target("http://127.0.0.1:1")))
    monkeypatch.setattr(ops_wait, "wait_and_report", lambda *_, **__: Exit.DONE)
    done = CliRunner().invoke(root, ["pull", "hf://old/tiny"], catch_exceptions=False)
    assert done.stdout == "tiny: installed; try it with: remuda chat tiny\n"
    assert done.stderr == f"note: {RENAMED}\n"
