"""What a GGUF file says of itself at its beginning. Reads from an open file, within bounds. The header needs
no more than the metadata: a file cut off behind them will do. `bytes_needed` tells how long it has to be."""

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO, Final

from remuda.core.errors import Invalid

HEADER_BYTES_MAX: Final = 64 << 20  # Vocabularies of a quarter million tokens take about 15 MiB.
KEYS_MAX: Final = 10_000
KEY_BYTES_MAX: Final = 1 << 16
TEXT_BYTES_MAX: Final = 4 << 20
LIST_MAX: Final = 2_000_000  # Tokens and merges; each takes a step of its own.
KEPT_ITEMS_MAX: Final = 4096  # Of a list of numbers: one for each layer.
PARTS_MAX: Final = 1000
_NUMBER_MAX: Final = 1 << 40
_PIECE_BYTES: Final = 1 << 16

_MAGIC: Final = b"GGUF"
_TEXT: Final = 8
_LIST: Final = 9
_NUMBERS: Final = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_U32: Final = _NUMBERS[4]
_U64: Final = _NUMBERS[10]
_PART: Final = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)

# Numbers in one block of each tensor type, and the bytes it takes. Types not listed here count as nothing.
_TENSOR_TYPES: Final = {
    0: (1, 4),
    1: (1, 2),
    2: (32, 18),
    3: (32, 20),
    6: (32, 22),
    7: (32, 24),
    8: (32, 34),
    10: (256, 84),
    11: (256, 110),
    12: (256, 144),
    13: (256, 176),
    14: (256, 210),
    15: (256, 292),
    16: (256, 66),
    17: (256, 74),
    18: (256, 98),
    19: (256, 50),
    20: (32, 18),
    21: (256, 110),
    22: (256, 82),
    23: (256, 136),
    24: (1, 1),
    25: (1, 2),
    26: (1, 4),
    27: (1, 8),
    28: (1, 8),
    29: (256, 56),
    30: (1, 2),
    34: (256, 54),
    35: (256, 66),
    39: (32, 17),
}
_FILE_TYPES: Final = {  # `general.file_type`.
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    19: "IQ2_XXS",
    20: "IQ2_XS",
    21: "Q2_K_S",
    22: "IQ3_XS",
    23: "IQ3_XXS",
    24: "IQ1_S",
    25: "IQ4_NL",
    26: "IQ3_S",
    27: "IQ3_M",
    28: "IQ2_S",
    29: "IQ2_M",
    30: "IQ4_XS",
    31: "IQ1_M",
    32: "BF16",
    36: "TQ1_0",
    37: "TQ2_0",
    38: "MXFP4_MOE",
}
_PAGES: Final = (b"<!do", b"<htm")
_ALIGNMENT_DEFAULT: Final = 32
_DIMENSIONS_MAX: Final = 8

GgufNumber = int | float | bool


class CutOff(Invalid):
    """The file ends too early: it was not copied or downloaded to its end."""


@dataclass(frozen=True, slots=True)
class GgufList:
    """A list in the metadata: how long it is, and its numbers if they are few."""

    count: int
    numbers: tuple[GgufNumber, ...] = ()


GgufValue = GgufNumber | str | GgufList


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Numbers are 0 where the file says nothing."""

    architecture: str
    name: str = ""
    kind: str = ""  # `general.type`: model, adapter, mmproj...
    tensor_count: int = 0
    context_length: int = 0
    block_count: int = 0
    embedding_length: int = 0
    head_count: int = 0
    head_counts_kv: tuple[int, ...] = ()  # For each layer, or one for all.
    key_length: int = 0
    value_length: int = 0
    vocab_size: int = 0
    expert_count: int = 0
    file_type: int | None = None
    pooling_type: int | None = None
    label_count: int = 0  # Of a model that classifies or scores.
    has_chat_template: bool = False
    split_count: int = 0  # Files that the model was split into.
    # Of a projector, which turns images or sounds into what a model reads.
    projection_length: int = 0  # As wide as the model that it is for.
    sees: bool = False
    hears: bool = False

    @property
    def quantisation(self) -> str:
        """As its publishers call it; empty: it does not say, or it is a kind that is not known here."""
        return _FILE_TYPES.get(-1 if self.file_type is None else self.file_type, "")

    @property
    def is_projector(self) -> bool:
        return "mmproj" in (self.kind, self.architecture) or self.architecture == "clip"

    @property
    def kv_heads(self) -> int:
        """Heads with a cache, of all layers together."""
        if len(self.head_counts_kv) == 1:
            return self.head_counts_kv[0] * self.block_count
        return sum(self.head_counts_kv)


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a model's files say of themselves, whatever their format: for people, and for the memory it takes.
    Numbers are 0 and texts empty where the files say nothing."""

    format: str  # `gguf` or `safetensors`.
    layout: GgufHeader  # Architecture, context, layers and so on; of a folder in the same terms.
    size_bytes: int
    parameters: int
    precision: str  # The quantisation of a GGUF file, or the type of most numbers.
    files: tuple[str, ...]  # Names, all in one folder.
    projector: str = ""  # The name of one that lies beside it and fits it.

    @property
    def header(self) -> GgufHeader | None:
        """Of a GGUF file."""
        return self.layout if self.format == "gguf" else None


def read_header(file: BinaryIO) -> GgufHeader:
    """From the beginning of the file. Invalid, in words for its owner, for anything that is no sound GGUF."""
    return _header(*_metadata(_Source(file)))


@dataclass(frozen=True, slots=True)
class Tensors:
    """What a file's list of tensors amounts to."""

    bytes_needed: int  # How long the file has to be.
    parameters: int  # Numbers in all of them.


def bytes_needed(file: BinaryIO) -> int:
    """How long the file has to be to hold all tensors that it lists; raises as `read_tensors` does."""
    return read_tensors(file).bytes_needed


def read_tensors(file: BinaryIO) -> Tensors:
    """CutOff when the file ends before they are all listed, Invalid for what is no sound GGUF."""
    source = _Source(file)
    found, count = _metadata(source)
    end = parameters = 0
    for _ in range(count):
        tensor_end, numbers = source.tensor()
        end, parameters = max(end, tensor_end), parameters + numbers
    alignment = _number(found, "general.alignment") or _ALIGNMENT_DEFAULT
    needed = -(-source.taken // alignment) * alignment + end if end else source.taken
    return Tensors(needed, parameters)


def _metadata(source: "_Source") -> tuple[dict[str, GgufValue], int]:
    """All keys, and how many tensors there are."""
    magic = source.take(len(_MAGIC), "its header")
    if magic != _MAGIC:
        raise _wrong_header(magic)
    version = source.number(_U32, "its version")
    if version not in (2, 3):
        raise Invalid(_unread_version(int(version)))
    tensors = int(source.number(_U64, "the number of its tensors"))
    keys = int(source.number(_U64, "the number of its keys"))
    if keys > KEYS_MAX or tensors > _NUMBER_MAX:
        raise Invalid(f"it is damaged: it claims to have {keys} keys and {tensors} tensors")
    found: dict[str, GgufValue] = {}
    for _ in range(keys):
        key = source.text(KEY_BYTES_MAX, "the name of a key")
        found[key] = source.value(key)
    return found, tensors


def _wrong_header(begins: bytes) -> Invalid:
    if begins.lower().startswith(_PAGES):
        return Invalid(
            "it is a web page, not a GGUF file",
            hint="download it again by the address of the file itself, and not of the page that shows it",
        )
    return Invalid("not a GGUF file (wrong header)")


def parts_of(name: str) -> tuple[str, ...]:
    """The names of all files of a model, given any one: itself alone unless it is a part of several.

    A folder before the name stays. Invalid for a part that cannot be: number 4 of 3.
    """
    match = _PART.fullmatch(name)
    if match is None:
        return (name,)
    number, count = int(match["number"]), int(match["count"])
    if not 1 <= number <= count <= PARTS_MAX:
        raise Invalid(f"{name}: there cannot be a part {number} of {count}")
    stem, ending = match["stem"], name[match.end("count") :]
    return tuple(f"{stem}-{part:05}-of-{match['count']}{ending}" for part in range(1, count + 1))


def all_parts(name: str) -> tuple[str, ...]:
    """The same for what may be called anything: one named like a part that cannot be is a file of its own."""
    try:
        return parts_of(name)
    except Invalid:
        return (name,)


def _unread_version(version: int) -> str:
    if version in (2 << 24, 3 << 24):
        return "it is a GGUF file for big-endian machines, which is not read"
    return f"it is a GGUF file of version {version}; versions 2 and 3 are read"


class _Source:
    """Takes values off a file, and never more than the bounds allow, whatever the file claims."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._left = HEADER_BYTES_MAX

    def take(self, count: int, what: str) -> bytes:
        self._spend(count, what)
        data = self._file.read(count)
        if len(data) < count:
            if not _MAGIC.startswith(data[: len(_MAGIC)]) and self.taken == count:
                raise _wrong_header(data)
            if not data and self.taken == count:
                raise CutOff("the file is empty")
            raise CutOff(f"the file is cut off: it ends within {what}")
        return data

    @property
    def taken(self) -> int:
        """Bytes so far."""
        return HEADER_BYTES_MAX - self._left

    def tensor(self) -> tuple[int, int]:
        """Where the next tensor that is listed ends, behind the beginning of the data; and its numbers."""
        name = self.text(KEY_BYTES_MAX, "the name of a tensor")
        dimensions = int(self.number(_U32, name))
        if dimensions > _DIMENSIONS_MAX:
            raise Invalid(f"it is damaged: the tensor {name} claims to have {dimensions} dimensions")
        numbers = 1
        for _ in range(dimensions):
            numbers *= int(self.number(_U64, name))
        block, block_bytes = _TENSOR_TYPES.get(int(self.number(_U32, name)), (1, 0))
        return int(self.number(_U64, name)) + numbers // block * block_bytes, numbers

    def skip(self, count: int, what: str) -> None:
        self._spend(count, what)
        while count > 0:
            data = self._file.read(min(count, _PIECE_BYTES))
            if not data:
                raise CutOff(f"the file is cut off: it ends within {what}")
            count -= len(data)

    def _spend(self, count: int, what: str) -> None:
        self._left -= count
        if self._left < 0:
            raise Invalid(f"it is damaged, or too large: {HEADER_BYTES_MAX >> 20} MiB end within {what}")

    def number(self, form: struct.Struct, what: str) -> GgufNumber:
        (number,) = form.unpack(self.take(form.size, what))
        assert isinstance(number, int | float), "all forms are of numbers"
        return number

    def text(self, bytes_max: int, what: str) -> str:
        size = int(self.number(_U64, what))
        if size > bytes_max:
            raise Invalid(f"it is damaged: {what} claims to have {size} bytes")
        return self.take(size, what).decode(errors="replace")

    def value(self, key: str) -> GgufValue:
        kind = int(self.number(_U32, key))
        if kind == _TEXT:
            return self.text(TEXT_BYTES_MAX, key)
        if kind == _LIST:
            return self._list(key)
        if kind in _NUMBERS:
            return self.number(_NUMBERS[kind], key)
        raise Invalid(f"it is damaged: {key} is of a kind {kind} that there is not")

    def _list(self, key: str) -> GgufList:
        kind = int(self.number(_U32, key))
        count = int(self.number(_U64, key))
        if kind == _TEXT:
            if count > LIST_MAX:
                raise Invalid(f"it is damaged: {key} claims to have {count} texts")
            for _ in range(count):
                self.skip(int(self.number(_U64, key)), key)
            return GgufList(count)
        form = _NUMBERS.get(kind)
        if form is None:
            raise Invalid(f"it is damaged: {key} is a list of a kind {kind} that there is not")
        if count > KEPT_ITEMS_MAX:
            self.skip(count * form.size, key)
            return GgufList(count)
        return GgufList(count, tuple(self.number(form, key) for _ in range(count)))


def _header(found: Mapping[str, GgufValue], tensors: int) -> GgufHeader:
    architecture = _text(found, "general.architecture")
    if not architecture:
        raise Invalid("it does not say its architecture, so it is no model")
    own = {key.removeprefix(f"{architecture}."): value for key, value in found.items()}
    blocks, heads = _number(own, "block_count") or 0, _number(own, "attention.head_count") or 0
    width = _number(own, "embedding_length") or 0
    head_width = width // heads if heads else 0
    tokens, labels = found.get("tokenizer.ggml.tokens"), own.get("classifier.output_labels")
    return GgufHeader(
        architecture=architecture,
        name=_text(found, "general.name"),
        kind=_text(found, "general.type"),
        tensor_count=tensors,
        context_length=_number(own, "context_length") or 0,
        block_count=blocks,
        embedding_length=width,
        head_count=heads,
        head_counts_kv=_numbers(own, "attention.head_count_kv") or _numbers(own, "attention.head_count"),
        key_length=_number(own, "attention.key_length") or head_width,
        value_length=_number(own, "attention.value_length") or head_width,
        vocab_size=tokens.count if isinstance(tokens, GgufList) else _number(own, "vocab_size") or 0,
        expert_count=_number(own, "expert_count") or 0,
        file_type=_number(found, "general.file_type"),
        pooling_type=_number(own, "pooling_type"),
        label_count=labels.count if isinstance(labels, GgufList) else 0,
        has_chat_template=bool(found.get("tokenizer.chat_template")),
        split_count=_number(found, "split.count") or 0,
        projection_length=_projection_length(own),
        sees=bool(own.get("has_vision_encoder")),
        hears=bool(own.get("has_audio_encoder")),
    )


def _projection_length(own: Mapping[str, GgufValue]) -> int:
    """Projectors of the first LLaVA give the width within CLIP there, which says nothing of the model's."""
    if own.get("has_llava_projector"):
        return 0
    return _number(own, "vision.projection_dim") or _number(own, "audio.projection_dim") or 0


def _text(found: Mapping[str, GgufValue], key: str) -> str:
    value = found.get(key)
    return value if isinstance(value, str) else ""


def _numbers(found: Mapping[str, GgufValue], key: str) -> tuple[int, ...]:
    """Of a list, or of one number. What is no sound count is as good as not said."""
    value = found.get(key)
    several = value.numbers if isinstance(value, GgufList) else (value,)
    sound = [item for item in several if isinstance(item, int) and 0 <= item < _NUMBER_MAX]
    return tuple(sound) if len(sound) == len(several) else ()


def _number(found: Mapping[str, GgufValue], key: str) -> int | None:
    return max(_numbers(found, key), default=None)
