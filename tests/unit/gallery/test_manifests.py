"""The part of an entry that is passed on as YAML."""

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from remuda.gallery import entry_fields
from remuda.gallery.index import read_index
from remuda.gallery.model import GalleryIndex

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def index_of(text: str) -> GalleryIndex:
    return read_index(text.encode())


def test_numbers_stay_numbers_and_quoted_text_stays_text() -> None:
    entry = index_of("""
- name: web
  uri: quay.io/o/web:v1
  remuda:
    port: 8080
    version: "1.10"
    ready: {path: /health, status: 200}
    command: [serve, --port, "{port}", "true"]
    gpu: false
""").entries[0]

    assert yaml.safe_load(entry.manifest) == {
        "port": 8080,
        "version": "1.10",
        "ready": {"path": "/health", "status": 200},
        "command": ["serve", "--port", "{port}", "true"],
        "gpu": False,
    }


def test_entries_without_one_have_an_empty_one() -> None:
    read = index_of("- {name: a, uri: u}\n- {name: b, uri: u, remuda: }\n")

    assert [entry.manifest for entry in read.entries] == ["", ""]


def test_it_is_inherited_with_the_rest_of_an_entry_and_merged_within() -> None:
    read = index_of("""
- &base
  name: web
  capabilities: {default: cpu-web}
  remuda: &how {port: 1, path: /a}
- <<: *base
  name: cpu-web
  uri: u
- name: other
  uri: u
  remuda: {<<: *how, port: 2}
""")

    manifest = {entry.name: yaml.safe_load(entry.manifest) for entry in read.entries}
    assert manifest["cpu-web"] == {"port": 1, "path": "/a"}
    assert manifest["other"] == {"port": 2, "path": "/a"}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("text", "remuda must be a map"),
        ("[1]", "remuda must be a map"),
        ("{a: !!python/name:os.system x}", "tag"),
        ("{a: [!odd x]}", "tag"),
        ("{a: !odd {}}", "tag"),
        ("{a: %s}" % ("x" * entry_fields.CHARS_MAX), "more than"),
        ("{a: {[b]: c}}", "a key must be a word"),
    ],
)
def test_what_cannot_be_passed_on_costs_its_entry_only(value: str, reason: str) -> None:
    read = index_of(f"- {{name: bad, uri: u, remuda: {value}}}\n- {{name: good, uri: u}}\n")

    assert [entry.name for entry in read.entries] == ["good"]
    assert reason in read.complaints[0].reason


def test_aliases_cannot_make_it_large_or_deep() -> None:
    doubled = "\n".join(f"    b{n}: &b{n} [*b{n - 1}, *b{n - 1}]" for n in range(1, 40))
    chained = "\n".join(f"    c{n}: &c{n} [*c{n - 1}]" for n in range(1, 3000))

    wide = index_of(f"- name: x\n  uri: u\n  remuda:\n    b0: &b0 [word]\n{doubled}\n")
    deep = index_of(f"- name: x\n  uri: u\n  remuda:\n    c0: &c0 [word]\n{chained}\n")

    assert "remuda has more than" in wide.complaints[0].reason
    assert "remuda is nested more than" in deep.complaints[0].reason


@given(st.dictionaries(st.text(max_size=8), VALUES, max_size=4))
def test_whatever_it_says_is_passed_on_as_it_was(value: dict[str, Any]) -> None:
    text = yaml.safe_dump([{"name": "x", "uri": "u", "remuda": value}])

    entry = index_of(text).entries[0]

    assert yaml.safe_load(entry.manifest) == value
