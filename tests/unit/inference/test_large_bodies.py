"""An outline says what the body says, and is as valid as the body is; others have their turns meanwhile."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import msgspec
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st

from remuda.inference import large_bodies
from remuda.inference.large_bodies import Outline, outlined

pytestmark = pytest.mark.anyio

PICTURE = "QUJD" * (50 << 10)
# What makes JSON, and what breaks it, around strings that count as long in these tests.
LONG = ("QUJDQUJDQUJDQUJD", '"QUJDQUJDQUJDQUJDQUJD"', "1,2,3,4,5,6,7,8,9,10,11,12", '"a":"QUJDQUJDQUJD"')
PIECES = st.sampled_from(
    [*'{}[]:, "\\\né', '"', '"', "\\/", "\\u00e9", "true", "12", "a", '"k"', '"k":', *LONG]
)


@contextmanager
def small_steps() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large_bodies, "_STEP_BYTES", 4)
        patch.setattr(large_bodies, "_SLICE_BYTES", 5)
        yield


def is_json(text: bytes) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True


async def test_long_strings_are_set_aside_and_put_back() -> None:
    body = json.dumps({"a": PICTURE, "b": ["short", PICTURE], "c": 1}).encode()
    found = await outlined(body)
    assert (len(found.aside), len(found.text) < 100) == (2, True)
    assert await found.filled(found.text) == body


async def test_what_is_moved_about_takes_what_belongs_to_it_along() -> None:
    found = await outlined(json.dumps({"a": PICTURE, "b": PICTURE[::-1]}).encode())
    members = json.loads(found.text)
    turned = json.dumps({"b": members["b"], "a": members["a"]}).encode()
    assert json.loads(await found.filled(turned)) == {"b": PICTURE[::-1], "a": PICTURE}


async def test_a_part_is_found_in_the_body_again() -> None:
    part = json.dumps({"url": PICTURE, "detail": "low"})
    found = await outlined(b'{"x": %s}' % part.encode())
    kept = msgspec.json.decode(found.text, type=dict[str, msgspec.Raw])["x"]
    assert bytes(found.original(bytes(kept))) == part.encode()


async def test_slashes_may_be_escaped() -> None:
    body = b'["%s"]' % (b"QUJD\\/" * (50 << 10))
    assert len((await outlined(body)).aside) == 1


@pytest.mark.parametrize(
    "body",
    [
        b'{"a": [' + b"1," * (50 << 10) + b'1], "b": 2}',
        b'{"a": "' + b"QUJD" * (50 << 10),
        b"QUJD" * (50 << 10) + b'"',
        b'["' + b"QUJD\n" * (50 << 10) + b'"]',
        b'["' + b"QUJD\\x" * (50 << 10) + b'"]',
        b'["' + b"QUJD\xff" * (50 << 10) + b'"]',
        b'["%s", "(set aside 0)"]' % PICTURE.encode(),
    ],
    ids=["numbers", "no end", "no beginning", "newlines", "no escape", "not ascii", "like a stand-in"],
)
async def test_of_other_things_nothing_is_set_aside(body: bytes) -> None:
    assert await outlined(body) == Outline(body, body, ())


@settings(deadline=None)
@given(st.lists(PIECES, max_size=30).map("".join).map(str.encode))
async def test_an_outline_is_as_valid_as_its_body(body: bytes) -> None:
    with small_steps():
        found = await outlined(body)
    assert is_json(found.text) == is_json(body)
    assert await found.filled(found.text) == body


async def test_others_have_their_turns_meanwhile() -> None:
    body = b'["%s"]' % (b"QUJD" * (1 << 20))
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            await checkpoint()
            turns += 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(take_turns)
        await outlined(body)
        tasks.cancel_scope.cancel()
    assert turns >= len(body) // large_bodies._SLICE_BYTES // 2
