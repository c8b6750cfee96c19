"""Nothing secret leaves by the log, whoever writes the line and however it looks."""

import errno
import io
import json
import logging
from collections.abc import Iterator
from typing import Literal

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from remuda.core import log

HIDDEN = "hunter2hunter2"
JWT = "eyJ0eXAiOiJKV1QifQ.eyJzdWIiOiJ4In0.c2lnbmF0dXJl"
SEED = "SU" + "A" * 56


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()


def written(**event: object) -> dict[str, object]:
    """One line as it comes out, where nobody looks."""
    stream = io.StringIO()
    log.configure("info", "auto", stream)
    structlog.get_logger().info("happened", **event)
    line: dict[str, object] = json.loads(stream.getvalue())
    return line


@pytest.mark.parametrize(
    "name",
    [
        "token",
        "registration_token",
        "nats_jwt",
        "user_seed",
        "password",
        "api_key",
        "apiKey",
        "Authorization",
    ],
)
def test_values_under_names_of_secrets_are_masked(name: str) -> None:
    assert written(**{name: HIDDEN})[name] == log.MASK


@pytest.mark.parametrize("trouble", [OSError(errno.ENOSPC, "full"), ValueError("closed")])
def test_a_line_that_cannot_be_written_costs_nobody_but_the_reader(trouble: Exception) -> None:
    class Broken(io.StringIO):
        tries = 0

        def write(self, text: str) -> int:
            self.tries += 1
            raise trouble

    stream = Broken()
    log.configure("info", "json", stream)
    for level in ("info", "warning", "error", "exception"):
        structlog.get_logger().log(logging.ERROR, "failed")
        getattr(structlog.get_logger(), level)("happened")
    assert stream.tries == 8


def test_counts_and_absent_values_are_shown_whatever_their_name() -> None:
    line = written(tokens=12, key=None, token=True)
    assert (line["tokens"], line["key"], line["token"]) == (12, None, True)


@pytest.mark.parametrize(
    "text",
    [
        f"nats://worker:{HIDDEN}@bus:4222",
        f"nats://{HIDDEN}@bus:4222",
        f"tls://a:b@{HIDDEN}@bus,nats://worker:{HIDDEN}@bus2",
        f"Authorization: Bearer {HIDDEN}",
        f"http://host/join?token={HIDDEN}&x=1",
        f"postgresql+psycopg://u:{HIDDEN}@db/remuda",
        f"a key: rmd_{HIDDEN}-{HIDDEN}",
    ],
)
def test_secrets_inside_texts_are_masked(text: str) -> None:
    assert HIDDEN not in json.dumps(written(detail=text, nested={"deep": [text]}))


@pytest.mark.parametrize("secret", [JWT, SEED])
def test_credentials_are_known_by_their_looks(secret: str) -> None:
    assert secret not in json.dumps(written(detail=f"got {secret} from the frontend"))


def test_what_is_not_secret_stays_readable() -> None:
    assert log.masked("nats://worker:pw@bus:4222 is down") == "nats://***@bus:4222 is down"
    assert (
        log.masked("http://host:8080/path and me@example.org") == "http://host:8080/path and me@example.org"
    )


def test_secret_types_are_masked_under_any_name() -> None:
    assert written(value=SecretStr(HIDDEN), several=[SecretStr(HIDDEN)]) | {"timestamp": ""} == {
        "event": "happened",
        "level": "info",
        "timestamp": "",
        "value": log.MASK,
        "several": [log.MASK],
    }


@pytest.mark.parametrize("format", ["json", "console"])
def test_exception_texts_are_masked(format: Literal["json", "console"]) -> None:
    stream = io.StringIO()
    log.configure("info", format, stream)
    try:
        raise OSError(f"no connection to nats://u:{HIDDEN}@bus")
    except OSError:
        structlog.get_logger().exception("bus_failed")
    assert "nats://***@bus" in stream.getvalue()
    assert HIDDEN not in stream.getvalue()


def test_lines_for_people_are_sentences() -> None:
    stream = io.StringIO()
    log.configure("info", "console", stream)
    structlog.get_logger().warning("bus_lost", reason="connection refused\x1b[2J", node="attic")
    structlog.get_logger().error("blobs_not_collected", error="disk full", hint="free some space")
    structlog.get_logger().warning("registration_failed", reason="no answer", attempts=1)
    structlog.get_logger().warning("child_exited", child="worker", ending="exit code 1", restart_in_s=1.0)
    lines = [line.partition(" ")[2] for line in stream.getvalue().splitlines()]
    assert lines == [
        "warning: The connection to the NATS server was lost: connection refused [2J (node attic)",
        "error: Blobs not collected: disk full; free some space",
        "warning: Could not register with the frontend: no answer",
        "warning: A process ended and will be restarted: exit code 1 (child worker, restart in 1 s)",
    ]


def test_lines_of_libraries_take_the_same_way() -> None:
    stream = io.StringIO()
    log.configure("info", "json", stream)
    try:
        raise OSError(f"nats://u:{HIDDEN}@bus")
    except OSError:
        logging.getLogger("uvicorn.error").exception("bad address %s", f"http://u:{HIDDEN}@h")
    line = json.loads(stream.getvalue())
    assert (line["event"], line["level"]) == ("bad address http://***@h", "error")
    assert HIDDEN not in stream.getvalue()


def test_less_severe_events_are_left_out() -> None:
    stream = io.StringIO()
    log.configure("warning", "json", stream)
    structlog.get_logger().info("idle")
    logging.getLogger("library").info("chatter")
    assert stream.getvalue() == ""


def test_bound_context_is_on_every_line_and_masked_too() -> None:
    with structlog.contextvars.bound_contextvars(node="n1", token=HIDDEN):
        line = written()
    assert (line["node"], line["token"]) == ("n1", log.MASK)


@given(
    user=st.text(
        alphabet=st.characters(
            exclude_characters="/?#'\" \t\r\n\f\v\x1c\x1d\x1e\x1f\x85\xa0@:", categories=("L", "N", "P", "S")
        ),
        min_size=1,
    ),
    password=st.text(
        alphabet=st.characters(exclude_characters="/?#'\"", categories=("L", "N", "P", "S")), min_size=6
    ),
)
def test_no_password_of_a_url_is_shown(user: str, password: str) -> None:
    assert log.masked(f"at nats://{user}:{password}@bus:4222/x") == "at nats://***@bus:4222/x"
