"""A model whose file only the frontend has, and three workers with folders of their own."""

from collections.abc import Iterator

import pytest

from tests.integration.staging.fleet import Fleet, fleet
from tests.support.processes import Json
from tests.support.waiting import wait_until_blocking

SIZE = 3 << 20


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet(tmp_path_factory.mktemp("three"), ("one", "two", "three")) as started:
        yield started


def reasons(fleet: Fleet, model: str) -> dict[str, str]:
    """How its loads ended on their nodes."""
    found: list[Json] = fleet.frontend.get("/api/ops")["operations"]
    loads = [op["id"] for op in found if op["kind"] == "load" and op["model"] == model]
    steps = [step for op in loads for step in fleet.frontend.get(f"/api/ops/{op}")["steps"]]
    return {step["node_name"]: step.get("reason", "") for step in steps}


def test_file_arrives_at_one_worker_and_the_second_gets_it_from_the_first(three: Fleet) -> None:
    content = three.put("numbers.bin", SIZE)
    three.add("numbers", "numbers.bin")

    assert three.chat("numbers") == "one two three"
    (first,) = three.having("numbers.bin")
    assert three.file(first, "numbers.bin").read_bytes() == content
    assert three.sources_of(first) == ["frontend"]

    three.load("numbers")
    wait_until_blocking(lambda: len(three.loaded("numbers")) == 2, within=20, what="a second replica")
    (second,) = set(three.having("numbers.bin")) - {first}
    assert three.file(second, "numbers.bin").read_bytes() == content
    assert three.sources_of(second) == [first]
    said = {first: "3.0 MiB came from a frontend", second: f"3.0 MiB came from {first}"}
    wait_until_blocking(lambda: reasons(three, "numbers") == said, what="where the bytes came from")


def test_file_that_a_person_has_put_on_one_node_alone_arrives_at_another(three: Fleet) -> None:
    content = bytes(range(256)) * 4096
    own = three.file("three", "theirs.bin")
    own.parent.mkdir(parents=True, exist_ok=True)
    own.write_bytes(content)
    three.add("theirs", "theirs.bin", worker="one")
    wait_until_blocking(
        lambda: three.frontend.get("/api/models/theirs")["nodes_with_files"] == ["three"],
        within=30,
        what="the worker to tell of its file",
    )

    assert three.chat("theirs") == "one two three"
    assert three.file("one", "theirs.bin").read_bytes() == content
    assert three.sources_of("one")[-1] == "three"


def test_another_file_of_the_same_name_and_size_is_not_served(three: Fleet) -> None:
    content = three.put("alike.bin", 1 << 20)
    own = three.file("three", "alike.bin")
    own.parent.mkdir(parents=True, exist_ok=True)
    own.write_bytes(bytes(reversed(content)))
    three.add("alike", "alike.bin", worker="three")
    wait_until_blocking(
        lambda: three.frontend.get("/api/models/alike")["nodes_with_files"] == ["three"],
        within=30,
        what="the worker to tell of its file",
    )

    refused = three.ask_chat("alike")

    assert refused.status_code == 503
    assert "is another file than the model's alike.bin" in refused.text
    assert own.read_bytes() == bytes(reversed(content))


def test_what_was_brought_to_workers_goes_with_the_model(three: Fleet) -> None:
    """Also from one that was killed before it reported what it had fetched, once it returns, and after the
    frontend was killed meanwhile; what people have put there stays."""
    three.put("letters.bin", 1 << 20)
    three.add("letters", "letters.bin", selector={"called": "one"})
    assert three.chat("letters") == "one two three"
    own = three.file("two", "letters.bin")
    own.parent.mkdir(parents=True, exist_ok=True)
    own.write_bytes(b"a person's")
    three.workers["one"].kill()

    removed = three.frontend.ask("DELETE", "/api/models/letters").raise_for_status().json()
    op = removed["operation"]["id"]
    assert three.having("letters.bin") == ["one", "two"]
    three.frontend.kill()
    three.start_frontend()

    three.start_worker("one")
    wait_until_blocking(
        lambda: three.frontend.get(f"/api/ops/{op}")["status"] == "succeeded", within=60, what="it to be gone"
    )
    assert three.having("letters.bin") == ["two"]
    assert (three.models / "letters.bin").exists(), "a person has put it there"
