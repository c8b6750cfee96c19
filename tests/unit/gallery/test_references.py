"""References to images, as text."""

import pytest

from remuda.gallery.references import for_peers, is_image, registry, same_repository, same_source


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("registry.example/x:v1", "oci://registry.example/x:v1", True),
        ("registry.example/x", "registry.example/x:latest", True),
        ("registry.example/x:v1", "registry.example/x:v2", False),
        ("127.0.0.1:5000/x", "127.0.0.1:5001/x", False),
        ("me/x", "docker.io/me/x:latest", True),
        ("docker.io/x", "docker.io/library/x", True),
        ("registry.example/x:v1@sha256:aa", "registry.example/x@sha256:aa", True),
        ("https://example.org/x.tar", "https://example.org/x.tar", True),
        ("https://example.org/x.tar", "https://example.org/y.tar", False),
    ],
)
def test_the_same_image_may_be_written_in_two_ways(one: str, other: str, same: bool) -> None:
    assert same_source(one, other) is same_source(other, one) is same


def test_a_repository_is_known_under_any_of_its_tags() -> None:
    assert same_repository("quay.io/me/x:v1", "oci://quay.io/me/x@sha256:aa")
    assert not same_repository("quay.io/me/x:v1", "quay.io/me/y:v1")
    assert (registry("127.0.0.1:5000/me/x:v1"), registry("me/x")) == ("127.0.0.1:5000", "docker.io")


@pytest.mark.parametrize(
    "uri",
    ["https://example.org/x.tar.gz", "/srv/x", "./x", "~/x", "file:///x", "ocifile://x/y", "builtin:echo"],
)
def test_what_is_no_image_stays_as_it_is(uri: str) -> None:
    assert not is_image(uri)
    assert for_peers(uri) == uri
