"""How fast models are, measured by `remuda bench` on each node that has them, and kept for all frontends."""

import json
import subprocess

import httpx
import pytest

from tests.integration.serving.asking import PATIENCE_S, add_echo, chat, chat_body
from tests.integration.serving.site import Site, answered, wait_for_replicas
from tests.support.plain_http import PLAIN

BRIEFLY = ("--rounds", "1", "--tokens", "8", "--prompt-tokens", "16", "--streams", "1", "--streams", "3")


@pytest.fixture(scope="module")
def site(pair: Site) -> Site:
    """`measured` is loaded on both nodes."""
    add_echo(pair.a, "measured")
    answered(chat(pair.a, "measured"))
    wait_for_replicas(pair.a, "measured", 1)
    pair.b.ask("POST", "/api/models/measured/load").raise_for_status()
    wait_for_replicas(pair.a, "measured", 2)
    return pair


def bench(site: Site, *words: str) -> subprocess.CompletedProcess[str]:
    return site.place.remuda("bench", *words, data="a", REMUDA_URL=site.a.url)


def on_node(site: Site, node: str) -> httpx.Response:
    headers = {"X-Remuda-Node": node}
    body = chat_body("measured")
    address = f"{site.b.url}/v1/chat/completions"
    return httpx.post(address, json=body, headers=headers, timeout=PATIENCE_S, trust_env=False, verify=PLAIN)


def test_an_admin_says_which_node_answers(site: Site) -> None:
    for side in ("left", "right", "left", "right"):
        answer = on_node(site, side)
        assert answer.headers["X-Remuda-Node"] == side
    refused = on_node(site, "attic")
    assert refused.status_code == 503
    assert refused.json()["error"]["message"].startswith("measured has no replica on the node attic")


def test_each_node_with_the_model_is_measured_and_the_other_frontend_has_the_results(site: Site) -> None:
    done = bench(site, "measured", *BRIEFLY, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["benchmarks"]
    assert [(one["node"], one["streams"]) for one in found] == [
        ("left", 1),
        ("left", 3),
        ("right", 1),
        ("right", 3),
    ]
    for one in found:
        assert (one["requests"], one["failed"], one["model"]) == (one["streams"], 0, "measured")
        assert one["tokens_per_s"] > 0
        assert 0 < one["first_token_ms"] <= one["first_token_p95_ms"]

    kept = site.b.get("/api/benchmarks?model=measured")["benchmarks"]
    assert [(one["node"], one["streams"]) for one in reversed(kept)] == [
        (one["node"], one["streams"]) for one in found
    ]
    listed = bench(site)
    assert listed.stdout.splitlines()[0].split()[:2] == ["MODEL", "NODE"]
    assert listed.stdout.count("measured") == 4


def test_what_cannot_be_measured_is_said(site: Site) -> None:
    unknown = bench(site, "unheard-of")
    assert (unknown.returncode, "there is no model 'unheard-of'" in unknown.stderr) == (5, True)
    elsewhere = bench(site, "measured", "--node", "attic")
    assert (elsewhere.returncode, "no replica on the node attic" in elsewhere.stderr) == (7, True)
    assert bench(site, "--node", "left").returncode == 2


def test_models_of_servers_are_not_measured_and_results_of_others_are_shown(site: Site) -> None:
    add = ("http://127.0.0.1:9", "--name", "nas", "--kind", "openai", "--unseen")
    site.place.remuda("servers", "add", *add, data="a", REMUDA_URL=site.a.url).check_returncode()
    models = ("nas/small", "unheard-of", "measured")
    done = bench(site, *models, *BRIEFLY, "--no-keep", "--node", "left")
    assert (done.returncode, done.stdout.count("measured")) == (6, 2)
    assert "nas/small is a model of the server nas" in done.stderr
    assert "unheard-of was not measured: there is no model 'unheard-of'" in done.stderr


@pytest.mark.parametrize(
    ("report", "status", "words"),
    [
        ({}, 400, "model"),
        ({"model": "measured", "results": []}, 400, "results"),
        ({"model": "measured", "results": [{"streams": 0, "requests": 1}]}, 400, "streams"),
        (
            {"model": "measured", "results": [{"streams": 1, "requests": 1, "tokens_per_s": -1}]},
            400,
            "tokens",
        ),
        ({"model": "measured", "results": [{"streams": 1, "requests": 1, "node": "attic"}]}, 400, "no node"),
        ({"model": "unheard-of", "results": [{"streams": 1, "requests": 1}]}, 404, "unheard-of"),
        ({"model": "measured", "results": [{"streams": 1, "requests": 1}], "more": 1}, 400, "more"),
    ],
)
def test_reports_that_make_no_sense_are_refused(site: Site, report: object, status: int, words: str) -> None:
    refused = site.a.ask("POST", "/api/benchmarks", report)
    assert (refused.status_code, words in refused.text) == (status, True), refused.text
