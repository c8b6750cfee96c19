"""Names of images and of other places, as people write them."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.core.errors import Invalid
from remuda.oci.reference import (
    Archive,
    Folder,
    ImageSource,
    OciFile,
    OciImage,
    Reference,
    parse_digest,
    parse_reference,
    parse_source,
)

DIGEST = "sha256:" + "ab" * 32


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("alpine", Reference("docker.io", "library/alpine", "latest")),
        ("alpine:3.20", Reference("docker.io", "library/alpine", "3.20")),
        ("localai/localai-backends:tag", Reference("docker.io", "localai/localai-backends", "tag")),
        ("index.docker.io/alpine", Reference("docker.io", "library/alpine", "latest")),
        ("quay.io/go-skynet/backends:v1", Reference("quay.io", "go-skynet/backends", "v1")),
        ("QUAY.io/a/b", Reference("quay.io", "a/b", "latest")),
        ("localhost/a", Reference("localhost", "a", "latest")),
        ("localhost:5000/a/b:c", Reference("localhost:5000", "a/b", "c")),
        ("[::1]:5000/a", Reference("[::1]:5000", "a", "latest")),
        (f"ghcr.io/a/b@{DIGEST}", Reference("ghcr.io", "a/b", None, DIGEST)),
        (f"ghcr.io/a/b:v1@{DIGEST}", Reference("ghcr.io", "a/b", "v1", DIGEST)),
    ],
)
def test_references_are_completed(text: str, expected: Reference) -> None:
    assert parse_reference(text) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "1 to 1024 characters"),
        ("a" * 2000, "this one 2000"),
        ("quay.io/Foo/bar", "capital letters"),
        ("quay.io/foo//bar", "'foo//bar'"),
        ("quay.io/foo/../bar", "not a repository"),
        ("quay.io/foo:", "not a tag"),
        ("quay.io/foo:-x", "not a tag"),
        ("quay.io/foo:" + "x" * 129, "not a tag"),
        ("quay.io/foo@sha256:abc", "not a digest"),
        ("quay.io/foo@md5:" + "a" * 32, "not a digest"),
        ("quay.io/foo@" + DIGEST.upper(), "not a digest"),
        ("host:99999/foo", "not a registry"),
        ("host:/foo", "not a registry"),
        ("-host.io/foo", "not a registry"),
        ("quay.io/foo bar", "not a repository"),
    ],
)
def test_what_is_wrong_with_a_reference_is_named(text: str, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        parse_reference(text)


def test_capital_letters_come_with_a_correction() -> None:
    with pytest.raises(Invalid, match=r"'quay\.io/foo/bar:V1'"):
        parse_reference("quay.io/Foo/bar:V1")


names = st.from_regex(r"[a-z0-9]+(-[a-z0-9]+)?", fullmatch=True).filter(lambda name: len(name) < 40)


@given(
    registry=st.sampled_from(["docker.io", "quay.io", "localhost:5000", "[::1]:80"]),
    path=st.lists(names, min_size=2, max_size=4),
    tag=st.none() | st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,20}", fullmatch=True),
    pinned=st.booleans(),
)
def test_a_written_reference_reads_as_itself(
    registry: str, path: list[str], tag: str | None, pinned: bool
) -> None:
    digest = DIGEST if pinned else None
    reference = Reference(registry, "/".join(path), tag or (None if digest else "latest"), digest)

    assert parse_reference(str(reference)) == reference


@given(st.text(max_size=100))
def test_any_text_is_a_source_or_refused(text: str) -> None:
    source: ImageSource | None = None
    with suppress(Invalid):
        source = parse_source(text)

    assert source is None or isinstance(source, ImageSource)


def test_a_digest_outranks_a_tag() -> None:
    assert Reference("quay.io", "a/b", "v1", DIGEST).version == DIGEST
    assert Reference("quay.io", "a/b", "v1").pinned(DIGEST).version == DIGEST


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("oci://quay.io/a/b:c", OciImage(Reference("quay.io", "a/b", "c"))),
        ("quay.io/a/b:c", OciImage(Reference("quay.io", "a/b", "c"))),
        ("localai/backends:c", OciImage(Reference("docker.io", "localai/backends", "c"))),
        ("ocifile:///srv/image.tar", OciFile(Path("/srv/image.tar"))),
        ("ocifile://layout", OciFile(Path("layout"))),
        ("https://example.org/a/b.tar.gz", Archive("https://example.org/a/b.tar.gz")),
        ("http://example.org/b.tar.zst?x=1", Archive("http://example.org/b.tar.zst?x=1")),
        ("file:///srv/b.tar", Archive(Path("/srv/b.tar"))),
        ("file:///srv/with%20space", Folder(Path("/srv/with space"))),
        ("/srv/backend", Folder(Path("/srv/backend"))),
        ("./b.tgz", Archive(Path("b.tgz"))),
        ("../backend", Folder(Path("../backend"))),
    ],
)
def test_sources_are_told_apart(text: str, expected: ImageSource) -> None:
    assert parse_source(text) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("llama-cpp", "neither an image nor a path"),
        ("ollama://gemma", "ollama://"),
        ("ftp://host/x.tar", "ftp://"),
        ("ocifile://", "names no path"),
        ("https://example.org/index.html", "does not end like an archive"),
        ("https:///x.tar", "not a usable URL"),
        ("https://host:x/x.tar", "not a usable URL"),
        ("https://user:hunter2@host/x.tar", "user or password"),
    ],
)
def test_what_is_wrong_with_a_source_is_named(text: str, says: str) -> None:
    with pytest.raises(Invalid, match=says) as refused:
        parse_source(text)

    assert "hunter2" not in str(refused.value)


def test_longer_digests_are_known() -> None:
    assert parse_digest("sha512:" + "0" * 128) == "sha512:" + "0" * 128
