"""From an entry of a model gallery to a configuration."""

import pytest
import yaml

from remuda.core.errors import Invalid
from remuda.gallery.model_configs import ComposedModel, compose, read_base
from remuda.gallery.model_entries import GalleryFile, ModelEntry, read_model_index

BASE = b"""\
name: chatml
license: apache-2.0
config_file: |
  name: base
  backend: llama-cpp
  f16: true
  stopwords: [a, b]
  template:
    chat: chatml-block
    completion: "{{.Input}}"
  parameters: &p
    temperature: 0.7
    top_k: 40
  function: {<<: *p}
files:
- filename: shared.bin
  uri: https://example.org/shared.bin
- filename: both.bin
  uri: https://example.org/old.bin
prompt_templates:
- name: chatml-block
  content: |
    <|im_start|>
    {{.Input}}
"""
INDEX = b"""\
- name: small
  url: github:owner/repo/chatml.yaml@master
  overrides:
    parameters: {model: small.gguf, temperature: 0.1}
    stopwords: [c]
    version: 1.10
  files:
  - {filename: both.bin, uri: "https://example.org/new.bin"}
- name: inline
  config_file: {backend: whisper, parameters: {model: w.bin}}
- name: bare
  backend: vllm
  files: [{filename: x, uri: "https://example.org/x"}]
"""


def entry(name: str) -> ModelEntry:
    return next(one for one in read_model_index(INDEX).entries if one.name == name)


def meant(model: ComposedModel) -> object:
    return yaml.safe_load(model.config)


def test_overrides_are_merged_map_by_map_over_the_base() -> None:
    made = compose(entry("small"), read_base(BASE))

    assert meant(made) == {
        "name": "small",
        "backend": "llama-cpp",
        "f16": True,
        "stopwords": ["c"],
        "template": {"chat": "<|im_start|>\n{{.Input}}\n", "completion": "{{.Input}}"},
        "parameters": {"temperature": 0.1, "top_k": 40, "model": "small.gguf"},
        "function": {"temperature": 0.7, "top_k": 40},
        "version": 1.1,
    }
    assert "version: 1.10" in made.config, "texts stay as written"
    assert made.license == "apache-2.0"


def test_the_entrys_files_count_before_the_bases() -> None:
    assert compose(entry("small"), read_base(BASE)).files == (
        GalleryFile("shared.bin", "https://example.org/shared.bin"),
        GalleryFile("both.bin", "https://example.org/new.bin"),
    )


def test_an_inline_configuration_needs_no_base() -> None:
    assert meant(compose(entry("inline"))) == {
        "backend": "whisper",
        "parameters": {"model": "w.bin"},
        "name": "inline",
    }
    assert meant(compose(entry("bare"), name="mine")) == {"name": "mine", "backend": "vllm"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[a]", "must be a map"),
        (b"", "must be a map"),
        (b"files: [{filename: ../x, uri: u}]", "line 1: files: filename '../x' is not a path"),
        (b"config_file: {a: b}", "line 1: config_file must be text"),
        (b"a: [", "line 1: not valid YAML"),
    ],
)
def test_a_base_that_is_none_is_refused(content: bytes, said: str) -> None:
    with pytest.raises(Invalid, match=said):
        read_base(content)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("[a]", "config_file: it must be a map"),
        ("a: *b", "is an undefined alias"),
        ("a: &a {b: *a}", "contains itself"),
        ("a: 1\na: 2", "config_file: line 2: a: given twice"),
        ("a: !!python/object:x {}", "tag"),
    ],
)
def test_a_base_with_a_bad_configuration_is_refused(config: str, said: str) -> None:
    base = read_base(yaml.safe_dump({"config_file": config}).encode())
    with pytest.raises(Invalid, match=said):
        compose(entry("small"), base)


def test_anchors_do_not_make_a_large_configuration_of_a_small_one() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    base = read_base(yaml.safe_dump({"config_file": "\n".join(lines)}).encode())

    with pytest.raises(Invalid, match="more than 20000 characters"):
        compose(entry("small"), base)
