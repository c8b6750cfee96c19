"""Model galleries over real HTTP: what they offer, and what an entry amounts to."""

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
import yaml

from remuda.core.errors import Invalid, NotFound, PeerFailed
from remuda.gallery.fetch import Fetcher
from remuda.gallery.model import Gallery
from remuda.gallery.model_galleries import ModelGalleries
from remuda.gallery.sources import REMUDA_MODELS, Cache, GalleryView, ModelSources
from tests.integration.gallery.servers import Server
from tests.support.clocks import HandClock

pytestmark = pytest.mark.anyio

INDEX = """\
- name: small
  url: "github:owner/repo/base.yaml@master"
  overrides: {parameters: {model: small.gguf}}
  files: [{filename: small.gguf, uri: "https://example.org/small.gguf"}]
- {name: file, url: "file:///etc/hostname"}
- {name: link, url: "http://169.254.169.254/latest"}
- {name: gone, url: "%(here)s/gone.yaml"}
- {name: page, url: "%(here)s/page.html"}
- {name: llama3.2, source: "hf://a/b"}
"""
BASE = b"config_file: |\n  backend: llama-cpp\n  f16: true\nlicense: mit\n"


@pytest.fixture
async def galleries(
    server: Server, fetcher: Fetcher, clock: HandClock, tmp_path: Path
) -> AsyncIterator[ModelGalleries]:
    server.serve((INDEX % {"here": server.address}).encode())
    server.serve(BASE, "/owner/repo/master/base.yaml")
    server.serve(b"<html></html>", "/page.html")
    configured = (REMUDA_MODELS, Gallery(name="mine", url=server.url()))
    sources = ModelSources(configured, fetcher=fetcher, cache=Cache(tmp_path / "cache"), clock=clock)
    view = GalleryView(sources, lambda _: sources)
    async with anyio.create_task_group() as tasks:
        await tasks.start(view.run)
        yield ModelGalleries(view, fetcher, shipped_first=True)
        tasks.cancel_scope.cancel()


async def test_an_entry_amounts_to_its_base_under_its_overrides(
    galleries: ModelGalleries, server: Server
) -> None:
    found = await galleries.find("small")
    made = await galleries.composed(found, "tiny")

    assert yaml.safe_load(made.config) == {
        "backend": "llama-cpp",
        "f16": True,
        "parameters": {"model": "small.gguf"},
        "name": "tiny",
    }
    assert (made.license, [file.filename for file in made.files]) == ("mit", ["small.gguf"])
    await galleries.composed(found)
    assert [one.path for one in server.asked].count("/owner/repo/master/base.yaml") == 1


async def test_what_ships_is_found_without_asking_any_gallery(
    galleries: ModelGalleries, server: Server
) -> None:
    found = await galleries.find("llama3.2")

    assert found.id == "remuda@llama-3.2-3b-instruct"
    assert server.asked == []
    assert (await galleries.find("mine@llama3.2")).entry.source == "hf://a/b"


async def test_a_name_that_no_gallery_has_is_not_found(galleries: ModelGalleries) -> None:
    with pytest.raises(NotFound, match="no gallery has a model 'smal'") as refused:
        await galleries.find("smal")
    assert refused.value.hint == "did you mean small?"


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("file", Invalid, "may only name files|may not name a file|only a local gallery"),
        ("link", PeerFailed, "a link-local address"),
        ("gone", PeerFailed, "gone.yaml answered 404"),
        ("page", PeerFailed, "page.html is no base configuration"),
    ],
)
async def test_a_base_that_cannot_be_had_is_said(
    galleries: ModelGalleries, name: str, kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said):
        await galleries.composed(await galleries.find(name))


async def test_a_gallery_that_cannot_be_read_is_named(galleries: ModelGalleries, server: Server) -> None:
    server.fail()

    with pytest.raises(NotFound, match=r"\(galleries that could not be read: mine\)"):
        await galleries.find("nothing-like-it")
    assert (await galleries.readings())[0].index.entries
