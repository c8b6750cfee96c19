"""`remuda chat MODEL` while MODEL is being installed."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from click.testing import CliRunner

from remuda.cli import chat, model_arguments, model_installs, ops_watch
from remuda.cli.client import AdminClient, ApiAnswer
from remuda.cli.invocation import ClientOptions
from remuda.cli.ops_state import Picture
from remuda.cli.target import Target
from remuda.core.errors import Forbidden, NotFound, RemudaError
from remuda.wire.codec import encode
from remuda.wire.model_galleries import GalleryModelView
from remuda.wire.operations import OpView, OpViews
from remuda.wire.serving import ModelItem, ModelItems
from tests.unit.cli.ops_views import NOON, a_step, an_op, op_event

NAME = "qwen3-0.6b"


def install(status: str, error: str = "") -> OpView:
    ended = None if status in ("running", "retrying", "paused") else NOON
    return an_op(kind="install_model", model=NAME, status=status, error=error, finished_at=ended)


def failed(retry_in_s: float) -> OpView:
    step = a_step("frontends", "pending", retry_in_s=retry_in_s, not_before=NOON)
    return an_op(
        step, kind="install_model", model=NAME, status="retrying", error="no network", finished_at=None
    )


@dataclass
class Fleet:
    """A frontend whose install of the model goes as `course` has it."""

    course: list[OpView]
    there: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    admin: bool = True
    usecases: tuple[str, ...] = ()

    def client(self, *_: object) -> AdminClient:
        return Client(self)

    def follow(self, *_: object) -> Iterator[Picture]:
        for op in self.course:
            self.course = [op]
            if op.status == "succeeded":
                self.there.add(NAME)
            yield Picture(only=frozenset([op.id])).after(op_event(op))

    def answer(self, options: ClientOptions, body: dict[str, object], reply: chat.ChatReply) -> Iterator[str]:
        model = str(body["model"])
        self.asked.append(model)
        if model not in self.there:
            raise NotFound(f"there is no model {model!r}")
        reply.pieces.append("hello")
        yield "hello"


class Client(AdminClient):
    def __init__(self, fleet: Fleet) -> None:
        super().__init__(Target("http://127.0.0.1:1"))
        self.fleet = fleet

    def get(self, *path: str, **query: str) -> ApiAnswer:
        match path:
            case ("v1", "models"):
                return ApiAnswer(200, b'{"data": []}', NOON)
            case ("api", *_) if not self.fleet.admin:
                raise Forbidden("for admins")
            case ("api", "models"):
                models = tuple(ModelItem(name=name) for name in self.fleet.there)
                return ApiAnswer(200, encode(ModelItems(models=models)), NOON)
            case ("api", "models", name):
                return ApiAnswer(200, encode(ModelItem(name=name, usecases=self.fleet.usecases)), NOON)
            case ("api", "ops"):
                live = tuple(op for op in self.fleet.course[:1] if op.finished_at is None)
                return ApiAnswer(200, encode(OpViews(operations=live)), NOON)
            case ("api", "ops", _):
                return ApiAnswer(200, encode(self.fleet.course[0]), NOON)
            case ("api", "galleries", "models", "qwen3:0.6b"):
                return ApiAnswer(200, encode(GalleryModelView(id="g@m", name=NAME, gallery="g")), NOON)
        raise NotFound("no such entry")


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Fleet:
    one = Fleet([install("running"), install("succeeded")])
    for module in (chat, model_installs, model_arguments):
        monkeypatch.setattr(module, "connect", one.client)
    monkeypatch.setattr(ops_watch, "follow", one.follow)
    monkeypatch.setattr(chat, "_answer", one.answer)
    return one


@pytest.mark.parametrize("name", [NAME, "qwen3:0.6b"])
def test_a_message_waits_for_the_install_and_is_answered(fleet: Fleet, name: str) -> None:
    done = CliRunner().invoke(chat.chat, [name, "hi"], catch_exceptions=False)

    assert (done.exit_code, done.stdout) == (0, "hello\n")
    assert f"{NAME} is being downloaded; Ctrl-C stops waiting, not the download" in done.stderr
    assert fleet.asked == [name, NAME]


def test_a_conversation_begins_once_the_model_is_there(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    assert chat._awaited(ClientOptions(), "qwen3:0.6b") == NAME
    assert chat._awaited(ClientOptions(), "servers/other") == "servers/other", "not listed, and perhaps known"


@pytest.mark.parametrize(
    ("op", "said", "advised"),
    [
        (
            install("retrying", error="hub.test:443 cannot be reached"),
            f"{NAME} could not be downloaded: hub.test:443 cannot be reached; it is tried again",
            "remuda models add FILE.gguf",
        ),
        (
            failed(240),
            f"{NAME} could not be downloaded: no network; it is tried again in 4m",
            "remuda models add FILE.gguf",
        ),
        (
            install("failed", error="the disk is full"),
            f"{NAME} could not be downloaded: the disk is full",
            "remuda models add FILE.gguf",
        ),
        (install("paused"), f"the install of {NAME} is paused", "remuda ops resume"),
        (install("cancelled"), f"the install of {NAME} is cancelled", "remuda models add FILE.gguf"),
    ],
)
def test_what_does_not_come_says_why_and_what_helps(
    fleet: Fleet, op: OpView, said: str, advised: str
) -> None:
    fleet.course = [install("running"), op]
    refused = CliRunner().invoke(chat.chat, [NAME, "hi"])

    assert isinstance(refused.exception, NotFound)
    assert refused.exception.message == said
    assert advised in refused.exception.hint


def test_the_next_attempt_is_waited_for_where_it_comes_soon(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = [failed(30), install("running"), failed(60), install("running"), install("succeeded")]
    courses = [[install("running"), failed(30)], again]

    def follow(*_: object) -> Iterator[Picture]:
        fleet.course = courses.pop(0)
        yield from fleet.follow()

    monkeypatch.setattr(ops_watch, "follow", follow)
    done = CliRunner().invoke(chat.chat, [NAME, "hi"], catch_exceptions=False)

    assert done.stdout == "hello\n"
    assert done.stderr.count("an attempt has failed; instead of waiting, bring one by hand") == 1


def test_no_conversation_begins_with_a_model_that_does_not_talk(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.there.add(NAME)
    chat._check_talks(ClientOptions(), NAME)
    fleet.usecases = ("embeddings",)
    with pytest.raises(RemudaError, match=r"is for embeddings, and writes no text \(POST /v1/embeddings\)"):
        chat._check_talks(ClientOptions(), NAME)
    fleet.admin = False
    chat._check_talks(ClientOptions(), NAME)


def test_what_a_person_brings_meanwhile_is_answered_by(fleet: Fleet) -> None:
    fleet.course = [install("running"), install("cancelled")]
    refused = CliRunner().invoke(chat.chat, [NAME, "hi"])
    assert refused.exit_code != 0

    fleet.course = [install("running"), install("cancelled")]
    monkey = fleet.follow

    def brought(*_: object) -> Iterator[Picture]:
        fleet.there.add(NAME)
        yield from monkey()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ops_watch, "follow", brought)
        done = CliRunner().invoke(chat.chat, [NAME, "hi"], catch_exceptions=False)
    assert done.stdout == "hello\n"


def test_who_may_not_look_at_operations_is_told_what_the_frontend_said(fleet: Fleet) -> None:
    fleet.admin = False
    refused = CliRunner().invoke(chat.chat, [NAME, "hi"])
    assert isinstance(refused.exception, NotFound)
    assert refused.exception.message == f"there is no model '{NAME}'"
