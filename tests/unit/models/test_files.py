"""Manifests, and the paths in them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.core.errors import Invalid
from remuda.models.files import ManifestFile, checked_path, make_manifest, manifest_from_json, path_fault

SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def file(path: str) -> ManifestFile:
    return ManifestFile(path=path, size=1, sha256=SHA256)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/passwd",
        "..",
        "a/../b",
        "a//b",
        "a/",
        "./a",
        "a\\b",
        "c:x",
        "a\0b",
        "a\nb",
        "a\u202eb",
        "a.",
        "a/b ",
        "x" * 256,
        "ä" * 128,
        "a/" * 600 + "a",
    ],
)
def test_a_path_that_could_leave_its_folder_or_be_misread_is_refused(path: str) -> None:
    with pytest.raises(Invalid, match="cannot be used as a file's path"):
        checked_path(path)


@pytest.mark.parametrize(
    "path", ["model.gguf", "sub/model-00001-of-00002.gguf", "Größe.json", ".gitattributes"]
)
def test_an_ordinary_path_is_kept(path: str) -> None:
    assert checked_path(path) == path


@given(st.text())
def test_an_accepted_path_stays_below_its_folder(path: str) -> None:
    if not path_fault(path):
        assert not path.startswith("/")
        assert ".." not in path.split("/")
        assert "\0" not in path


@pytest.mark.parametrize("paths", [("a", "a"), ("a", "A"), ("a", "a/b"), ("A", "a/b"), ("a/B", "A/b/c")])
def test_files_that_cannot_stand_beside_each_other_are_refused(paths: tuple[str, ...]) -> None:
    with pytest.raises(Invalid, match="cannot stand beside each other"):
        make_manifest(tuple(file(path) for path in paths))


def test_a_manifest_reads_back_in_the_order_of_its_paths() -> None:
    manifest = make_manifest((file("b"), file("a/c")), "hf://a/b", "0123", "Q4_K_M, which fits")
    assert [one.path for one in manifest.files] == ["a/c", "b"]
    assert manifest_from_json(manifest.model_dump_json()) == manifest
    assert manifest.size == 2


def test_a_manifest_with_a_bad_path_or_hash_is_refused() -> None:
    text = make_manifest((file("a"),)).model_dump_json()
    for bad in (text.replace('"a"', '"../a"'), text.replace(SHA256, "x"), text.replace(":1,", ":-1,"), "{}"):
        with pytest.raises(Invalid, match="not a manifest"):
            manifest_from_json(bad)
