"""Inference requests as clients send them, to a frontend that runs in a process of its own."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx
import psutil

from tests.support.plain_http import PLAIN
from tests.support.processes import Frontend, Json, Process

PATIENCE_S = 60.0


@dataclass
class Streamed:
    """One stream, read to its end."""

    status: int
    events: list[Json] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)
    done: bool = False
    headers: httpx.Headers = field(default_factory=httpx.Headers)

    @property
    def text(self) -> str:
        choices = (event["choices"] for event in self.events if event.get("choices"))
        return "".join(choice[0]["delta"].get("content") or "" for choice in choices)

    @property
    def error(self) -> Json | None:
        return next((event["error"] for event in self.events if "error" in event), None)


def chat_body(model: str, text: str = "one two three", **more: object) -> Json:
    return {"model": model, "messages": [{"role": "user", "content": text}], **more}


def chat(
    frontend: Frontend,
    model: str,
    text: str = "one two three",
    *,
    patience_s: float = PATIENCE_S,
    **more: object,
) -> httpx.Response:
    return httpx.post(
        f"{frontend.url}/v1/chat/completions",
        json=chat_body(model, text, **more),
        timeout=patience_s,
        trust_env=False,
        verify=PLAIN,
    )


def said(answer: httpx.Response) -> str:
    content: str = answer.raise_for_status().json()["choices"][0]["message"]["content"]
    return content


@contextmanager
def open_stream(frontend: Frontend, model: str, text: str, **more: object) -> Iterator[httpx.Response]:
    body = chat_body(model, text, stream=True, **more)
    with httpx.stream(
        "POST",
        f"{frontend.url}/v1/chat/completions",
        json=body,
        timeout=PATIENCE_S,
        trust_env=False,
        verify=PLAIN,
    ) as answer:
        yield answer


def stream(frontend: Frontend, model: str, text: str = "one two three", **more: object) -> Streamed:
    with open_stream(frontend, model, text, **more) as answer:
        streamed = Streamed(answer.status_code, headers=answer.headers)
        for line in answer.iter_lines():
            if line == "data: [DONE]":
                streamed.done = True
            elif line.startswith("data: "):
                streamed.events.append(json.loads(line.removeprefix("data: ")))
            elif line.startswith(":"):
                streamed.comments.append(line)
        return streamed


def add_echo(frontend: Frontend, name: str = "echo", *options: str, **keys: object) -> None:
    """A model of the echo backend: it needs no file, and does what requests and options tell it."""
    config = {
        "name": name,
        "backend": "echo",
        "options": list(options),
        "parameters": {"model": name},
        **keys,
    }
    answer = frontend.ask("POST", "/api/models", {"config": json.dumps(config)})
    assert answer.status_code == 201, answer.text


def replicas(frontend: Frontend) -> list[Json]:
    found: list[Json] = frontend.get("/api/replicas")["replicas"]
    return found


def process_at(parent: Process, address: str) -> psutil.Process:
    """The backend below `parent` that listens there."""
    port = int(address.rpartition(":")[2])
    for child in psutil.Process(parent.pid).children(recursive=True):
        if any(
            one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in child.net_connections()
        ):
            return child
    raise AssertionError(f"nobody listens on {port}")
