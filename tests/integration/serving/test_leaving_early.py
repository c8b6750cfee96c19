"""Clients that ask for a model that is not loaded, and leave before anything is known of it."""

import json
import socket
from collections import deque
from urllib.parse import urlsplit

from tests.integration.serving.asking import add_echo, chat, chat_body
from tests.integration.serving.site import Site, answered, wait_for_replicas
from tests.support.processes import Frontend
from tests.support.waiting import wait_until_blocking

CLIENTS = 200
AT_ONCE = 20


def test_leaving_costs_no_connection_to_the_database_and_the_model_comes_up_once(pair: Site) -> None:
    add_echo(pair.a, "left-early", "echo_load_delay_ms:1000")
    wait_until_blocking(lambda: "left-early" in str(pair.b.get("/api/models")))
    before = connections(pair)
    open_ones = deque[socket.socket]()
    for number in range(CLIENTS):
        open_ones.append(asked(pair.frontends[number % 2], "left-early"))
        if len(open_ones) > AT_ONCE:
            open_ones.popleft().close()
    for one in open_ones:
        one.close()

    wait_for_replicas(pair.a, "left-early", 1)
    (load,) = pair.loads_of("left-early")
    assert len(pair.works_for(load["id"])) == 1
    assert before <= connections(pair), "what was in the pools is still there"
    for frontend in pair.frontends:
        assert answered(chat(frontend, "left-early")) == "one two three"


def connections(pair: Site) -> set[object]:
    """Those of both frontends, by the process that serves each."""
    mine = "datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
    return {row[0] for row in pair.query(f"SELECT pid FROM pg_stat_activity WHERE {mine}")}


def asked(frontend: Frontend, model: str) -> socket.socket:
    """A request, sent, whose answer nobody reads."""
    url, body = urlsplit(frontend.url), json.dumps(chat_body(model)).encode()
    line = socket.create_connection((url.hostname or "", url.port or 0), timeout=30)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {url.netloc}\r\nContent-Length: {len(body)}\r\n\r\n"
    line.sendall(head.encode() + body)
    return line
