"""`remuda nodes` against a real frontend. Each test has nodes of its own: they share the frontend."""

import json
from typing import Any

import pytest

from remuda.cli.exits import Exit
from tests.integration.cli.conftest import GIB, LiveFrontend


def statuses(frontend: LiveFrontend) -> dict[str, str]:
    listed = json.loads(frontend.remuda("nodes", "--json").stdout)
    return {node["name"]: node["status"] for node in listed["nodes"]}


def test_list_shows_a_row_per_node_and_why_it_waits(frontend: LiveFrontend) -> None:
    frontend.register("listed", total_vram=80 * GIB, available_vram=60 * GIB, gpu_vendor="nvidia")

    result = frontend.remuda("nodes")

    assert result.exit_code == Exit.DONE
    row = next(line for line in result.stdout.splitlines() if line.startswith("listed "))
    assert row.split()[:6] == ["listed", "pending", "127.0.0.1:50051", "nvidia", "60.0/80.0", "GiB"]
    assert "listed: waiting for approval: remuda nodes approve listed" in result.stdout


def test_list_as_json_is_what_the_api_says(frontend: LiveFrontend) -> None:
    node_id = frontend.register("as-json")

    plain, verb = frontend.remuda("nodes", "--json"), frontend.remuda("nodes", "list", "--json")

    by_name = {node["name"]: node for node in json.loads(plain.stdout)["nodes"]}
    assert by_name["as-json"]["id"] == node_id
    assert by_name["as-json"]["remuda"]["approved"] is False
    assert _without_ages(verb.stdout) == _without_ages(plain.stdout)


def _without_ages(text: str) -> list[dict[str, Any]]:
    """What passes between two looks is left out."""
    nodes: list[dict[str, Any]] = json.loads(text)["nodes"]
    for node in nodes:
        del node["remuda"]["heard_seconds_ago"]
    return nodes


def test_nodes_are_approved_drained_resumed_and_removed(frontend: LiveFrontend) -> None:
    frontend.register("led")
    for verb, status in (("approve", "healthy"), ("drain", "draining"), ("resume", "healthy")):
        result = frontend.remuda("nodes", verb, "led")

        assert result.exit_code == Exit.DONE, result.output
        assert result.stdout.startswith("led: ")
        assert statuses(frontend)["led"] == status
    assert frontend.remuda("nodes", "resume", "led").stdout == "led: it was not drained\n"

    assert frontend.remuda("nodes", "remove", "led", "--yes").stdout == "led: removed\n"
    assert "led" not in statuses(frontend)


def test_several_nodes_are_named_by_name_id_and_beginning_of_an_id(frontend: LiveFrontend) -> None:
    by_id, by_beginning = frontend.register("several-2"), frontend.register("several-3")
    frontend.register("several-1")

    result = frontend.remuda("nodes", "approve", "several-1", by_id, by_beginning[:13], "--json")

    assert [done["name"] for done in json.loads(result.stdout)["nodes"]] == [
        "several-1",
        "several-2",
        "several-3",
    ]
    assert {statuses(frontend)[f"several-{number}"] for number in (1, 2, 3)} == {"healthy"}


def test_one_unknown_name_among_several_changes_nothing(frontend: LiveFrontend) -> None:
    frontend.register("untouched")

    result = frontend.remuda("nodes", "approve", "untouched", "untuched")

    assert result.exit_code == Exit.NOT_FOUND
    assert result.stderr == "error: there is no node 'untuched'\nhint: did you mean untouched?\n"
    assert statuses(frontend)["untouched"] == "pending"


def test_remove_asks_first(frontend: LiveFrontend) -> None:
    frontend.register("kept")

    refused = frontend.remuda("nodes", "remove", "kept", answer="n\n")
    unanswered = frontend.remuda("nodes", "remove", "kept", answer="")
    unknown = frontend.remuda("nodes", "remove", "keept", answer="")

    assert (refused.exit_code, unanswered.exit_code) == (Exit.INTERRUPTED, Exit.MISUSED)
    assert "error: confirm with --yes: there is no terminal to ask on\n" in unanswered.stderr
    assert (unknown.exit_code, unknown.stderr) == (
        Exit.NOT_FOUND,
        "error: there is no node 'keept'\nhint: did you mean kept?\n",
    )
    assert "kept" in statuses(frontend)
    assert frontend.remuda("nodes", "remove", "kept", answer="y\n").exit_code == Exit.DONE
    assert "kept" not in statuses(frontend)


def test_labels_are_set_and_taken_off(frontend: LiveFrontend) -> None:
    frontend.register("labelled")
    frontend.remuda("nodes", "label", "labelled", "old=1")

    result = frontend.remuda("nodes", "label", "labelled", "room=cellar", "tier=a=b", "old-", "--json")

    labels = json.loads(result.stdout)["labels"]
    assert (labels["room"], labels["tier"]) == ("cellar", "a=b")
    assert "old" not in labels
    assert "room=cellar" in frontend.remuda("nodes", "label", "labelled", "x=y").stdout


@pytest.mark.parametrize(
    ("key", "complaint"),
    [("room", "own settings"), ("node.name", "derives the label"), ("romo", "no label 'romo'")],
)
def test_a_label_that_cannot_be_removed_is_not_said_to_be(
    frontend: LiveFrontend, key: str, complaint: str
) -> None:
    frontend.register("firm", labels={"room": "attic"})

    result = frontend.remuda("nodes", "label", "firm", "tier=slow", f"{key}-")

    assert result.exit_code in (Exit.REJECTED, Exit.NOT_FOUND)
    assert complaint in result.stderr
    labels = json.loads(frontend.remuda("nodes", "show", "firm", "--json").stdout)["node"]["labels"]
    assert (labels["room"], labels["node.name"]) == ("attic", "firm")
    assert "tier" not in labels, "nothing is changed when one of the changes is refused"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [("novalue", "KEY=VALUE"), ("=x", "KEY=VALUE"), ("-", "KEY=VALUE"), ("a b=c", "white space")],
)
def test_what_is_no_label_is_rejected(frontend: LiveFrontend, change: str, complaint: str) -> None:
    frontend.register("strict")

    result = frontend.remuda("nodes", "label", "strict", "--", change)

    assert result.exit_code == Exit.REJECTED
    assert complaint in result.stderr


def test_show_tells_facts_labels_and_history(frontend: LiveFrontend) -> None:
    node_id = frontend.register("shown", labels={"room": "attic"}, total_ram=16 * GIB, available_ram=4 * GIB)
    frontend.remuda("nodes", "approve", "shown")

    shown = frontend.remuda("nodes", "show", "shown").stdout

    words = [line.split() for line in shown.splitlines()]
    assert ["Id", node_id] in words
    assert ["RAM", "free", "4.0/16.0", "GiB"] in words
    assert ["room", "attic"] in words
    assert any("approved" in line and line[-1] == "local" for line in words)


def test_show_as_json_is_one_document(frontend: LiveFrontend) -> None:
    frontend.register("document")

    document = json.loads(frontend.remuda("nodes", "show", "document", "--json").stdout)

    assert document["node"]["name"] == "document"
    assert document["history"][-1]["node_name"] == "document"


def test_node_names_are_completed(frontend: LiveFrontend) -> None:
    frontend.register("completed")

    offered = frontend.remuda(
        _REMUDA_COMPLETE="bash_complete", COMP_WORDS="remuda nodes approve comp", COMP_CWORD="3"
    )

    assert "plain,completed" in offered.output
