"""A conversation at a terminal."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from click.testing import CliRunner

from remuda.cli import chat
from remuda.cli.invocation import ClientOptions
from remuda.cli.output import as_text
from remuda.core.errors import Invalid, PeerFailed


class Model:
    """Answers each message with what the script has for it."""

    def __init__(self, *script: str | BaseException) -> None:
        self.script = list(script)
        self.heard: list[list[str]] = []

    def answer(self, asked: ClientOptions, body: dict[str, object], reply: chat.ChatReply) -> Iterator[str]:
        messages = body["messages"]
        assert isinstance(messages, list)
        self.heard.append([message["content"] for message in messages])
        match self.script.pop(0):
            case str(text):
                reply.pieces.append(text)
                yield text
            case error:
                assert isinstance(error, BaseException)
                raise error


def test_answer_that_fails_does_not_end_the_conversation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = Model("hello", PeerFailed("qwen is being loaded"), "yes")
    monkeypatch.setattr(chat, "_answer", model.answer)
    chat._converse(ClientOptions(), {"model": "qwen"}, [], ["hi", "are you there?", "are you well?"])

    shown = capsys.readouterr()
    assert "qwen is being loaded" in shown.err
    assert model.heard[-1] == ["hi", "hello", "are you well?"]


def test_model_cannot_steer_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(chat, "_answer", Model("one\n\ttwo\x1b]0;owned\x07\r").answer)
    chat._converse(ClientOptions(), {"model": "qwen"}, [], ["hi"])

    assert capsys.readouterr().out == "one\n\ttwo ]0;owned  \n"


def test_prompt_is_answered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model("hello")
    monkeypatch.setattr(chat, "_answer", model.answer)
    done = CliRunner().invoke(chat.chat, ["qwen", "hi there"], input="not read")

    assert (done.exit_code, done.output) == (0, "hello\n")
    assert model.heard == [["hi there"]]


def test_answer_that_is_stopped_has_the_exit_code_of_interrupted_commands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chat, "_answer", Model(KeyboardInterrupt()).answer)
    stopped = CliRunner().invoke(chat.chat, ["qwen", "hi there"])

    assert (stopped.exit_code, stopped.stdout, stopped.stderr) == (130, "", " (stopped)\n")


@pytest.mark.parametrize("bye", ["/bye", "/exit", "/quit"])
def test_conversation_ends_with_a_command_and_refuses_unknown_ones(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], bye: str
) -> None:
    typed = iter(["/help", "/set system x", "/etc/hosts: what is it?", bye, "not reached"])
    monkeypatch.setattr("builtins.input", lambda prompt: next(typed))

    assert list(chat._lines()) == ["/etc/hosts: what is it?"]
    assert capsys.readouterr().err.splitlines() == [
        "there is no /help here: /bye, /exit or /quit ends the conversation",
        "there is no /set here: /bye, /exit or /quit ends the conversation",
    ]


def test_nothing_is_not_said_to_a_model() -> None:
    asked = CliRunner().invoke(chat.chat, ["qwen"], input="\n")

    assert isinstance(asked.exception, Invalid)
    assert "standard input is empty" in asked.exception.message


@pytest.mark.parametrize("text", ["日本語", "👩\u200d💻", "שלום", "a\u0301"])
def test_text_of_any_script_is_shown_as_it_is(text: str) -> None:
    assert as_text(text) == text


def test_half_a_character_is_shown_as_what_cannot_be() -> None:
    assert as_text("a\ud83d") == "a\ufffd"


class Stream:
    """A frontend's answer, in these chunks."""

    def __init__(self, *chunks: bytes) -> None:
        self.chunks = chunks

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None: ...

    @contextmanager
    def post_stream(self, *path: str, **how: object) -> Iterator[tuple[dict[str, str], Iterator[bytes]]]:
        yield {}, iter(self.chunks)


_WAITS = b": waiting for qwen: barn: it could not be reached a moment ago\n\n"


@pytest.mark.parametrize("terminal", [False, True])
def test_what_is_waited_for_is_told_until_the_answer_begins(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: bool
) -> None:
    text = b'data: {"choices": [{"delta": {"content": "hi"}}]}\n\n'
    stream = Stream(_WAITS, _WAITS, b": node attic\n\n" + text, b": noise\n\n", b"data: [DONE]\n\n")
    monkeypatch.setattr(chat, "connect", lambda asked: stream)
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    reply = chat.ChatReply()

    assert list(chat._answer(ClientOptions(), {"model": "qwen"}, reply)) == ["hi"]

    said, clear = "waiting for qwen: barn: it could not be reached a moment ago", "\r\x1b[K"
    assert capsys.readouterr().err == (f"{clear}{said}{clear}" if terminal else f"{said}\n")
    assert reply.node == "attic"


def test_reasons_in_a_stream_are_broken_into_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = {"message": "no node can take qwen: a: b; c: d", "details": ["a: b", "c: d"]}
    stream = Stream(f"data: {json.dumps({'error': error})}\n\n".encode())
    monkeypatch.setattr(chat, "connect", lambda asked: stream)
    chat._converse(ClientOptions(), {"model": "qwen"}, [], ["hi"])

    assert capsys.readouterr().err == "\nno node can take qwen:\n  a: b\n  c: d\n"
