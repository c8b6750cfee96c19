"""What is said before an upgrade is rolled out."""

from collections.abc import Mapping
from types import SimpleNamespace

import pytest
from click.testing import CliRunner, Result

from remuda.cli import fleet_backends
from remuda.cli.client import AdminClient, ApiAnswer
from remuda.cli.target import Target
from remuda.wire.codec import encode
from remuda.wire.operations import OpPlan, OpSubmitted
from tests.unit.cli.ops_views import an_op

WARNING = "attic cannot roll back"


class Warner(AdminClient):
    """A frontend that has something to say about every upgrade."""

    def __init__(self) -> None:
        super().__init__(Target("http://127.0.0.1:1"))
        self.asked: list[str] = []

    def call(
        self, method: str, *path: str, body: object = None, query: Mapping[str, str] | None = None
    ) -> ApiAnswer:
        assert isinstance(body, dict)
        self.asked.append("plan" if body["dry_run"] else "begin")
        plan = OpPlan(kind="upgrade", backend="echo", warnings=(WARNING,))
        begun = OpSubmitted(operation=an_op(), warnings=(WARNING,))
        return ApiAnswer(200, encode(plan if body["dry_run"] else begun), None)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Warner:
    client = Warner()
    monkeypatch.setattr(fleet_backends, "connect", lambda *_, **__: client)
    return client


def upgraded(*words: str, typed: str = "") -> Result:
    return CliRunner().invoke(fleet_backends.upgrade_backend, ["echo", *words, "--no-wait"], input=typed)


def test_who_cannot_go_back_is_said_once_and_before_anything_begins(client: Warner) -> None:
    result = upgraded("--rolling")

    assert result.exit_code == 0
    assert client.asked == ["plan", "begin"]
    assert result.stderr.count(WARNING) == 1


def test_at_a_terminal_it_begins_only_if_that_is_agreed_to(
    client: Warner, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr(fleet_backends, "sys", terminal)

    assert upgraded("--rolling", typed="n\n").exit_code != 0
    assert client.asked == ["plan"]
    assert upgraded("--rolling", typed="y\n").exit_code == 0
    assert client.asked == ["plan", "plan", "begin"]


def test_what_goes_to_all_at_once_is_begun_at_once(client: Warner) -> None:
    assert WARNING in upgraded().stderr
    assert client.asked == ["begin"]
