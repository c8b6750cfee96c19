"""The admin client turns whatever goes wrong into an error of the right kind, in plain words."""

import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import trustme
from pydantic import SecretStr

from remuda.cli.client import AdminClient, ApiAnswer, read_pages, refusal_of
from remuda.cli.exits import report
from remuda.cli.target import Target
from remuda.core.errors import (
    Conflict,
    Forbidden,
    FrontendUnreachable,
    Invalid,
    Misconfigured,
    NoCapacity,
    NotFound,
    PeerFailed,
    RemudaError,
    StoreUnusable,
    TooLarge,
    Unauthorized,
    Unavailable,
)
from remuda.gateway.inference.admission import InvalidKey
from remuda.gateway.messages import error_body
from remuda.gateway.openai.errors import refusal
from remuda.host.ports import free_port
from remuda.wire.admin import NodeViews
from remuda.wire.codec import encode
from remuda.wire.nodes import NodeError
from remuda.wire.operations import OpViews
from remuda.wire.process_keys import WORKER_ROLE
from tests.unit.cli.ops_views import an_op


class Handler(BaseHTTPRequestHandler):
    """Answers /STATUS with that status; what came is kept."""

    seen: list[str] = []

    def do_GET(self) -> None:
        status = int(self.path.rpartition("/")[2] or 200)
        body = _in_openais_shape(status) if "/v1/" in self.path else _in_our_shape(status)
        Handler.seen.append(self.headers.get("Authorization", ""))
        self.send_response(status)
        self.send_header("Location", "http://127.0.0.1:1/")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def _in_our_shape(status: int) -> bytes:
    return encode(NodeError.of(status, f"because of {status}"))


def _in_openais_shape(status: int) -> bytes:
    return refusal(RemudaError(f"because of {status}")).body


@contextmanager
def serving(context: ssl.SSLContext | None = None) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"{'https' if context else 'http'}://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving() as address:
        yield address


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, Invalid),
        (403, Forbidden),
        (404, NotFound),
        (409, Conflict),
        (413, TooLarge),
        (500, PeerFailed),
        (503, Unavailable),
    ],
)
@pytest.mark.parametrize("path", [(), ("v1",)])
def test_a_refusal_is_raised_as_its_kind_with_the_frontends_words(
    url: str, status: int, kind: type[RemudaError], path: tuple[str, ...]
) -> None:
    with AdminClient(Target(url)) as client, pytest.raises(kind) as refused:
        client.get(*path, str(status))

    assert refused.type is kind
    assert refused.value.message == f"because of {status}"


@pytest.mark.parametrize(
    ("error", "code", "hint"),
    [
        (Conflict("it is in use", hint="stop it first"), "conflict", "stop it first"),
        (StoreUnusable("the disk is full"), "store_unusable", "`remuda doctor` says more"),
        (Unavailable("no node can take it", reason="no_capacity"), "no_capacity", ""),
    ],
)
def test_a_refusal_keeps_the_frontends_code_and_hint(error: RemudaError, code: str, hint: str) -> None:
    told = error.problem()
    body = encode(NodeError.of(error.http_status, str(error), told.code, told.hint))

    refused = refusal_of(Target("http://frontend"), ApiAnswer(error.http_status, body, None)).problem()

    assert (refused.code, refused.message, refused.hint) == (code, error.message, hint)


def test_each_reason_of_a_refusal_has_a_line_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    reasons = ("a, b: full", "c: asleep", "d: gone", "e: drained")
    told = "no node can take qwen: a, b: full; c: asleep; d: gone; and 1 more node"
    body = error_body(NoCapacity(told, details=reasons), "/api/models/qwen/load")
    refused = refusal_of(Target("http://frontend"), ApiAnswer(503, body, None))
    report(refused.problem(), as_json=False, details=refused.details)
    assert capsys.readouterr().err.splitlines() == [
        "error: no node can take qwen:",
        "  a, b: full",
        "  c: asleep",
        "  d: gone",
        "  e: drained",
    ]
    report(refused.problem(), as_json=True, details=refused.details)
    assert json.loads(capsys.readouterr().err)["error"]["message"] == told


def test_a_missing_key_comes_with_a_hint_where_to_give_one(url: str) -> None:
    with AdminClient(Target(url)) as client, pytest.raises(Unauthorized) as refused:
        client.get("401")

    assert refused.value.message == f"{url} needs an API key"
    assert "REMUDA_API_KEY" in refused.value.hint


@pytest.mark.parametrize("path", [(), ("v1",)])
def test_a_key_that_is_refused_is_told_with_where_it_came_from(url: str, path: tuple[str, ...]) -> None:
    target = Target(url, SecretStr("k3y"), key_source="REMUDA_API_KEY")
    with AdminClient(target) as client, pytest.raises(Unauthorized) as refused:
        client.get(*path, "401")

    assert refused.value.message == f"the API key from REMUDA_API_KEY is not valid for {url}"


def test_the_key_is_sent_and_a_redirect_does_not_carry_it_elsewhere(url: str) -> None:
    with (
        AdminClient(Target(url, SecretStr("k3y"))) as client,
        pytest.raises(PeerFailed, match="not followed"),
    ):
        client.get("302")

    assert Handler.seen[-1] == "Bearer k3y"


def test_an_answer_of_something_else_is_told_as_such(url: str) -> None:
    with (
        AdminClient(Target(url)) as client,
        pytest.raises(PeerFailed, match="not an answer of a Remuda frontend"),
    ):
        client.get("200").read(NodeViews)


def test_parts_of_a_path_cannot_lead_out_of_it(url: str) -> None:
    with AdminClient(Target(url)) as client, pytest.raises(NotFound):
        client.get("x/../../200?a=b", "404")


def test_nobody_there_is_told_plainly() -> None:
    with (
        AdminClient(Target(f"http://127.0.0.1:{free_port('127.0.0.1')}")) as client,
        pytest.raises(FrontendUnreachable, match="nothing listens there"),
    ):
        client.nodes()


def test_a_setting_with_a_wrong_address_is_named() -> None:
    address = f"http://127.0.0.1:{free_port('127.0.0.1')}"
    target = Target(address, url_source="REMUDA_URL")
    with AdminClient(target) as client, pytest.raises(FrontendUnreachable) as refused:
        client.nodes()
    assert refused.value.message.startswith(f"the frontend at {address} (from REMUDA_URL) cannot be reached")
    assert refused.value.hint.startswith("check REMUDA_URL, and")


def test_a_workers_port_is_not_taken_for_a_frontends() -> None:
    target = Target("http://host:50050", url_source="REMUDA_URL")
    refused = refusal_of(target, ApiAnswer(401, b"", None, role=WORKER_ROLE))
    assert isinstance(refused, Misconfigured)
    assert refused.message == "http://host:50050 (from REMUDA_URL) is a worker's port, not a frontend's"


def test_silence_is_not_waited_for_longer_than_allowed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        target = Target(f"http://127.0.0.1:{deaf.getsockname()[1]}")
        with (
            AdminClient(target, timeout_s=0.1) as client,
            pytest.raises(FrontendUnreachable) as silence,
        ):
            client.nodes()

    assert silence.value.message == (
        f"the frontend at {target.url} does not answer: connected, but nothing came within 0.1 s"
    )
    assert "check the address" not in silence.value.hint


@contextmanager
def saying(words: bytes) -> Iterator[Target]:
    """A server that sends this to whoever connects, and hangs up once it was asked something."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(words)
                connection.recv(1 << 16)

        thread = threading.Thread(target=serve)
        thread.start()
        yield Target(f"http://127.0.0.1:{server.getsockname()[1]}")
        thread.join()


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nsome",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nsome\r\n",
    ],
)
def test_a_server_that_dies_within_its_answer_is_not_said_to_speak_no_http(head: bytes) -> None:
    with (
        saying(head) as target,
        AdminClient(target) as client,
        pytest.raises(FrontendUnreachable) as lost,
    ):
        client.get("api", "nodes")

    assert lost.value.message == f"the connection to the frontend at {target.url} was lost"


def test_a_server_of_another_protocol_is_told_as_such() -> None:
    with (
        saying(b'INFO {"server_id":"NA"}\r\n') as target,
        AdminClient(target) as client,
        pytest.raises(FrontendUnreachable, match=r"cannot be reached: it does not speak HTTP \("),
    ):
        client.get("api", "nodes")


def test_a_certificate_is_checked_and_trusted_by_its_ca(tmp_path: Path) -> None:
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")

    with serving(context) as address:
        with AdminClient(Target(address, ca=tmp_path / "ca.pem")) as client:
            assert client.get("200").status == 200
        with AdminClient(Target(address)) as client, pytest.raises(FrontendUnreachable) as untrusted:
            client.get("200")
        trustme.CA().cert_pem.write_to_path(tmp_path / "other.pem")
        other = Target(address, ca=tmp_path / "other.pem")
        with AdminClient(other) as client, pytest.raises(FrontendUnreachable) as not_signed:
            client.get("200")
        elsewhere = Target(address.replace("127.0.0.1", "localhost"), ca=tmp_path / "ca.pem")
        with AdminClient(elsewhere) as client, pytest.raises(FrontendUnreachable, match="another host name"):
            client.get("200")
        plain = address.replace("https", "http")
        with AdminClient(Target(plain)) as client, pytest.raises(FrontendUnreachable, match="https://"):
            client.get("200")

    assert untrusted.value.message.endswith("cannot be reached: its certificate is not trusted here")
    assert not_signed.value.message.endswith(f"its certificate was not signed by {tmp_path / 'other.pem'}")
    assert untrusted.value.hint == not_signed.value.hint == "give the CA file that signed it with --ca"


def test_https_where_there_is_none_is_told(url: str) -> None:
    with (
        AdminClient(Target(url.replace("http", "https"))) as client,
        pytest.raises(FrontendUnreachable, match="it does not speak HTTPS") as refused,
    ):
        client.get("200")

    assert refused.value.hint == "try http://"


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_ca_file_that_is_none_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "ca.pem").write_text(content)

    with pytest.raises(Misconfigured, match=r"ca\.pem cannot be used"):
        AdminClient(Target("https://host", ca=tmp_path / "ca.pem"))


COUNT = 2500


class Busy(AdminClient):
    """A frontend with many operations, numbered down to 1."""

    def get(self, *path: str, **query: str) -> ApiAnswer:
        newest = min(int(query.get("before", COUNT + 1)) - 1, COUNT)
        oldest = max(newest - int(query["limit"]), 0)
        ops = tuple(an_op(id=f"op-{number}") for number in range(newest, oldest, -1))
        return ApiAnswer(200, encode(OpViews(operations=ops, next=oldest + 1 if oldest else None)), None)


@pytest.mark.parametrize(
    ("limit", "more"), [(1, True), (1000, True), (1001, True), (2500, False), (None, False)]
)
def test_as_many_are_listed_as_were_asked_for(limit: int | None, more: bool) -> None:
    listed = read_pages(Busy(Target("http://127.0.0.1:1")), {}, limit).views
    count = COUNT if limit is None else limit
    assert [op.id for op in listed.operations] == [f"op-{COUNT - place}" for place in range(count)]
    assert (listed.next is not None) is more


@pytest.mark.parametrize(("path", "scope"), [("/v1/chat/completions", ""), ("/api/nodes", " --scope admin")])
def test_the_hint_for_a_refused_key_asks_for_no_more_than_is_needed(path: str, scope: str) -> None:
    kind = InvalidKey if path.startswith("/v1") else Unauthorized
    body = refusal(kind("no")).body if path.startswith("/v1") else error_body(kind("no"), path)
    target = Target("http://frontend", SecretStr("k"))
    refused = refusal_of(target, ApiAnswer(401, body, None))

    assert refused.hint.startswith(f"`remuda keys create NAME{scope}` on")


def test_what_answers_without_words_of_a_frontend_is_none() -> None:
    refused = refusal_of(Target("http://127.0.0.1:8000"), ApiAnswer(404, b"<html>not found</html>", None))

    assert isinstance(refused, Misconfigured)
    assert "HTTP status 404: that is not a Remuda frontend" in refused.message
