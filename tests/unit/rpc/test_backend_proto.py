"""The compiled service against tables of names, numbers and types that other programs rely on."""

import csv
from pathlib import Path
from typing import Final

import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from remuda.rpc import backend_pb2, backend_pb2_grpc

HERE: Final = Path(__file__).parent
MESSAGES: Final[dict[str, Descriptor]] = dict(backend_pb2.DESCRIPTOR.message_types_by_name)
SERVICE: Final = backend_pb2.DESCRIPTOR.services_by_name["Backend"]
EMPTY: Final = (HERE / "empty_messages.txt").read_text().split()
KINDS: Final = {(False, False): "unary", (False, True): "server stream", (True, True): "bidi stream"}


def _rows(name: str) -> list[tuple[str, ...]]:
    with (HERE / name).open(newline="") as table:
        return [tuple(row.values()) for row in csv.DictReader(table, delimiter="\t")]


def _scalar(field: FieldDescriptor) -> str:
    if field.message_type is not None:
        return str(field.message_type.name)
    if field.enum_type is not None:
        return str(field.enum_type.name)
    names = {getattr(field, name): name[5:].lower() for name in dir(field) if name.startswith("TYPE_")}
    return names[field.type]


def _type(field: FieldDescriptor) -> str:
    """The field's type as a .proto file spells it."""
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        key, value = (_scalar(message.fields_by_name[part]) for part in ("key", "value"))
        return f"map<{key}, {value}>"
    if field.is_repeated:
        return f"repeated {_scalar(field)}"
    declared_optional = field.containing_oneof is not None  # Such a field sits in a one-of of its own.
    return f"optional {_scalar(field)}" if declared_optional else _scalar(field)


def test_fields_are_those_of_the_table() -> None:
    compiled = {
        (message.name, str(field.number), field.name, _type(field))
        for message in MESSAGES.values()
        for field in message.fields
    }

    assert compiled == set(_rows("fields.tsv"))


def test_methods_are_those_of_the_table() -> None:
    compiled = [
        (
            method.name,
            method.input_type.name,
            method.output_type.name,
            KINDS[method.client_streaming, method.server_streaming],
        )
        for method in SERVICE.methods
    ]

    assert sorted(compiled) == sorted(_rows("methods.tsv"))


@pytest.mark.parametrize("name", EMPTY)
def test_message_is_declared_and_empty(name: str) -> None:
    assert list(MESSAGES[name].fields) == []


def test_there_are_no_messages_beside_the_tables() -> None:
    assert set(MESSAGES) == {row[0] for row in _rows("fields.tsv")} | set(EMPTY)


@pytest.mark.parametrize(
    ("message", "numbers"),
    [
        ("ModelOptions", {16, 22, 23, 24, 25}),
        ("PredictOptions", {24}),
        ("TranscriptRequest", {1}),
        ("GenerateImageRequest", {3}),
    ],
)
def test_gaps_are_reserved(message: str, numbers: set[int]) -> None:
    declared = descriptor_pb2.DescriptorProto()
    MESSAGES[message].CopyToProto(declared)
    reserved = declared.reserved_range

    assert {number for span in reserved for number in range(span.start, span.end)} == numbers


def test_enums_have_the_numbers_of_the_table() -> None:
    state = MESSAGES["StatusResponse"].enum_types_by_name["State"]
    layout = backend_pb2.DESCRIPTOR.enum_types_by_name["EmbeddingLayout"]

    assert {value.name: value.number for value in state.values} == {
        "UNINITIALIZED": 0,
        "BUSY": 1,
        "READY": 2,
        "ERROR": -1,
    }
    assert [value.number for value in layout.values] == [0, 1, 2]


def test_methods_are_called_by_the_path_peers_serve() -> None:
    assert SERVICE.full_name == "backend.Backend"
    assert {name for name, _, _, _ in _rows("methods.tsv")} <= set(dir(backend_pb2_grpc.BackendServicer))


def test_message_bytes_are_those_of_the_field_number() -> None:
    assert backend_pb2.Result(success=True).SerializeToString() == b"\x10\x01"
    assert backend_pb2.PredictOptions(ModelIdentity="m").SerializeToString() == b"\xb2\x03\x01m"
