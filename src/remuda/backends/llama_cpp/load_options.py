"""From ModelOptions to the engine's settings. Pure but for looking which files exist."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remuda.backends.calls import OptionValue, parse_options
from remuda.backends.llama_cpp import limits
from remuda.rpc import backend_pb2 as pb

# Settings are named as in xllamacpp's CommonParams, with dots for what is nested there.
_OPTIONS = {
    "parallel": "n_parallel",
    "n_parallel": "n_parallel",
    "cache_reuse": "n_cache_reuse",
    "n_cache_reuse": "n_cache_reuse",
    "cache_ram": "cache_ram_mib",
    "context_shift": "ctx_shift",
    "kv_unified": "kv_unified",
    "unified_kv": "kv_unified",
    "ubatch": "n_ubatch",
    "n_ubatch": "n_ubatch",
    "cont_batching": "cont_batching",
    "warmup": "warmup",
    "swa_full": "swa_full",
    "check_tensors": "check_tensors",
    "fit_params": "fit_params",
    "use_jinja": "use_jinja",
    "jinja": "use_jinja",
    "reasoning_format": "reasoning_format",
    "pooling": "pooling_type",
    "split_mode": "split_mode",
    "slot_prompt_similarity": "slot_prompt_similarity",
    "sps": "slot_prompt_similarity",
    "draft_max": "speculative.draft.n_max",
    "draft_min": "speculative.draft.n_min",
    "draft_p_min": "speculative.draft.p_min",
}
_STEP_SECONDS = "step_seconds"  # Not the engine's, but its watchdog's.
_FLASH_ATTENTION = {
    **dict.fromkeys(("on", "true", "1", "enabled", "enable"), "enabled"),
    **dict.fromkeys(("off", "false", "0", "disabled", "disable"), "disabled"),
}
_THREADS = ("cpuparams.n_threads", "cpuparams_batch.n_threads")
_NUMBERS = (  # Zero in the message means that the model's own value stands.
    ("ContextSize", "n_ctx"),
    ("NBatch", "n_batch"),
    ("NBatch", "n_ubatch"),
    *(("Threads", setting) for setting in _THREADS),
    ("RopeFreqBase", "rope_freq_base"),
    ("RopeFreqScale", "rope_freq_scale"),
    ("RopeScaling", "rope_scaling_type"),
    ("YarnExtFactor", "yarn_ext_factor"),
    ("YarnAttnFactor", "yarn_attn_factor"),
    ("YarnBetaFast", "yarn_beta_fast"),
    ("YarnBetaSlow", "yarn_beta_slow"),
    ("CacheTypeKey", "cache_type_k"),
    ("CacheTypeValue", "cache_type_v"),
    ("MMProj", "mmproj.path"),
)
_LOAD_MODES = {
    (False, False): "none",
    (True, False): "mmap",
    (False, True): "mlock",
    (True, True): "mmap_mlock",
}


@dataclass(frozen=True, slots=True)
class LoadPlan:
    settings: Mapping[str, Any]
    ignored: tuple[str, ...]  # What was asked for and cannot be had, for the log.
    step_s: float = limits.STEP_S  # See there.

    @property
    def parallel(self) -> int:
        return int(self.settings["n_parallel"])

    @property
    def embeds(self) -> bool:
        """It makes vectors of texts, not scores: asked for the other one, the engine reads foreign memory."""
        return bool(self.settings.get("embedding")) and self.settings.get("pooling_type") != "rank"

    @property
    def reranks(self) -> bool:
        return bool(self.settings.get("embedding")) and not self.embeds

    @property
    def path(self) -> str:
        return str(self.settings["model.path"])


def plan_load(options: pb.ModelOptions, *, threads: int = 0) -> LoadPlan:
    """How to load what `options` asks for, with so many threads unless that names some; 0: as the engine
    does. ValueError says what is wrong with them."""
    settings: dict[str, Any] = {
        "model.path": str(model_file(options)),
        "model_alias": ["model"],  # Repeated in every event: short.
        "hostnames": ["127.0.0.1"],
        "port": 0,
        "endpoint_metrics": True,
        "ui": False,
        "verbosity": 1,  # Errors: it warns about every prompt that it has seen before.
        "n_batch": limits.BATCH_DEFAULT,
        "n_ubatch": limits.BATCH_DEFAULT,
        "n_parallel": limits.PARALLEL_DEFAULT,
        "kv_unified": True,  # One call may use the whole context, several share it.
        "cache_ram_mib": limits.PROMPT_CACHE_MIB,
        "n_gpu_layers": options.NGPULayers,
        "load_mode": _LOAD_MODES[options.MMap, options.MLock],
        "no_kv_offload": options.NoKVOffload,
        **(dict.fromkeys(_THREADS, threads) if threads else {}),
    }
    settings |= {name: value for field, name in _NUMBERS if (value := getattr(options, field))}
    settings |= dict(_of_several_fields(options))
    given = parse_options(options.Options)
    settings |= {_OPTIONS[key]: _checked(key, value) for key, value in given.items() if key in _OPTIONS}
    if settings["n_parallel"] < 1:
        raise ValueError(f"parallel must be 1 or more, not {settings['n_parallel']}")
    settings["n_threads_http"] = settings["n_parallel"] + limits.HTTP_THREADS_SPARE
    return LoadPlan(settings, tuple(_ignored(options, given)), _step_s(given))


def model_file(options: pb.ModelOptions) -> Path:
    """The file to load; of a folder its first GGUF. It may be missing: the engine says so best."""
    named = Path(options.ModelFile) if options.ModelFile else None
    if named is None or not named.exists():
        below = Path(options.ModelPath) / options.Model if options.Model else None
        named = below if named is None or (below and below.exists()) else named
    if named is None:
        raise ValueError("ModelFile and Model are both empty: name the GGUF file to load")
    if named.is_dir():
        files = sorted(f for f in named.glob("*.gguf") if not f.name.startswith("mmproj"))
        if not files:
            raise ValueError(f"{named} is a folder without a GGUF file")
        return files[0]  # Of a model in parts this is the first part, which leads to the others.
    return named


def _of_several_fields(options: pb.ModelOptions) -> Iterator[tuple[str, Any]]:
    if options.Embeddings or options.Reranking:
        batch = max(options.NBatch, options.ContextSize or limits.EMBEDDING_BATCH_DEFAULT)
        yield "embedding", True
        yield "n_batch", min(batch, limits.EMBEDDING_BATCH_MAX)
        yield "n_ubatch", min(batch, limits.EMBEDDING_BATCH_MAX)
    if options.Reranking:
        yield "pooling_type", "rank"
    if mode := _FLASH_ATTENTION.get(options.FlashAttention.lower()):
        yield "flash_attn_type", mode
    if options.NUMA:
        yield "numa", "distribute"
    if options.MainGPU.isdigit():
        yield "main_gpu", int(options.MainGPU)
    if options.TensorSplit:
        yield "tensor_split", [float(part) for part in options.TensorSplit.split(",")]
    if options.DraftModel:
        yield "speculative.draft.mparams.path", options.DraftModel
        yield "speculative.types", ["DRAFT_SIMPLE"]
    if adapters := _adapters(options):
        yield "lora_adapters", adapters


def _adapters(options: pb.ModelOptions) -> list[tuple[str, float]]:
    several = list(options.LoraAdapters)
    scales = [*options.LoraScales, *[1.0] * len(several)]
    pairs = list(zip(several, scales, strict=False))
    if options.LoraAdapter and options.LoraAdapter not in several:
        pairs.append((options.LoraAdapter, options.LoraScale or 1.0))
    root = Path(options.ModelPath)
    return [(str(root / path), scale) for path, scale in pairs]


def _checked(key: str, value: OptionValue) -> OptionValue:
    """An option of a wrong kind would otherwise be refused by xllamacpp in words that do not help."""
    text = key in ("pooling", "split_mode", "reasoning_format")
    if text != isinstance(value, str):
        raise ValueError(f"the option {key}:{value} needs {'a word' if text else 'a number or true/false'}")
    return value


def _step_s(given: Mapping[str, OptionValue]) -> float:
    value = given.get(_STEP_SECONDS, limits.STEP_S)
    if isinstance(value, bool | str) or not 1 <= value <= limits.STEP_SECONDS_MAX:
        accepted = f"a number of seconds from 1 to {limits.STEP_SECONDS_MAX}"
        raise ValueError(f"the option {_STEP_SECONDS}:{value} needs {accepted}")
    return float(value)


def _ignored(options: pb.ModelOptions, given: Mapping[str, OptionValue]) -> Iterator[str]:
    yield from (f"Options[{key}]" for key in given if key not in _OPTIONS and key != _STEP_SECONDS)
    yield from (field for field in ("Overrides", "EngineArgs", "LoraBase") if getattr(options, field))
