"""The peers' description of the backend service, and ours: written apart, they must say the same."""

import pytest
from google.protobuf.descriptor import FieldDescriptor

from remuda.rpc import backend_pb2
from tests.peers.backend_proto import CLASSES, RPCS, build

OUR_MESSAGES = backend_pb2.DESCRIPTOR.message_types_by_name
OUR_CALLS = backend_pb2.DESCRIPTOR.services_by_name["Backend"].methods_by_name
# The contract only names this one's type.
UNTOLD = {("ModelMetadataResponse", "tool_format")}


def described(field: FieldDescriptor) -> tuple[str, int, bool]:
    return field.name, field.type, field.is_repeated


@pytest.mark.parametrize("name", CLASSES)
def test_a_message_has_the_same_fields_for_both(name: str) -> None:
    ours = {field.number: described(field) for field in OUR_MESSAGES[name].fields}
    theirs = {field.number: described(field) for field in CLASSES[name].DESCRIPTOR.fields}
    told = {number: field for number, field in ours.items() if (name, field[0]) not in UNTOLD}
    assert theirs == told


@pytest.mark.parametrize("name", RPCS)
def test_a_call_has_the_same_shape_for_both(name: str) -> None:
    call, rpc = OUR_CALLS[name], RPCS[name]
    ours = (call.input_type.name, call.output_type.name, call.client_streaming, call.server_streaming)
    assert ours == (rpc.request, rpc.reply, False, rpc.streams)


def test_what_one_writes_the_other_reads() -> None:
    fields = {
        "Prompt": "Hello",
        "StopPrompts": ["</s>", "\n"],
        "EmbeddingTokens": [1, 2, 300],
        "Messages": [{"role": "user", "content": "Grüße"}],
        "Metadata": {"enable_thinking": "false"},
    }
    written = build("PredictOptions", **fields).SerializeToString()
    read = backend_pb2.PredictOptions.FromString(written)
    assert read.SerializeToString() == written
    assert (read.Messages[0].content, dict(read.Metadata)) == ("Grüße", fields["Metadata"])
