"""Two frontends, of which one has fetched a model: where the worker of the other gets it from."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from obstore.store import S3Store

from tests.integration.serving.asking import chat
from tests.integration.serving.site import Site, add_model, answered, site
from tests.support.models import tiny_model
from tests.support.object_store import ACCESS_KEY, SECRET_KEY, ObjectStore, object_store
from tests.support.waiting import wait_until_blocking

pytestmark = pytest.mark.long

TINY = tiny_model().read_bytes()
BUCKET = "fleet"


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with object_store(tmp_path_factory.mktemp("s3")) as storage:
        bucket(storage).put("first", b"1")  # The bucket is made by its first object.
        yield storage


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, s3: ObjectStore) -> Iterator[Site]:
    storage = {
        "REMUDA_STORAGE_URL": s3.endpoint,
        "REMUDA_STORAGE_BUCKET": BUCKET,
        "REMUDA_STORAGE_ACCESS_KEY": ACCESS_KEY,
        "REMUDA_STORAGE_SECRET_KEY": SECRET_KEY,
    }
    with site(tmp_path_factory.mktemp("two"), None, **storage) as started:
        yield started


def bucket(storage: ObjectStore) -> S3Store:
    return S3Store(
        BUCKET,
        endpoint=storage.endpoint,
        access_key_id=ACCESS_KEY,
        secret_access_key=SECRET_KEY,
        region="us-east-1",
        client_options={"allow_http": True},
    )


def keys(storage: ObjectStore) -> set[str]:
    return {str(one["path"]) for chunk in bucket(storage).list("models") for one in chunk}


def install(two: Site, source: str, name: str, side: str) -> None:
    """On `a`, which is alone meanwhile; for one worker, and answered by the echo backend."""
    two.b.kill()
    frontend = two.a
    answer = frontend.ask("POST", "/api/models/install", {"model": source, "name": name})
    assert answer.status_code == 202, answer.text
    op = answer.json()["operation"]["id"]
    done = partial(frontend.get, f"/api/ops/{op}")
    wait_until_blocking(lambda: done()["status"] == "succeeded", within=60, what=f"{name}")
    changed = {"set": {"backend": "echo", "selector": {"side": side}}}
    frontend.ask("PATCH", f"/api/models/{name}/config", changed).raise_for_status()
    two.b = two.start_frontend("b")
    assert not list((two.place.folder / "b/models").rglob("*.gguf"))


def sources(two: Site, side: str) -> list[str]:
    return [event["source"] for event in two.workers[side].events("model_file_fetched_from")]


@contextmanager
def served(folder: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_installed_model_is_in_object_storage_and_a_frontend_that_did_not_fetch_it_serves_it(
    two: Site, s3: ObjectStore, tmp_path: Path
) -> None:
    (tmp_path / "tiny.gguf").write_bytes(TINY)
    install(two, (tmp_path / "tiny.gguf").as_uri(), "stored", "left")
    key = "models/stored/stored/tiny.gguf"
    wait_until_blocking(lambda: key in keys(s3), within=30, what="the object")
    assert bytes(bucket(s3).get(key).bytes()) == TINY
    two.a.kill()

    assert answered(chat(two.b, "stored")) == "one two three"
    assert sources(two, "left") == [s3.endpoint]
    assert (two.place.folder / "left/models/stored/tiny.gguf").read_bytes() == TINY

    two.a = two.start_frontend("a")
    removed = two.a.ask("DELETE", "/api/models/stored").raise_for_status().json()["operation"]["id"]
    wait_until_blocking(lambda: two.a.get(f"/api/ops/{removed}")["status"] == "succeeded", within=30)
    wait_until_blocking(lambda: key not in keys(s3), within=30, what="the object to go with its model")


def test_file_that_only_the_other_frontend_has_is_fetched_from_that_one(two: Site) -> None:
    """A person has put it there; the worker has registered with the other one."""
    models = two.place.folder / "a/models"
    models.mkdir(parents=True, exist_ok=True)
    (models / "hand.bin").write_bytes(TINY)
    add_model(two.a, "hand", "echo", "hand.bin", selector={"side": "right"})

    def loaded() -> bool:
        return chat(two.b, "hand").status_code == 200

    wait_until_blocking(loaded, within=60, what="the other frontend to tell of its file")
    assert sources(two, "right") == [two.a.url]
    assert (two.place.folder / "right/models/hand.bin").read_bytes() == TINY


def test_where_nobody_has_it_any_more_a_model_comes_from_its_origin(
    two: Site, s3: ObjectStore, tmp_path: Path
) -> None:
    (tmp_path / "origin.gguf").write_bytes(TINY)
    before = len(sources(two, "left"))
    with served(tmp_path) as url:
        install(two, f"{url}/origin.gguf", "public", "left")
        key = "models/public/public/origin.gguf"
        wait_until_blocking(lambda: key in keys(s3), within=30, what="the object")
        two.a.kill()
        bucket(s3).delete(key)

        assert answered(chat(two.b, "public")) == "one two three"
        assert sources(two, "left")[before:] == [url]
    two.a = two.start_frontend("a")
