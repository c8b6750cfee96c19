"""Changes to a model's YAML change their own lines and nothing else."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import JsonValue

from remuda.core.errors import Invalid
from remuda.models.config import parse_document
from remuda.models.editing import Change, assignment, changes_of, edit
from remuda.models.reading import read_model

TEXT = """\
# Ours.
name: smollm   # As people call it.
backend: llama-cpp
spice: {hot: yes}

parameters:
  model: a.gguf
  # Warm.
  temperature: 0.8
template:
  chat: |
    {{.Input}}
    assistant

stopwords:
- a
- b
mmproj:
# The end.
"""


def edited(text: str, *assignments: str) -> str:
    return edit(text, [assignment(one) for one in assignments])


@pytest.mark.parametrize(
    ("given", "before", "after"),
    [
        ("name=other", "name: smollm   # As", "name: other   # As"),
        ("parameters.temperature=0.2", "  temperature: 0.8\n", "  temperature: 0.2\n"),
        ("parameters.top_k=5", "  temperature: 0.8\n", "  temperature: 0.8\n  top_k: 5\n"),
        ("context_size=4096", "mmproj:\n", "mmproj:\ncontext_size: 4096\n"),
        ("mmproj=eyes.gguf", "mmproj:\n", "mmproj: eyes.gguf\n"),
        ("mmproj=null", "mmproj:\n", ""),
        ("template.chat=x", "  chat: |\n    {{.Input}}\n    assistant\n", "  chat: x\n"),
        ("template.function=y", "    assistant\n", "    assistant\n  function: y\n"),
        ("stopwords=[c]", "stopwords:\n- a\n- b\n", "stopwords: [c]\n"),
        ("stopwords=null", "stopwords:\n- a\n- b\n", ""),
        ("spice.mild=1", "{hot: yes}", "{hot: yes, mild: 1}"),
        ("spice.hot=no", "{hot: yes}", "{hot: no}"),
        ("spice.hot=null", "{hot: yes}", "{}"),
        ("function.grammar.disable=true", "mmproj:\n", "mmproj:\nfunction:\n  grammar:\n    disable: true\n"),
        ("parameters.temperature=null", "  temperature: 0.8\n", ""),
        ("description=a: b # c", "mmproj:\n", 'mmproj:\ndescription: "a: b # c"\n'),
        ("description=", "mmproj:\n", 'mmproj:\ndescription: ""\n'),
        ("description='1'", "mmproj:\n", "mmproj:\ndescription: '1'\n"),
        ("nothing=null", "", ""),
        ("nothing.at.all=null", "", ""),
    ],
)
def test_a_change_leaves_all_other_bytes_alone(given: str, before: str, after: str) -> None:
    assert edited(TEXT, given) == TEXT.replace(before, after, 1)


@pytest.mark.parametrize(
    ("text", "given", "after"),
    [
        ("name: a", "f16=true", "name: a\nf16: true\n"),
        ("{name: a}", "f16=true", "{name: a, f16: true}"),
        ("{name: a, f16: true}\n", "name=null", "{f16: true}\n"),
        ("{}\n", "parameters.model=x", "{parameters: {model: x}}\n"),
        ("", "name=a", "name: a\n"),
        ("# Only a comment.\n", "name=a", "# Only a comment.\nname: a\n"),
        ("name: a\nparameters: {}\n", "parameters.model=x", "name: a\nparameters:\n  model: x\n"),
        ("parameters:\nname: a\n", "parameters.model=x", "parameters:\n  model: x\nname: a\n"),
        (
            "parameters: ~ # none\nname: a\n",
            "parameters.model=x",
            "parameters: # none\n  model: x\nname: a\n",
        ),
        ("a:\n    b: 1\nname: x\n", "a.c=2", "a:\n    b: 1\n    c: 2\nname: x\n"),
        ("name: 大模型\nf16: true # ß\n", "f16=false", "name: 大模型\nf16: false # ß\n"),
        ("name: a\r\nf16: true\r\n", "f16=false", "name: a\r\nf16: false\r\n"),
        ('"name": a\n', "name=b", '"name": b\n'),
        ("name: |-\n  a\nf16: true\n", "name=b", "name: b\nf16: true\n"),
    ],
)
def test_any_layout_is_kept(text: str, given: str, after: str) -> None:
    assert edited(text, given) == after


@pytest.mark.parametrize(
    ("text", "given", "why"),
    [
        ("name: a\nx: &x 1\ny: *x\n", "x=2", "x: cannot be changed by itself"),
        ("name: a\nx: &x {b: 1}\ny: *x\n", "x.b=2", "x.b: cannot be changed by itself: more than this key"),
        ("name: a\n", "name.b=2", "name: not a map of keys, so name.b cannot be set"),
        ("[a]\n", "name=a", "must be a map"),
    ],
)
def test_what_would_change_more_is_refused(text: str, given: str, why: str) -> None:
    with pytest.raises(Invalid, match=why):
        edited(text, given)


@pytest.mark.parametrize("text", ["", "name", "=x", "a..b=1", ".=1"])
def test_what_assigns_nothing_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="is not KEY=VALUE"):
        assignment(text)


def test_a_merge_patch_sets_nested_keys_and_removes_with_null() -> None:
    patch: dict[str, JsonValue] = {
        "parameters": {"temperature": 0.5, "model": None},
        "stopwords": ["x"],
        "name": "1",
        "f16": True,
    }

    assert list(changes_of(patch)) == [
        Change(("parameters", "temperature"), "0.5"),
        Change(("parameters", "model"), None),
        Change(("stopwords",), '["x"]'),
        Change(("name",), '"1"'),
        Change(("f16",), "true"),
    ]


def test_unknown_keys_and_comments_survive_every_edit() -> None:
    after = edited(TEXT, "context_size=1", "context_size=2", "parameters.seed=3", "context_size=null")

    assert read_model(after).unknown == read_model(TEXT).unknown == ("spice",)
    assert [line for line in TEXT.splitlines() if line not in after.splitlines()] == []


words = st.text("abc:#{}[]'\" \\-?&*!|>%@,~0\n", max_size=8)
names = st.sampled_from(["name", "a", "b", "parameters", "template", "stopwords", "spice", "mmproj"])


@example([(("spice", "name"), ":0")])
@example([(("spice", "name"), "a]")])  # The map is written within braces.
@example([(("spice", "name"), "a, b")])
@given(st.lists(st.tuples(st.lists(names, min_size=1, max_size=2).map(tuple), st.none() | words), max_size=4))
def test_any_text_can_be_set_and_is_read_back(assigned: list[tuple[tuple[str, ...], str | None]]) -> None:
    text = TEXT
    for keys, value in assigned:
        nested: object = value
        for key in reversed(keys):
            nested = {key: nested}
        assert isinstance(nested, dict)
        try:
            text = edit(text, list(changes_of(nested)))
        except Invalid as error:
            if "not a map of keys" not in error.message:
                raise
            continue
        found = parse_document(text).value
        for key in keys:
            assert isinstance(found, dict) or found is None
            found = found.get(key) if found else None
        assert found == value
