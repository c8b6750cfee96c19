"""`remuda chat` and `remuda run`: talk to a model of the fleet from a terminal."""

import json
import re
import shutil
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import click

from remuda.cli.commands import Amount, WholeNumber, client_command, connect, examples
from remuda.cli.exits import Exit
from remuda.cli.invocation import ClientOptions
from remuda.cli.model_arguments import complete_models, not_there
from remuda.cli.output import as_text, in_lines, one_line
from remuda.core.errors import Invalid, NotFound, PeerFailed, RemudaError

_QUIET_S = 600.0
_SHOW_NODE = {"x-remuda-show-node": "1"}
_COMMENT = re.compile(rb"^: (.+)$", re.MULTILINE)
_NODE = "node "
_QUIET_MAX_S = 3.0  # Then it is said that an answer is waited for.
_CLEAR_LINE = "\r\x1b[K"
_PIPE = 'for example: echo "Why is the sky blue?" | remuda chat MODEL'
_BYE = ("/bye", "/exit", "/quit")
_HOW_TO_END = "/bye, /exit or /quit ends the conversation"
_COMMAND = re.compile(r"/[A-Za-z?]*(?=\s|$)")  # A path such as /etc/hosts is a message.


@dataclass(slots=True)
class ChatReply:
    """What came back for one message."""

    text: str = ""
    node: str = ""
    tokens: int = 0
    first_s: float | None = None
    seconds: float = 0.0
    stopped: bool = False  # By Ctrl-C, before its end.
    pieces: list[str] = field(default_factory=list)


@click.command(
    "chat",
    epilog=examples(
        "remuda chat",
        "remuda chat smollm2-135m-instruct",
        'remuda chat smollm2-135m-instruct "Why is the sky blue?"',
        'remuda chat smollm2-135m-instruct --system "Answer in French." "Why is the sky blue?"',
        'echo "Why is the sky blue?" | remuda chat smollm2-135m-instruct',
    ),
)
@click.argument("model", required=False, shell_complete=complete_models)
@click.argument("prompt", required=False)
@click.option("--system", default="", help="System prompt. Default: none.")
@click.option(
    "--max-tokens", type=WholeNumber(1), help="Longest answer, in tokens. Default: the model's own."
)
@click.option("--temperature", type=Amount(), help="Sampling temperature. Default: the model's own.")
@client_command
def chat(
    options: ClientOptions,
    model: str | None,
    prompt: str | None,
    system: str,
    max_tokens: int | None,
    temperature: float | None,
) -> None:
    """Chat with a model. Answers are streamed.

    In a conversation each answer is followed by its speed and the node it came from; /bye, /exit or /quit
    ends it. With PROMPT, or text on standard input, one message is sent and only the answer is printed.
    MODEL can be left out where there is only one.
    """
    if options.as_json and prompt is None and sys.stdin.isatty():
        raise click.UsageError("--json needs one message: give a PROMPT, or pipe it in")
    name = model or _only_model(options)
    body = {"model": name, "stream": True, "stream_options": {"include_usage": True}}
    given = {"max_tokens": max_tokens, "temperature": temperature}
    body |= {key: value for key, value in given.items() if value is not None}
    messages = [{"role": "system", "content": system}] if system else []
    if prompt is not None or not sys.stdin.isatty():
        if not (text := (sys.stdin.read() if prompt is None else prompt).strip()):
            source = "standard input" if prompt is None else "PROMPT"
            raise Invalid(f"nothing to send: {source} is empty", hint=_PIPE)
        messages.append({"role": "user", "content": text})
        try:
            _once(options, {**body, "messages": messages})
        except NotFound as error:
            _once(options, {**body, "messages": messages, "model": _installed(options, name, error)})
        return
    if model is not None:
        name = body["model"] = _awaited(options, model)
    _check_talks(options, name)
    click.echo(one_line(f"{name}: type a message; {_HOW_TO_END}"), err=True)
    _converse(options, body, messages, _lines())


@click.command(
    "run",
    short_help="Chat with a model; install it first if it is missing.",
    epilog=examples("remuda run smollm2-135m-instruct", 'remuda run qwen3:0.6b "Why is the sky blue?"'),
)
@click.argument("what", metavar="MODEL", shell_complete=complete_models)
@click.argument("prompt", required=False)
@click.option("--name", default="", help="What to call the model when it is installed.")
@click.option("--system", default="", help="System prompt. Default: none.")
@click.option(
    "--max-tokens", type=WholeNumber(1), help="Longest answer, in tokens. Default: the model's own."
)
@click.option("--temperature", type=Amount(), help="Sampling temperature. Default: the model's own.")
@client_command
@click.pass_context
def run(
    ctx: click.Context,
    options: ClientOptions,
    what: str,
    prompt: str | None,
    name: str,
    system: str,
    max_tokens: int | None,
    temperature: float | None,
) -> None:
    """Chat with a model. One that is not there is installed first: MODEL is a name or a source."""
    from remuda.cli.model_installs import ensured

    model = ensured(options, what, name)
    ctx.invoke(
        chat,
        url=options.url,
        api_key=options.api_key,
        ca=options.ca,
        data_dir=options.data_dir,
        as_json=options.as_json,
        model=model,
        prompt=prompt,
        system=system,
        max_tokens=max_tokens,
        temperature=temperature,
    )


def _converse(
    options: ClientOptions, body: dict[str, object], messages: list[dict[str, str]], lines: Iterable[str]
) -> None:
    for line in lines:
        message = {"role": "user", "content": line}
        try:
            reply = _spoken(options, {**body, "messages": [*messages, message]})
        except RemudaError as error:  # The conversation continues without this message.
            click.echo("\n" + in_lines(str(error), error.details), err=True)
        else:
            messages += [message, {"role": "assistant", "content": reply.text}]


def _once(options: ClientOptions, body: dict[str, object]) -> None:
    if not options.as_json:
        if _spoken(options, body, about=False).stopped:
            raise click.exceptions.Exit(Exit.INTERRUPTED)
        return
    with connect(options, _QUIET_S) as client:
        plain = {key: value for key, value in body.items() if key not in ("stream", "stream_options")}
        click.echo(client.call("POST", "v1", "chat", "completions", body=plain).body)


def _spoken(options: ClientOptions, body: dict[str, object], *, about: bool = True) -> ChatReply:
    """The answer, shown as it comes."""
    from remuda.core.clock import SystemClock

    clock, reply = SystemClock(), ChatReply()
    began_s = clock.monotonic()
    try:
        for text in _answer(options, body, reply):
            if reply.first_s is None:
                reply.first_s = clock.monotonic() - began_s
            click.echo(as_text(text), nl=False)
    except KeyboardInterrupt:
        reply.stopped = True
        click.echo(" (stopped)", err=True)
    reply.seconds = clock.monotonic() - began_s
    reply.text = "".join(reply.pieces)
    if not reply.stopped or sys.stdout.isatty():  # Ctrl-C has ended the reader of a pipe, too.
        click.echo("")
    if about:
        click.echo(click.style(one_line(_about(reply)), dim=True), err=True)
    return reply


def _answer(options: ClientOptions, body: dict[str, object], reply: ChatReply) -> Iterator[str]:
    from remuda.core.sse import SseParser

    parser = SseParser()
    with (
        _Waiting(str(body["model"])) as waiting,
        connect(options) as client,
        client.post_stream("v1", "chat", "completions", body=body, headers=_SHOW_NODE, quiet_s=_QUIET_S) as (
            headers,
            chunks,
        ),
    ):
        reply.node = headers.get("x-remuda-node", "")
        for chunk in chunks:
            if waiting.shows:
                _hear_comments(chunk, reply, waiting)
            for event in parser.feed(chunk):
                waiting.end()
                if event.data == "[DONE]":
                    return
                yield from _pieces(json.loads(event.data), reply)


def _hear_comments(chunk: bytes, reply: ChatReply, waiting: "_Waiting") -> None:
    """They come before the answer: what is waited for, and at last the node, where the head was sent before
    that was known."""
    for comment in _COMMENT.findall(chunk):
        text = comment.decode(errors="replace")
        if text.startswith(_NODE):
            reply.node = reply.node or text.removeprefix(_NODE)
        else:
            waiting.say(text)


class _Waiting:
    """Says on standard error what is waited for, until the answer begins: on a terminal in one line that is
    written over, elsewhere a line for each thing that is new."""

    def __init__(self, model: str) -> None:
        self.shows = True
        self._on_terminal = sys.stderr.isatty()
        self._said = ""
        self._lock = threading.Lock()
        self._timer = threading.Timer(_QUIET_MAX_S, self._say_first, [f"waiting for {model} to answer"])
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def say(self, what: str) -> None:
        with self._lock:
            if not self.shows or what == self._said:
                return
            self._said = what
            if self._on_terminal:
                width = max(shutil.get_terminal_size().columns - 1, 1)
                click.echo(_CLEAR_LINE + one_line(what)[:width], nl=False, err=True)
            else:
                click.echo(one_line(what), err=True)

    def _say_first(self, what: str) -> None:
        if not self._said:
            self.say(what)

    def end(self) -> None:
        if not self.shows:
            return
        self._timer.cancel()
        with self._lock:
            self.shows = False
            if self._said and self._on_terminal:
                click.echo(_CLEAR_LINE, nl=False, err=True)


def _pieces(event: dict[str, object], reply: ChatReply) -> Iterator[str]:
    """The new text of one event. Events are OpenAI's, so anything may be in them."""
    error = event.get("error")
    if isinstance(error, dict):
        details = error.get("details")
        reasons = [str(line) for line in details] if isinstance(details, list) else []
        raise PeerFailed(str(error.get("message", "the answer was cut off")), details=reasons)
    usage = event.get("usage")
    if isinstance(usage, dict):
        reply.tokens = int(usage.get("completion_tokens", 0))
    choices = event.get("choices")
    for choice in choices if isinstance(choices, list) else []:
        text = (choice.get("delta") or {}).get("content") or ""
        if text:
            reply.pieces.append(text)
            yield text


def _about(reply: ChatReply) -> str:
    """Speed is that of the answer itself, from its first word on."""
    parts = [f"from {reply.node}"] if reply.node else []
    if reply.tokens:
        parts.append(f"{reply.tokens} tokens")
        after_first_s = reply.seconds - (reply.first_s or 0.0)
        if reply.tokens > 1 and after_first_s > 0:
            parts.append(f"{(reply.tokens - 1) / after_first_s:.1f} tok/s")
    if reply.first_s is not None:
        parts.append(f"first token after {reply.first_s:.1f} s")
    return ", ".join(parts)


def _lines() -> Iterator[str]:
    while True:
        try:
            line = input(">>> ").strip()
        except (EOFError, KeyboardInterrupt):
            click.echo("", err=True)
            return
        if line in _BYE:
            return
        if command := _COMMAND.match(line):
            click.echo(one_line(f"there is no {command[0]} here: {_HOW_TO_END}"), err=True)
        elif line:
            yield line


def _installed(options: ClientOptions, name: str, missing: NotFound) -> str:
    """What the model is called once it is there, if it is being installed; else NotFound, with what to do."""
    from remuda.cli.model_installs import awaited

    if not (coming := awaited(options, name)):
        raise not_there(options, name, missing) from None
    return coming


def _awaited(options: ClientOptions, name: str) -> str:
    """Before a conversation begins. Names that are not listed may be known all the same."""
    with connect(options) as client:
        listed = json.loads(client.get("v1", "models").body)
    if any(model["id"] == name for model in listed.get("data", [])):
        return name
    from remuda.cli.model_installs import awaited

    return awaited(options, name) or name


def _check_talks(options: ClientOptions, name: str) -> None:
    """Before a conversation begins; a message alone is refused by the frontend in the same words."""
    from remuda.inference.failures import check_writes_text
    from remuda.wire.serving import ModelItem

    try:
        with connect(options) as client:
            model = client.get("api", "models", name).read(ModelItem)
    except RemudaError:  # Keys of users may not ask, and models of servers are not configured.
        return
    check_writes_text(name, model.usecases)


def _only_model(options: ClientOptions) -> str:
    """The model, where there is no choice."""
    with connect(options) as client:
        listed = json.loads(client.get("v1", "models").body)
    names = [str(model["id"]) for model in listed.get("data", [])]
    if not names:
        from remuda.cli.model_installs import first_model

        return first_model(options)
    if len(names) > 1:
        raise Invalid("there are several models: name one", hint=f"one of {', '.join(names[:10])}")
    return names[0]
