"""`remuda backends remove` asks first, where there is somebody to ask."""

from collections.abc import Mapping
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from remuda.cli import fleet_backends
from remuda.cli.client import AdminClient, ApiAnswer
from remuda.cli.exits import Exit
from remuda.cli.target import Target
from remuda.cli.verbs import root
from remuda.wire.codec import encode
from remuda.wire.operations import OpSubmitted
from remuda.wire.serving import ModelItem, ModelItems
from tests.unit.cli.ops_views import an_op


class Fleet(AdminClient):
    """A frontend with one model that needs the backend, and one that does not."""

    def __init__(self) -> None:
        super().__init__(Target("http://127.0.0.1:1"))
        self.begun = 0

    def call(
        self, method: str, *path: str, body: object = None, query: Mapping[str, str] | None = None
    ) -> ApiAnswer:
        if path == ("api", "models"):
            models = (ModelItem(name="qwen", backend="echo"), ModelItem(name="bge", backend="other"))
            return ApiAnswer(200, encode(ModelItems(models=models)), None)
        self.begun += 1
        return ApiAnswer(200, encode(OpSubmitted(operation=an_op())), None)


@pytest.mark.parametrize(
    ("terminal", "words", "typed", "asks", "begun"),
    [
        (True, (), "n\n", True, 0),
        (True, (), "y\n", True, 1),
        (True, ("--yes",), "", False, 1),
        (True, ("--json",), "", False, 1),
        (False, (), "", False, 1),
    ],
)
def test_removal_is_asked_about_at_a_terminal_with_the_models_that_need_it(
    monkeypatch: pytest.MonkeyPatch,
    terminal: bool,
    words: tuple[str, ...],
    typed: str,
    asks: bool,
    begun: int,
) -> None:
    fleet = Fleet()
    monkeypatch.setattr(fleet_backends, "connect", lambda *_, **__: fleet)
    stdin = SimpleNamespace(isatty=lambda: terminal)
    monkeypatch.setattr(fleet_backends, "sys", SimpleNamespace(stdin=stdin))

    done = CliRunner().invoke(root, ["backends", "remove", "echo", "--no-wait", *words], input=typed)

    assert ("echo is needed by qwen\n" in done.stderr) is asks
    assert ("Remove echo from all nodes?" in done.stderr) is asks
    assert fleet.begun == begun
    assert done.exit_code == (Exit.DONE if begun else Exit.INTERRUPTED)
