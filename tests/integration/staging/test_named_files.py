"""A model whose configuration names files that are to be downloaded: a request for it waits until they have
come, and is answered from them."""

import hashlib
from collections.abc import Iterator

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from tests.integration.staging.fleet import Fleet, fleet
from tests.support.hub import HubServer, hub_server
from tests.support.processes import Json
from tests.support.waiting import wait_until_blocking

SIZE = 2 << 20
CONTENT = hashlib.shake_256(b"named").digest(SIZE)
SLOW = 200_000.0


@pytest.fixture(scope="module")
def portal() -> Iterator[BlockingPortal]:
    with start_blocking_portal() as opened:
        yield opened


@pytest.fixture(scope="module")
def hub(portal: BlockingPortal) -> Iterator[HubServer]:
    with portal.wrap_async_context_manager(hub_server()) as server:
        yield server


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet(tmp_path_factory.mktemp("pair"), ("one",)) as started:
        yield started


def listing(name: str, uri: str, sha256: str = "") -> str:
    checked = f", sha256: {sha256}" if sha256 else ""
    return (
        f"name: {name}\nbackend: echo\nparameters: {{model: {name}.bin}}\n"
        f"download_files:\n- {{filename: {name}.bin, uri: '{uri}'{checked}}}\n"
    )


def model(fleet: Fleet, name: str) -> Json:
    found: list[Json] = fleet.frontend.get("/api/models")["models"]
    return next((one for one in found if one["name"] == name), {})


def test_request_waits_for_the_files_of_a_model_that_a_file_describes(pair: Fleet, hub: HubServer) -> None:
    """The frontend that fetches them is killed meanwhile; the same operation goes on."""
    uri = hub.add("/a.bin", CONTENT)
    hub.bytes_per_s = SLOW
    text = listing("followed", uri, hashlib.sha256(CONTENT).hexdigest())
    pair.models.mkdir(parents=True, exist_ok=True)
    (pair.models / "followed.yaml").write_text(text)
    wait_until_blocking(
        lambda: bool(model(pair, "followed").get("fetching")), within=40, what="the fetch to begin"
    )
    shown = pair.place.remuda("models", "list", "--url", pair.frontend.url)
    assert "installing" in shown.stdout, shown
    refused = pair.frontend.ask("POST", "/api/models/followed/load")
    assert (refused.status_code, "its files are being fetched" in refused.text) == (409, True)
    wait_until_blocking(lambda: hub.bytes_sent > SIZE // 8, within=40, what="bytes to come")

    pair.frontend.kill()
    pair.start_frontend()
    hub.bytes_per_s = None

    assert pair.chat("followed") == "one two three"
    assert pair.file("one", "followed.bin").read_bytes() == CONTENT
    found: list[Json] = pair.frontend.get("/api/ops?state=all&kind=install_model")["operations"]
    assert [op["status"] for op in found if op["model"] == "followed"] == ["succeeded"]
    assert hub.bytes_sent < 1.15 * SIZE
    assert model(pair, "followed").get("fetching", "") == ""


def test_add_shows_what_is_fetched_and_why_it_could_not_be(pair: Fleet, hub: HubServer) -> None:
    file = pair.place.folder / "added.yaml"
    file.write_text(listing("added", f"{hub.url}/nothing.bin"))
    words = ("models", "add", str(file), "--url", pair.frontend.url)

    missing = pair.place.remuda(*words)
    assert missing.returncode != 0
    assert "added; its files are being fetched" in missing.stdout
    assert "line 5: download_files[0]: " in missing.stderr
    refused = pair.ask_chat("added")
    assert refused.status_code == 503
    assert "the files of added could not be fetched" in refused.text
    assert "download_files[0]" in model(pair, "added")["problem"]

    hub.add("/nothing.bin", CONTENT)
    again = pair.place.remuda(*words)
    assert (again.returncode, "added: installed" in again.stdout) == (0, True), again
    assert pair.chat("added") == "one two three"


def test_what_a_person_put_there_is_no_file_that_goes_with_the_model(pair: Fleet, hub: HubServer) -> None:
    pair.put("mixed.bin", 1000)
    listed = f"- {{filename: beside.bin, uri: '{hub.add('/beside.bin', CONTENT)}'}}"
    text = f"name: mixed\nbackend: echo\nparameters: {{model: mixed.bin}}\ndownload_files:\n{listed}\n"
    added = pair.frontend.ask("POST", "/api/models", {"config": text}).json()
    assert added["operation"]["kind"] == "install_model"
    assert pair.chat("mixed") == "one two three"
    assert sorted(pair.having(path) for path in ("beside.bin", "mixed.bin")) == [["one"], ["one"]]

    plan = pair.frontend.ask("DELETE", "/api/models/mixed?dry_run=true").json()

    assert (plan["files"], plan["bytes"], plan["file_kept"]) == (["beside.bin"], SIZE, "mixed.bin")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            listing("bad", "gopher://host/x"),
            "line 5: download_files[0].uri: gopher:// is not a kind of source",
        ),
        (listing("bad", "upload:abcdefgh"), "line 5: download_files[0].uri: "),
        (listing("bad", "https://h.test/x").replace("filename: bad", "filename: ../bad"), "line 5: "),
        ("name: bad\nbackend: echo\nparameters: {model: 'ftp://h/x'}\n", "line 3: parameters.model: ftp://"),
        ("a: &a [x]\n" + "".join(f"k{n}: *a\n" for n in range(1_000_000)), ""),
        ("name: bad\nbackend: echo\nartifacts: &a\n- *a\n", "line 4"),
    ],
)
def test_what_can_never_be_fetched_is_refused_at_once(pair: Fleet, text: str, said: str) -> None:
    refused = pair.frontend.ask("POST", "/api/models", {"config": text})

    assert refused.status_code in (400, 413), refused.text
    assert said in refused.json()["error"]["message"]
    assert model(pair, "bad") == {}
