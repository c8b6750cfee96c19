"""Blocks of headers, as another implementation writes and reads them."""

import pytest
from hpack import Decoder, Encoder, HPACKError
from hypothesis import given
from hypothesis import strategies as st

from remuda.upstreams.http2 import limits
from remuda.upstreams.http2.frames import HeaderReader, Violation, request_block

_PAIRS = st.lists(
    st.tuples(
        st.sampled_from(["grpc-status", "content-type", "x"]), st.sampled_from(["0", "application/grpc"])
    ),
    max_size=3,
)
_TABLES = st.sampled_from([None, 0, 100, 4096])  # None: as it was.


@pytest.mark.parametrize("table_bytes", [0, 4096])
def test_request_says_what_grpc_wants_whatever_table_the_server_has(table_bytes: int) -> None:
    decoder = Decoder()
    decoder.max_allowed_table_size = table_bytes

    read = decoder.decode(request_block("/backend.Backend/Predict", "host:1", "t" * 300))

    assert {str(name): str(value) for name, value in read} == {
        ":method": "POST",
        ":scheme": "http",
        ":path": "/backend.Backend/Predict",
        ":authority": "host:1",
        "te": "trailers",
        "content-type": "application/grpc",
        "user-agent": "remuda",
        "grpc-accept-encoding": "identity",
        "authorization": "Bearer " + "t" * 300,
    }


def test_without_a_token_there_is_no_authorization() -> None:
    read = Decoder().decode(request_block("/a/B", "host:1"), raw=True)

    assert b"authorization" not in dict(read)


@given(st.lists(st.tuples(_PAIRS, _TABLES, st.booleans()), max_size=30))
def test_blocks_known_by_sight_mean_what_they_mean(
    blocks: list[tuple[list[tuple[str, str]], int | None, bool]],
) -> None:
    encoder, reader = Encoder(), HeaderReader()

    for pairs, table_bytes, huffman in blocks:
        if table_bytes is not None:
            encoder.header_table_size = table_bytes
        headers = reader.read(encoder.encode(pairs, huffman=huffman))
        assert headers == {name.encode(): value.encode() for name, value in pairs}


@given(st.lists(st.binary(min_size=1, max_size=20).map(bytes), max_size=10))
def test_any_bytes_are_read_as_without_a_memory_or_refused(blocks: list[bytes]) -> None:
    reader, plain = HeaderReader(), Decoder()

    for block in [one for one in blocks for _ in range(3)]:
        try:
            expected = dict(plain.decode(block, raw=True))
        except HPACKError:
            with pytest.raises(Violation):
                reader.read(block)
            return
        assert reader.read(block) == expected


def test_a_server_with_something_new_in_each_block_does_not_fill_the_memory() -> None:
    encoder, reader = Encoder(), HeaderReader()
    encoder.header_table_size = 0

    for index in range(10 * limits.BLOCKS_KNOWN_MAX):
        reader.read(encoder.encode([("grpc-message", str(index))]))

    assert len(reader._known) <= limits.BLOCKS_KNOWN_MAX


def test_headers_that_unpack_to_too_much_are_refused() -> None:
    encoder, reader = Encoder(), HeaderReader()
    bomb = encoder.encode([("x", "y" * 4000)]) + b"\xbe" * 1000

    with pytest.raises(Violation):
        reader.read(bomb)
