"""Which files of a repository make up a model, and which of its variants is taken, with the reason. Pure.

The machines that will serve the model decide what fits, never the one that fetches it.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from remuda.core.errors import Invalid, NotFound
from remuda.core.hints import did_you_mean
from remuda.models.config import ModelConfig
from remuda.models.gguf import parts_of
from remuda.models.memory import memory_need
from remuda.wire.sizes import install_size

USUAL: Final = "Q4_K_M"
# About as large and as good as the usual one, the nearest first: for repositories that lack it.
_LIKE_USUAL: Final = (
    USUAL,
    "UD-Q4_K_XL",
    "Q4_K_L",
    "Q4_K_S",
    "IQ4_NL",
    "Q4_0",
    "Q4_K",
    "IQ4_XS",
    "Q4_1",
    "MXFP4_MOE",
    "MXFP4",
)
_PROJECTORS: Final = ("F16", "BF16", "Q8_0", "F32")
_PRECISION: Final = re.compile(
    r"(?:^|[-._/])((?:UD[-_])?(?:I?Q\d(?:_[A-Z0-9]+)*|TQ\d_\d|MXFP4(?:_MOE)?|NVFP4|(?:BF|FP?)(?:8|16|32)))"
    r"(?=$|[-._/])",
    re.IGNORECASE,
)
_PART: Final = re.compile(r"-\d{5}-of-\d{5}$")
_NO_MODELS: Final = re.compile(r"mmproj|imatrix|(^|[-_.])(lora|adapter|vocab)([-_.]|$)", re.IGNORECASE)
_BESIDE_WEIGHTS: Final = (".json", ".txt", ".model", ".jinja", ".tiktoken")
_OTHER_FORMS: Final = frozenset({"original", "onnx", "openvino", "coreml", "flax", "gguf", "metal"})
_LISTED_MAX: Final = 12
_NO_NODE: Final = "the usual choice: no node is registered that could serve it"


@dataclass(frozen=True, slots=True)
class RepoFile:
    """A file in a repository. An empty `sha256`: the hub does not say it."""

    path: str
    size: int
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """How much memory a node could give to one model if nothing else were loaded."""

    node: str
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Variant:
    """One GGUF model of a repository, with all its parts and its projector."""

    name: str
    files: tuple[RepoFile, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def need_bytes(self) -> int:
        """Memory, as far as the size alone shows it."""
        return memory_need(None, self.size, ModelConfig(), 0, 1).total_bytes

    def __str__(self) -> str:
        return f"{self.name} ({install_size(self.size)})"


@dataclass(frozen=True, slots=True)
class ChosenFiles:
    """`reason` is for people; empty where there was nothing to choose."""

    files: tuple[RepoFile, ...]
    reason: str = ""


def choose_files(name: str, files: Sequence[RepoFile], wanted: str, nodes: Sequence[NodeRoom]) -> ChosenFiles:
    """The files of the model in a repository. `wanted` is a quantisation; empty: one that fits a node.

    NotFound, with what there is, when nothing fits the description; Invalid, with the numbers, when no node
    can hold any variant.
    """
    variants = _variants(name, files)
    if variants:
        chosen, reason = _chosen(name, variants, wanted, nodes)
        return ChosenFiles(chosen.files, reason)
    if wanted:
        raise NotFound(f"{name} has no GGUF files, and so no quantisation {wanted}", hint=_kinds(files))
    return ChosenFiles(_whole_folder(name, files))


def choose_entry(
    name: str, sizes: Mapping[str, int], wanted: str, nodes: Sequence[NodeRoom]
) -> tuple[str, str]:
    """Which of a gallery's entries for one model is installed, and the reason, as with quantisations. `sizes`
    are in bytes, 0 where the gallery does not tell; its first entry is the usual choice, and `wanted` one
    that was asked for.

    NotFound, with what there is, for an entry that is not among them; Invalid when no node can hold any.
    """
    if wanted:
        found = next((one for one in sizes if folded_name(one) == folded_name(wanted)), "")
        if not found:
            raise NotFound(f"{name} has no variant {wanted!r}", hint=f"it has {', '.join(sizes)}")
        return found, f"{found}, as asked for"
    first = next(iter(sizes))
    if len(sizes) == 1:
        return first, ""
    known = sorted((Variant(one, (RepoFile(one, size),)) for one, size in sizes.items() if size), key=_size)
    usual = next((one for one in known if one.name == first), None)
    if usual is None:
        return first, f"{first}, the usual choice: its gallery does not say how large it is"
    if not nodes:
        return first, f"{usual}, {_NO_NODE}"
    choice = _Fitting(name, known, usual, roomiest_of(nodes), "name one with --variant, such as {}")
    chosen, reason = choice.made()
    return chosen.name, reason


def folded_name(name: str) -> str:
    return name.strip().lower()


def _size(variant: Variant) -> tuple[int, str]:
    return variant.size, variant.name


def roomiest_of(nodes: Sequence[NodeRoom]) -> NodeRoom:
    return max(nodes, key=lambda node: (node.memory_bytes, node.node))


def needs_room(files: Sequence[RepoFile], wanted: str) -> bool:
    """Whether the nodes' memory decides."""
    return not wanted and len({precision(file.path) for file in files if _is_model(file.path)}) > 1


def precision(path: str) -> str:
    """`sub/Qwen3-8B-Q4_K_M-00001-of-00002.gguf` is Q4_K_M; empty where the name does not tell."""
    found = _PRECISION.findall(_PART.sub("", path.removesuffix(".gguf")))
    return found[-1].upper().replace("UD_", "UD-") if found else ""


def is_projector(path: str) -> bool:
    """The eyes or ears of a model."""
    return path.endswith(".gguf") and "mmproj" in path.rpartition("/")[2].lower()


def _is_model(path: str) -> bool:
    return path.endswith(".gguf") and not _NO_MODELS.search(path.rpartition("/")[2])


def _variants(name: str, files: Sequence[RepoFile]) -> list[Variant]:
    """Smallest first. Invalid when a part of one is missing."""
    known = {file.path: file for file in files}
    projector = _projector(files)
    models: dict[str, tuple[RepoFile, ...]] = {}
    for file in files:
        if _is_model(file.path):
            parts = parts_of(file.path)
            missing = [part for part in parts if part not in known]
            if missing:
                raise Invalid(
                    f"{name} lacks {missing[0]}, one of {len(parts)} parts of a model",
                    hint="its owner has not uploaded all of it: choose another repository or revision",
                )
            models[parts[0]] = tuple(known[part] for part in parts)
    beside = (projector,) if projector is not None else ()
    found = [Variant(precision(path) or path, (*parts, *beside)) for path, parts in models.items()]
    return sorted(found, key=lambda variant: (variant.size, variant.files[0].path))


def _projector(files: Iterable[RepoFile]) -> RepoFile | None:
    found = [file for file in files if is_projector(file.path)]

    def rank(file: RepoFile) -> tuple[int, int, str]:
        kind = precision(file.path).replace("FP", "F")
        return (_PROJECTORS.index(kind) if kind in _PROJECTORS else len(_PROJECTORS), file.size, file.path)

    return min(found, key=rank, default=None)


def _chosen(
    name: str, variants: list[Variant], wanted: str, nodes: Sequence[NodeRoom]
) -> tuple[Variant, str]:
    if wanted:
        fitting = [one for one in variants if one.name.upper() == wanted.upper()]
        if not fitting:
            raise NotFound(f"{name} has no quantisation {wanted}", hint=f"it has {_listed(variants)}")
        return _only(name, fitting), f"{fitting[0]}, as asked for"
    if len(variants) == 1:
        return variants[0], ""
    usual = _usual(variants)
    if not nodes:
        chosen = usual or variants[len(variants) // 2]
        return _only(name, [one for one in variants if one.name == chosen.name]), f"{chosen}, {_NO_NODE}"
    nearest = f", the nearest to {USUAL} here" if usual is not None and usual.name != USUAL else ""
    hint = "write :{} to install it all the same"
    chosen, reason = _Fitting(name, variants, usual, roomiest_of(nodes), hint, nearest).made()
    return _only(name, [one for one in variants if one.name == chosen.name]), reason


@dataclass(frozen=True, slots=True)
class _Fitting:
    """A choice by what the roomiest node can hold. Variants are sorted by size; `hint` says how to have one
    that fits nowhere."""

    name: str
    variants: Sequence[Variant]
    usual: Variant | None
    roomiest: NodeRoom
    hint: str
    nearest: str = ""

    def made(self) -> tuple[Variant, str]:
        usual, room = self.usual, self.roomiest.memory_bytes
        memory = install_size(room)
        has = f"the roomiest node, {self.roomiest.node}, has {memory}"
        if usual is not None and usual.need_bytes <= room:
            return usual, f"{usual}{self.nearest}, which fits {self.roomiest.node} ({memory})"
        fitting = [one for one in self.variants if one.need_bytes <= room]
        if not fitting:
            least = self.variants[0]
            raise Invalid(
                f"no node can hold {self.name}: the smallest variant, {least}, takes about "
                f"{install_size(least.need_bytes)} of memory, and {has}",
                hint=f"add a larger node, or {self.hint.format(least.name)}",
            )
        why = (
            f"{usual.name} takes about {install_size(usual.need_bytes)} of memory, and {has}"
            if usual is not None
            else has
        )
        return fitting[-1], f"{fitting[-1]}, the largest that fits a node: {why}"


def _usual(variants: list[Variant]) -> Variant | None:
    by_name = {one.name: one for one in variants}
    return next((by_name[name] for name in _LIKE_USUAL if name in by_name), None)


def _only(name: str, fitting: list[Variant]) -> Variant:
    """Two models of one quantisation are different models, and nothing tells which is meant."""
    if len(fitting) > 1:
        paths = ", ".join(one.files[0].path for one in fitting[:_LISTED_MAX])
        raise Invalid(
            f"{name} holds several models: {paths}", hint="name the file: hf://OWNER/REPOSITORY/FILE"
        )
    return fitting[0]


def _listed(variants: list[Variant]) -> str:
    return _some([str(one) for one in variants])


def _whole_folder(name: str, files: Sequence[RepoFile]) -> tuple[RepoFile, ...]:
    """A model as safetensors: its weights, and what describes them."""
    several_folders = any(file.path == "model_index.json" for file in files)
    kept = [file for file in files if _belongs(file.path, several_folders)]
    weights = {file.path for file in kept if file.path.endswith(".safetensors")}
    if not weights:
        raise NotFound(f"{name} has neither GGUF nor safetensors files", hint=_kinds(files))
    if any(not path.rpartition("/")[2].startswith("consolidated") for path in weights):
        kept = [file for file in kept if not file.path.rpartition("/")[2].startswith("consolidated")]
    kept = [file for file in kept if file.path.replace(".fp16.", ".") == file.path or not several_folders]
    _check_parts(name, {file.path for file in kept})
    return tuple(kept)


def _belongs(path: str, several_folders: bool) -> bool:
    folder, _, file = path.rpartition("/")
    if file.startswith(".") or set(folder.split("/")) & _OTHER_FORMS or folder.startswith("."):
        return False
    if file.endswith(".safetensors"):
        return several_folders or not folder
    return file.endswith(_BESIDE_WEIGHTS)


def _check_parts(name: str, paths: set[str]) -> None:
    groups = defaultdict[tuple[str, str], set[int]](set)
    for path in paths:
        if part := re.fullmatch(r"(.*)-(\d{5})-of-(\d{5})\.safetensors", path):
            groups[part[1], part[3]].add(int(part[2]))
    for (stem, count), numbers in groups.items():
        missing = sorted(set(range(1, int(count) + 1)) - numbers)
        if missing:
            raise Invalid(
                f"{name} lacks {stem}-{missing[0]:05}-of-{count}.safetensors, a part of its weights",
                hint="its owner has not uploaded all of it: choose another repository or revision",
            )


def missing_file_hint(wanted: str, files: Sequence[RepoFile]) -> str:
    """For a file that a repository does not have: those that are called alike, or else all, and its
    quantisations."""
    near = did_you_mean(wanted, (file.path for file in files), _kinds(files))
    names = list(
        dict.fromkeys(found for file in files if _is_model(file.path) and (found := precision(file.path)))
    )
    return f"{near}; its quantisations: {_some(sorted(names))}" if names else near


def _kinds(files: Sequence[RepoFile]) -> str:
    """Models first: they are what is looked for."""
    weights = (".gguf", ".safetensors")
    names = sorted(
        {file.path for file in files if not file.path.startswith(".")},
        key=lambda path: (not path.endswith(weights), path),
    )
    return f"it has {_some(names)}" if names else "it is empty"


def _some(names: Sequence[str]) -> str:
    more = len(names) - _LISTED_MAX
    return ", ".join(names[:_LISTED_MAX]) + (f" and {more} more" if more > 0 else "")
