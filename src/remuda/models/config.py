"""A model's configuration: the YAML of the contract (its keys are the attributes here), as values with
every text as it was written, and checked. Pure.

`reading` makes it of a file. Keys that have no effect here are kept in `unknown`, so that they can be
named.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Final, Literal, Self

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    model_validator,
)
from yaml.nodes import ScalarNode

from remuda.core import yaml_tree
from remuda.core.yaml_tree import Located, YamlLimits, YamlText
from remuda.models.files import FilePath
from remuda.models.keep_alive import KeepAlive

# Parts are read in 50 ms, on the event loop.
LIMITS: Final = YamlLimits(bytes=1 << 20, parts=5000, depth=32)
NAME_CHARS_MAX: Final = 256
NUMBER_CHARS_MAX: Final = 64  # Reading a number takes time by the square of its length.

_NUMBERS: Final = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("int", "float", "bool"))
_SHA256: Final = re.compile(r"[0-9a-fA-F]{64}")
_URI: Final = re.compile(r"[!-~]{1,2048}")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_UPSTREAM: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}(/[!-~]{1,300})?")
_RESOLVER: Final = yaml.resolver.Resolver()
_CONSTRUCTOR: Final = yaml.constructor.SafeConstructor()


class Plain(str):
    """A text without quotes, which stands for a number or a truth value where no text is asked for."""

    __slots__ = ("meant",)

    meant: int | float | bool


def parse_document(text: str) -> Located:
    """What the document says, and where. Invalid, naming the line where there is one, for what cannot be
    read."""
    return yaml_tree.located_values(text, LIMITS, _scalar)


def _scalar(text: YamlText) -> str | None:
    if text.null:
        return None
    if not text.plain or len(text.value) > NUMBER_CHARS_MAX:
        return text.value
    tag = _RESOLVER.resolve(ScalarNode, text.value, (True, False))  # type: ignore[no-untyped-call]
    if tag not in _NUMBERS:
        return text.value
    meant = _CONSTRUCTOR.construct_object(ScalarNode(tag, text.value))
    if not math.isfinite(meant):
        return text.value
    plain = Plain(text.value)
    plain.meant = meant
    return plain


REPLICAS_MAX: Final = 10_000  # Of one model.
SCHEDULING_KEYS: Final = frozenset(
    {
        "keep_alive",
        "selector",
        "pinned",
        "min_replicas",
        "max_replicas",
        "replicas",
        "concurrency_groups",
        "route_policy",
        "balance_abs_threshold",
        "balance_rel_threshold",
        "min_prefix_match",
    }
)
"""They say where and how often a model is loaded, not what its replicas are."""

PREFIX_CACHE: Final = "prefix_cache"  # Requests go where the beginning of their prompt was read before.
SESSION: Final = "session"  # Those of one session go to one replica.

GGUF_BACKEND: Final = "llama-cpp"  # Builds of it have names such as cuda12-llama-cpp.
GPU_LAYERS_ALL: Final = 99_999_999
CONTEXT_FALLBACK: Final = 4096
CONTEXT_DEFAULT_MAX: Final = 8192  # A trained window is used up to here unless more is asked for.


def is_gguf_backend(backend: str) -> bool:
    """Whether it is a build of llama.cpp."""
    return backend == GGUF_BACKEND or backend.endswith(f"-{GGUF_BACKEND}")


def _meant(value: object) -> object:
    """In a map of the backend's own keys nothing says what is asked for: there 1 is a number."""
    match value:
        case Plain():
            return value.meant
        case list():
            return [_meant(item) for item in value]
        case dict():
            return {key: _meant(item) for key, item in value.items()}
    return value


Int = Annotated[int, Field(ge=-(1 << 31), lt=1 << 31)]  # As wide as in the messages to backends.
Free = Annotated[dict[str, JsonValue], BeforeValidator(_meant)]


class Section(BaseModel):
    """A part of a model file."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class Parameters(Section):
    """`parameters`: the model's file or repository, and how it samples unless a request says otherwise."""

    model: str = ""
    temperature: float | None = None
    top_p: float | None = None
    top_k: Int | None = None
    min_p: float | None = None
    max_tokens: Int | None = None
    seed: Int | None = None
    repeat_penalty: float | None = None
    repeat_last_n: Int | None = None
    n_keep: Int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    tfz: float | None = None
    typical_p: float | None = None
    ignore_eos: bool = False
    batch: Int | None = None
    rope_freq_base: float | None = None
    rope_freq_scale: float | None = None
    negative_prompt: str = ""
    negative_prompt_scale: float | None = None
    tokenizer: str = ""


class Template(Section):
    """`template`: Go templates that the frontend renders, or the word that the backend has its own."""

    chat: str = ""
    chat_message: str = ""
    completion: str = ""
    function: str = ""
    reply_prefix: str = ""
    join_chat_messages_by_character: str | None = None
    use_tokenizer_template: bool = False

    @property
    def written(self) -> bool:
        """The configuration has templates; they are used, unless the backend's own are asked for."""
        return bool(self.chat or self.chat_message)


class Grammar(Section):
    disable: bool = False
    parallel_calls: bool = False


class Function(Section):
    """`function`: how tools reach the model."""

    grammar: Grammar = Grammar()
    disable_no_action: bool = False
    no_action_function_name: str = "answer"


class MultimodalLimits(Section):
    image: Int = 0
    video: Int = 0
    audio: Int = 0


class Reasoning(Section):
    disable: bool | None = None


def _valid_uri(uri: str) -> str:
    """Of whatever scheme: peers may know more of them."""
    if not _URI.fullmatch(uri):
        raise ValueError("must be an address without spaces")
    return uri


def _valid_variable(name: str) -> str:
    if name and not _VARIABLE.fullmatch(name):
        raise ValueError(f"{name[:40]!r} is not the name of an environment variable")
    return name


def _valid_hash(value: str) -> str:
    if value and not _SHA256.fullmatch(value):
        raise ValueError("must be 64 hexadecimal digits")
    return value.lower()


def _valid_place(path: str) -> str:
    """Peers name such folders more freely than files: what matters is that they stay where they belong."""
    if path.startswith(("/", "~")) or ".." in path.replace("\\", "/").split("/") or not path.isprintable():
        raise ValueError(f"{path[:40]!r} leads out of the models folder")
    return path


def _valid_pattern(pattern: str) -> str:
    if not pattern or pattern.startswith("/") or ".." in pattern.split("/") or "\\" in pattern:
        raise ValueError(f"{pattern[:40]!r} leads out of the repository")
    return pattern


Hash = Annotated[str, AfterValidator(_valid_hash)]
Pattern = Annotated[str, AfterValidator(_valid_pattern)]


def _valid_upstream(name: str) -> str:
    if not _UPSTREAM.fullmatch(name):
        raise ValueError(f"{name[:60]!r} is not SERVER or SERVER/MODEL")
    return name


ServerModelName = Annotated[str, AfterValidator(_valid_upstream)]


class DownloadFile(Section):
    """One of `download_files`: fetched before the model is loaded."""

    filename: FilePath  # Below the folder of models.
    uri: Annotated[str, AfterValidator(_valid_uri)]
    sha256: Hash = ""


class ArtifactSource(Section):
    type: str = ""
    repo: str = ""
    revision: str = ""
    token_env: Annotated[str, AfterValidator(_valid_variable)] = ""
    allow_patterns: tuple[Pattern, ...] = ()
    ignore_patterns: tuple[Pattern, ...] = ()


class Artifact(Section):
    """One of `artifacts`: a snapshot of a repository that belongs to the model."""

    name: Annotated[str, AfterValidator(_valid_place)] = ""
    target: Annotated[str, AfterValidator(_valid_place)] = ""
    source: ArtifactSource = ArtifactSource()
    resolved: Free = Field(default_factory=dict)


def replicas_problem(least: int, most: int, *, everywhere: bool) -> str:
    """Why these cannot be wanted together; empty: they can."""
    if everywhere and (least or most):
        return "one replica on every node excludes min_replicas and max_replicas"
    if most and least > most:
        return f"min_replicas ({least}) is more than max_replicas ({most})"
    return ""


class ModelConfig(Section):
    """One model. What stands below `Ours` LocalAI's frontends ignore."""

    name: str = ""
    backend: str = ""
    parameters: Parameters = Parameters()
    context_size: Int | None = None
    threads: Int | None = None
    f16: bool = False
    mmap: bool | None = None
    mmlock: bool = False
    low_vram: bool = False
    numa: bool = False
    embeddings: bool = False
    reranking: bool = False
    no_mulmatq: bool = False
    no_kv_offloading: bool = False
    gpu_layers: Int | None = None
    main_gpu: str = ""
    tensor_split: str = ""
    flash_attention: str = "auto"
    cache_type_k: str = ""
    cache_type_v: str = ""
    rope_scaling: str = ""
    yarn_ext_factor: float = 0.0
    yarn_attn_factor: float = 0.0
    yarn_beta_fast: float = 0.0
    yarn_beta_slow: float = 0.0
    rms_norm_eps: float = 0.0
    ngqa: Int = 0
    mirostat: Int | None = None
    mirostat_eta: float | None = None
    mirostat_tau: float | None = None
    prompt_cache_path: str = ""
    prompt_cache_all: bool = False
    prompt_cache_ro: bool = False
    mmproj: str = ""
    draft_model: str = ""
    n_draft: Int = 0
    lora_adapter: str = ""
    lora_base: str = ""
    lora_adapters: tuple[str, ...] = ()
    lora_scale: float = 0.0
    lora_scales: tuple[float, ...] = ()
    options: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    engine_args: Free = Field(default_factory=dict)
    type: str = ""
    quantization: str = ""
    load_format: str = ""
    gpu_memory_utilization: float = 0.0
    trust_remote_code: bool = False
    enforce_eager: bool = False
    swap_space: Int = 0
    max_model_len: Int = 0
    tensor_parallel_size: Int = 0
    disable_log_stats: bool = False
    dtype: str = ""
    limit_mm_per_prompt: MultimodalLimits = MultimodalLimits()
    stopwords: tuple[str, ...] = ()
    grammar: str = ""
    template: Template = Template()
    function: Function = Function()
    reasoning: Reasoning = Reasoning()
    reasoning_effort: str = ""
    chat_template_kwargs: Free = Field(default_factory=dict)
    known_usecases: tuple[str, ...] = ()
    system_prompt: str = ""
    roles: dict[str, str] = Field(default_factory=dict)  # What stands before a message of each role.
    download_files: Annotated[tuple[DownloadFile, ...], Field(max_length=1000)] = ()
    artifacts: Annotated[tuple[Artifact, ...], Field(max_length=100)] = ()
    disabled: bool = False
    pinned: bool = False  # Never unloaded to make room, nor when idle.
    alias: str = ""
    description: str = ""
    # Ours.
    keep_alive: KeepAlive | None = None  # So long without a request unloads it. None: as the frontend is set.
    selector: dict[str, str] = Field(default_factory=dict)  # Labels its nodes must have.
    parallel: Annotated[int, Field(ge=1, le=1024)] | None = None  # Requests a replica takes at once.
    min_replicas: Annotated[int, Field(ge=0, le=REPLICAS_MAX)] = 0  # So many are always loaded.
    max_replicas: Annotated[int, Field(ge=0, le=REPLICAS_MAX)] = 0  # 0: no limit but what nodes take.
    replicas: Literal["", "all"] = ""  # `all`: one on each node that matches.
    concurrency_groups: Annotated[tuple[str, ...], Field(max_length=32)] = ()  # Models that share no node.
    # Which replica answers next; empty and `round_robin`: the least loaded one.
    route_policy: Literal["", "round_robin", "least_loaded", "prefix_cache", "session"] = ""
    balance_abs_threshold: Annotated[int, Field(ge=0, le=1024)] = 0  # Of `router.affinity`; 0: as usual.
    balance_rel_threshold: Annotated[float, Field(ge=0, le=1024)] = 0.0
    min_prefix_match: Annotated[float, Field(ge=0, le=1)] = 0.0
    # Servers that answer when no node can, in this order: SERVER/MODEL, or SERVER for a model of this name.
    upstreams: Annotated[
        tuple[Annotated[str, AfterValidator(_valid_upstream)], ...], Field(max_length=20)
    ] = ()
    unknown: tuple[str, ...] = Field(default=(), exclude=True)

    @model_validator(mode="after")
    def _consistent_replicas(self) -> Self:
        if problem := replicas_problem(self.min_replicas, self.max_replicas, everywhere=bool(self.replicas)):
            raise ValueError(problem)
        return self

    @property
    def everywhere(self) -> bool:
        """One replica on each node that matches."""
        return self.replicas == "all"

    @property
    def scaled(self) -> bool:
        """How many replicas it has is declared; else it has one while it is used."""
        return self.everywhere or bool(self.min_replicas or self.max_replicas)

    @property
    def on_llama(self) -> bool:
        """Served by llama.cpp or one of its kin, which is also what serves a model that names no backend."""
        return not self.backend or "llama" in self.backend

    @property
    def id(self) -> str:
        """What requests call it."""
        return self.name or self.parameters.model

    @property
    def file(self) -> str:
        """Its file or folder below the models folder, or a repository's name."""
        return self.parameters.model

    @cached_property  # Every look at the fleet compares it with that of each replica.
    def revision(self) -> str:
        """Of what replicas are made from: another one must not be served by replicas of this. What was not
        written does not count, so that frontends of two versions agree, though one knows more keys."""
        elsewhere = {"description", "disabled", "upstreams", *SCHEDULING_KEYS}
        # Where files come from; and earlier releases, which do not know these, would take every replica of
        # such a model for an outdated one.
        elsewhere |= {"download_files", "artifacts"}
        kept = self.model_dump(mode="json", exclude=elsewhere, exclude_defaults=True)
        return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Of another configuration another revision."""
        copied = super().model_copy(update=update, deep=deep)
        copied.__dict__.pop("revision", None)
        return copied
