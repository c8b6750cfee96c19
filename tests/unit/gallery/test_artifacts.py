"""Where the bytes of a build may be had."""

import pytest

from remuda.gallery.model import GalleryEntry
from remuda.gallery.resolve import uris_of
from tests.unit.gallery.indexes import concrete


def test_mirrors_come_before_nightly_images() -> None:
    entry = GalleryEntry(
        name="x",
        line=1,
        uri="quay.io/backends:latest-cpu-x",
        mirrors=("localai/backends:latest-cpu-x", "quay.io/backends:latest-cpu-x"),
    )

    assert uris_of(entry) == (
        "quay.io/backends:latest-cpu-x",
        "localai/backends:latest-cpu-x",
        "quay.io/backends:master-cpu-x",
        "quay.io/backends:master-cpu-x-development",
    )


@pytest.mark.parametrize(
    "uri",
    [
        "builtin:llama-cpp",
        "quay.io/backends:v1.2",
        "quay.io/latest-backends:v1",
        "latest-registry.example:5000/backends",
        "quay.io/backends:latest-x@sha256:" + "a" * 64,
        "https://files.example/latest-x.tar.gz",
        "file:///srv/latest-x",
        "ocifile:///srv/a:latest-x.tar",
        "/srv/a:latest-x",
    ],
)
def test_what_has_no_nightly_image_has_one_address(uri: str) -> None:
    assert uris_of(concrete("x", uri)) == (uri,)


def test_a_registry_with_a_port_is_no_tag() -> None:
    assert uris_of(concrete("x", "oci://localhost:5000/b:latest-x"))[1] == "oci://localhost:5000/b:master-x"
