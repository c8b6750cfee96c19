"""What is to be installed, and what is refused before anything is fetched."""

import pytest

from remuda.core.clock import SystemClock
from remuda.core.errors import Invalid, NotFound, Unavailable
from remuda.gallery.index import read_index
from remuda.gallery.model import Gallery, MachineProfile, Reading
from remuda.gallery.resolve import resolve
from remuda.oci.errors import SignatureRequired
from remuda.oci.reference import parse_source
from remuda.worker.depot.install_spec import (
    InstallSpec,
    check_integrity,
    is_source,
    spec_from_gallery,
    spec_from_source,
)
from remuda.worker.depot.layout import checked_name

INDEX = b"""
- name: x
  capabilities: {default: cpu-x}
- name: cpu-x
  alias: x-alias
  uri: quay.io/o/b:latest-cpu-x
  version: "1.10"
- name: engine
  uri: "builtin:engine"
"""
GALLERY = Gallery(name="g", url="https://example.org/index.yaml")
MACHINE = MachineProfile("linux", "amd64", "default")


def spec(name: str) -> InstallSpec:
    readings = (Reading(GALLERY, read_index(INDEX), confirmed_at=SystemClock().now()),)
    return spec_from_gallery(resolve(readings, name, MACHINE), readings)


def test_a_meta_backend_is_ordered_as_the_build_it_means() -> None:
    made = spec("x")

    assert (made.name, made.meta, made.alias, made.version) == ("cpu-x", "x", "x-alias", "1.10")
    assert made.gallery_url == GALLERY.url
    assert made.uris == (
        "quay.io/o/b:latest-cpu-x",
        "quay.io/o/b:master-cpu-x",
        "quay.io/o/b:master-cpu-x-development",
    )


@pytest.mark.parametrize("name", ["cpu-x", "x-alias"])
def test_builds_and_aliases_make_no_meta_backend(name: str) -> None:
    assert spec(name).meta == ""


def test_what_ships_with_remuda_is_ordered_like_the_rest() -> None:
    assert spec("engine").uris == ("builtin:engine",)


def test_an_unknown_name_is_not_found() -> None:
    with pytest.raises(NotFound, match="no gallery has a backend called y"):
        spec("y")


def test_a_gallery_that_cannot_be_read_may_have_it_later() -> None:
    readings = (Reading(GALLERY, trouble="it is down"),)

    with pytest.raises(Unavailable, match="it is down"):
        spec_from_gallery(resolve(readings, "y", MACHINE), readings)


@pytest.mark.parametrize(
    ("uri", "name"), [("/srv/mine", "mine"), ("ocifile:///srv/a.b.tar", "a"), ("/srv/c.tar.gz", "c")]
)
def test_folders_and_files_lend_their_name(uri: str, name: str) -> None:
    assert spec_from_source(uri).name == name


def test_an_image_needs_a_name() -> None:
    with pytest.raises(Invalid, match="needs a name"):
        spec_from_source("quay.io/o/b:tag")


@pytest.mark.parametrize(
    "name", ["", " ", ".", "..", ".remuda", "-x", "a\0b", "a\\b", "a\nb", "x.install-tmp", "ä" * 101]
)
def test_names_that_are_no_folders_are_refused(name: str) -> None:
    with pytest.raises(Invalid):
        checked_name(name)


def test_a_slash_becomes_two_underscores() -> None:
    assert checked_name("a/b") == "a__b"


@pytest.mark.parametrize(
    "uri", ["quay.io/o/b:tag", "ocifile:///srv/a.tar", "https://example.org/a.tar", "/srv/a.tar"]
)
def test_what_nobody_vouched_for_is_refused_where_that_is_demanded(uri: str) -> None:
    with pytest.raises(SignatureRequired):
        check_integrity(parse_source(uri), "")


@pytest.mark.parametrize("text", ["quay.io/o/b:tag", "./here", "oci://x", ".", "file:///x"])
def test_places_are_told_from_names(text: str) -> None:
    assert is_source(text)
    assert not is_source("localai@llama-cpp")
