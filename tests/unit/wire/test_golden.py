"""The JSON of every message, pinned literally."""

import json

import pytest
from pydantic import BaseModel

from remuda.wire.codec import Message, decode, encode
from tests.unit.wire import golden


def _id(sample: golden.Sample) -> str:
    return f"{sample.message.__name__}-{sample.name}"


@pytest.mark.parametrize("sample", golden.ALL, ids=_id)
def test_sample_survives_reading_and_writing_byte_for_byte(sample: golden.Sample) -> None:
    assert encode(decode(sample.message, sample.payload)) == sample.payload


@pytest.mark.parametrize("sample", [s for s in golden.ALL if issubclass(s.message, Message)], ids=_id)
def test_unknown_fields_are_ignored(sample: golden.Sample) -> None:
    """Row A101: an older reader skips what a newer writer adds."""
    extended = {**json.loads(sample.payload), "from_the_future": {"deep": [1]}}

    assert decode(sample.message, json.dumps(extended).encode()) == decode(sample.message, sample.payload)


@pytest.mark.parametrize(
    "message",
    [m for module in golden.MODULES for m in golden.messages(module).values()],
    ids=lambda m: m.__name__,
)
def test_samples_show_every_field_of_every_message(message: type[BaseModel]) -> None:
    samples = [json.loads(sample.payload) for sample in golden.ALL if sample.message is message]

    hidden = [
        field
        for field in message.model_fields
        if issubclass(message, Message) and not any(field in sample for sample in samples)
    ]

    assert samples
    assert hidden == []
