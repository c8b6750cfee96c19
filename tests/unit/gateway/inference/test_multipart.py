"""Forms are read whole or refused with a reason, whatever is sent."""

from collections.abc import Callable, Sequence
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.core.slices import at_once, slice_count
from remuda.gateway.inference.body_errors import InvalidField
from remuda.gateway.inference.forms import FormFields
from remuda.gateway.inference.multipart import PARTS_MAX, FormPart, form_parts

TYPE = "multipart/form-data; boundary=edge"


def form(*parts: tuple[str, bytes], end: bytes = b"--edge--\r\n") -> bytes:
    """Each part as the parameters of its Content-Disposition, and its content."""
    return (
        b"".join(
            b"--edge\r\nContent-Disposition: form-data; %b\r\n\r\n%b\r\n" % (head.encode(), content)
            for head, content in parts
        )
        + end
    )


def parts(body: bytes, content_type: str = TYPE) -> list[tuple[str, str | None, bytes]]:
    return [(one.name, one.file_name, bytes(one.content)) for one in at_once(form_parts(content_type, body))]


def test_fields_and_files_are_told_apart() -> None:
    body = form(('name="model"', b"m"), ('name="file"; filename="a b.wav"', b"RIFF\r\n--edg\r\n"))
    assert parts(body) == [("model", None, b"m"), ("file", "a b.wav", b"RIFF\r\n--edg\r\n")]


def test_what_only_looks_like_a_boundary_is_content() -> None:
    content = b"\r\n--edgewise\r\n--edge."
    assert parts(form(('name="file"; filename=""', content))) == [("file", "", content)]


@pytest.mark.parametrize(
    ("head", "name"),
    [
        ("name*=x; name=file; filename*=UTF-8''%C3%A4.mp3", "ä.mp3"),
        ('name="file"; filename="q\\"uote.mp3"', 'q"uote.mp3'),
        ("filename=plain.mp3; name=file", "plain.mp3"),
    ],
)
def test_names_of_files_come_in_several_notations(head: str, name: str) -> None:
    ((_, file_name, _),) = parts(form((head, b"x")))
    assert file_name == name


def test_a_preamble_and_spaces_behind_boundaries_are_skipped() -> None:
    body = b"hello\r\n" + form(('name="a"', b"1")).replace(b"--edge\r\n", b"--edge \t\r\n")
    assert parts(body) == [("a", None, b"1")]


def test_a_form_without_parts_is_empty() -> None:
    assert parts(b"--edge--") == []


WHOLE = form(('name="model"', b"m"), ('name="file"; filename="a.wav"', b"sound"), end=b"--edge--")


@pytest.mark.parametrize("length", range(len(WHOLE)))
def test_a_form_that_is_cut_off_anywhere_is_refused(length: int) -> None:
    with pytest.raises(InvalidField, match=r"cut off|no end"):
        parts(WHOLE[:length])


@pytest.mark.parametrize(
    ("content_type", "words"),
    [
        ("", "not a form"),
        ("application/json", "not a form"),
        ("multipart/form-data", "boundary"),
        ("multipart/form-data; boundary=", "boundary"),
        (f"multipart/form-data; boundary={'x' * 300}", "boundary"),
    ],
)
def test_what_is_no_form_is_refused(content_type: str, words: str) -> None:
    with pytest.raises(InvalidField, match=words):
        parts(WHOLE, content_type)


def test_parts_are_bounded() -> None:
    with pytest.raises(InvalidField, match="more than"):
        parts(form(*[('name="a"', b"1")] * (PARTS_MAX + 1)))
    with pytest.raises(InvalidField, match="no name"):
        parts(form(("filename=x", b"1")))
    with pytest.raises(InvalidField, match="too many"):
        parts(form((f'name="a"; x="{"y" * 10_000}"', b"1")))


def test_a_large_file_is_searched_in_slices_and_not_copied() -> None:
    body = form(('name="file"; filename="a.wav"', bytes(5 << 20)))
    (found,), slices = slice_count(form_parts(TYPE, body))
    assert (found.content.obj, slices > 10) == (body, True)


@given(st.binary(max_size=300), st.sampled_from(["", "--edge", "\r\n--edge\r\n", WHOLE.decode()]))
def test_whatever_comes_is_read_or_refused(noise: bytes, before: str) -> None:
    body = before.encode() + noise
    found: list[tuple[str, str | None, bytes]] = []
    with suppress(InvalidField):
        found = parts(body)
    assert all(content in body for _, _, content in found)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.binary(max_size=40))))
def test_what_goes_in_comes_out(fields: list[tuple[str, bytes]]) -> None:
    fields = [(name, content) for name, content in fields if b"--edge" not in content]
    body = form(*[(f'name="{name}"', content) for name, content in fields])
    assert [(name, content) for name, _, content in parts(body)] == fields


def fields(**values: str | bytes | Sequence[str | bytes]) -> FormFields:
    """Bytes are files."""
    made = list[FormPart]()
    for name, value in values.items():
        for one in [value] if isinstance(value, str | bytes) else value:
            content = one if isinstance(one, bytes) else one.encode()
            made.append(FormPart(name, "f.bin" if isinstance(one, bytes) else None, memoryview(content)))
    return FormFields(made)


def test_fields_have_their_types() -> None:
    read = fields(model="m", number="0.5", flag="TRUE", many=["a", "b", "a"], file=b"x")
    assert (read.model(), read.number("number", 0, 1), read.flag("flag"), read.flag("none")) == (
        "m",
        0.5,
        True,
        False,
    )
    assert (read.choices("many", ("a", "b")), read.whole_number("none", 0, 1)) == (("a", "b"), None)
    assert bytes(read.files("file")[0].content) == b"x"


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda read: read.model(), "model is missing"),
        (lambda read: read.files("file"), "file is missing"),
        (lambda read: read.files("word"), "must be a file"),
        (lambda read: read.files("empty"), "empty file"),
        (lambda read: read.files("two", most=1), "2 files"),
        (lambda read: read.text("two"), "not a file"),
        (lambda read: read.text("twice"), "2 times"),
        (lambda read: read.number("word", 0, 1), "must be a number"),
        (lambda read: read.number("nan", 0, 1), "from 0 to 1"),
        (lambda read: read.whole_number("half", 0, 1), "whole number"),
        (lambda read: read.flag("word"), "true or false"),
        (lambda read: read.choice("word", ("a",), "a"), "cannot be"),
    ],
)
def test_what_is_wrong_with_a_field_is_told(ask: Callable[[FormFields], object], words: str) -> None:
    given = fields(word="x", empty=b"", twice=["a", "b"], nan="nan", half="0.5", two=[b"x", b"y"])
    with pytest.raises(InvalidField, match=words):
        ask(given)


def test_text_that_is_none_is_refused() -> None:
    broken = FormFields([FormPart("prompt", None, memoryview(b"\xff"))])
    with pytest.raises(InvalidField, match="not UTF-8"):
        broken.text("prompt")
    with pytest.raises(InvalidField, match="longer"):
        fields(prompt="x" * (257 << 10)).text("prompt")
