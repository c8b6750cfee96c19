"""Both readers of gzip data, the fast one and the one that is always there, say the same."""

import gzip
import io
import zlib
from functools import partial

import pytest

from remuda.oci import layer_stream
from remuda.oci.layer_stream import CHUNK_BYTES, PackedBytes, unpacked_chunks
from remuda.oci.unpack_rules import Refusal, UnpackLimits
from tests.support.images import noise

CONTENT = noise(700_000, 1) + b"text " * 300_000
PACKED = gzip.compress(CONTENT)


@pytest.fixture(params=["isal", "zlib"])
def _reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "isal":
        pytest.importorskip("isal")
        assert layer_stream.Damaged is not zlib.error
    else:
        monkeypatch.setattr(layer_stream, "new_member", partial(zlib.decompressobj, wbits=31))
        monkeypatch.setattr(layer_stream, "Damaged", zlib.error)


def chunks(packed: bytes) -> list[bytes]:
    return list(unpacked_chunks(PackedBytes(io.BytesIO(packed)), UnpackLimits()))


@pytest.mark.usefixtures("_reader")
@pytest.mark.parametrize(
    "packed",
    [PACKED, PACKED + PACKED, PACKED + bytes(512), gzip.compress(b"")],
    ids=["one", "two", "padded", "empty"],
)
def test_members_and_padding_are_read_in_bounded_chunks(packed: bytes) -> None:
    read = chunks(packed)

    assert b"".join(read) == gzip.decompress(packed)
    assert max(map(len, read), default=0) <= CHUNK_BYTES


@pytest.mark.usefixtures("_reader")
@pytest.mark.parametrize(
    ("packed", "reason"),
    [
        (PACKED[:-1], "breaks off"),
        (PACKED[:100_000], "breaks off"),
        (PACKED[:-8] + bytes(8), "damaged"),
        (PACKED[:5000] + bytes(50) + PACKED[5050:], "damaged"),
        (PACKED + b"trash", "damaged"),
        (PACKED + b"\x1f\x8b\x01" + bytes(30), "damaged"),
    ],
)
def test_damage_is_refused(packed: bytes, reason: str) -> None:
    with pytest.raises(Refusal, match=reason):
        chunks(packed)
