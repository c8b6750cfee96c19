"""Documents of registries, from good ones to nonsense."""

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.oci.errors import ContentRefused
from remuda.oci.model import ImageIndex, ImageManifest, parse_config, parse_manifest
from tests.support.images import image, index, layer

BUILT = image([layer({"a": b"1"})])
WHOLE = json.loads(BUILT.manifest.content)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)


def test_a_manifest_and_an_index_are_told_apart() -> None:
    assert isinstance(parse_manifest(BUILT.manifest.content, "x"), ImageManifest)
    listed = parse_manifest(index({"linux/amd64": BUILT}).content, "x")

    assert isinstance(listed, ImageIndex)
    assert str(listed.builds[0].platform) == "linux/amd64"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"layers": [{"digest": "sha256:../../etc", "size": 1}]}, "not a digest"),
        ({"layers": [WHOLE["layers"][0] | {"size": -1}]}, "size"),
        ({"layers": [WHOLE["layers"][0] | {"size": 1 << 60}]}, "size"),
        ({"layers": [WHOLE["layers"][0]] * 1001}, "1000"),
        ({"layers": [WHOLE["layers"][0] | {"mediaType": "text/plain"}]}, "layer 1 of x is 'text/plain'"),
        ({"config": None}, "neither builds nor layers"),
        ({"schemaVersion": 1, "layers": None}, "old form 1"),
        ({"manifests": [{}]}, "digest"),
    ],
)
def test_what_is_wrong_with_a_manifest_is_named(change: dict[str, object], says: str) -> None:
    with pytest.raises(ContentRefused, match=says):
        parse_manifest(json.dumps(WHOLE | change).encode(), "x")


@pytest.mark.parametrize("depth", [100_000])
def test_a_document_without_bottom_is_refused(depth: int) -> None:
    with pytest.raises(ContentRefused):
        parse_manifest(b'{"manifests":' + b"[" * depth + b"]" * depth + b"}", "x")


@given(field=st.sampled_from(["manifests", "layers", "config", "schemaVersion", "mediaType"]), value=anything)
def test_no_field_breaks_the_reader(field: str, value: object) -> None:
    parsed: ImageManifest | ImageIndex | None = None
    with suppress(ContentRefused):
        parsed = parse_manifest(json.dumps(WHOLE | {field: value}).encode(), "x")

    assert parsed is None or isinstance(parsed, ImageManifest | ImageIndex)


@given(st.binary(max_size=200))
def test_no_bytes_break_the_readers(body: bytes) -> None:
    with suppress(ContentRefused):
        assert parse_manifest(body, "x")
    with suppress(ContentRefused):
        assert parse_config(body, "x")
