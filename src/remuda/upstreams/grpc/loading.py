"""The options of LoadModel, from a model's configuration and the place of its files. Pure."""

import posixpath
from collections.abc import Iterator

import msgspec

from remuda.models.config import GPU_LAYERS_ALL, ModelConfig
from remuda.models.memory import BATCH_DEFAULT
from remuda.rpc import backend_pb2 as pb
from remuda.scheduler.model import Place

_PARALLEL = "parallel"


def model_options(config: ModelConfig, place: Place) -> pb.ModelOptions:
    parameters = config.parameters
    options = pb.ModelOptions(
        Model=parameters.model,
        ModelFile=place.model_file,
        ModelPath=place.models_path,
        ContextSize=place.context,
        NBatch=_batch(config, place.context),
        Threads=config.threads or place.threads,
        NGPULayers=GPU_LAYERS_ALL if config.gpu_layers is None else config.gpu_layers,
        MMap=config.mmap is not False,
        FlashAttention=config.flash_attention,
        MMProj=_below(place, config.mmproj),
        DraftModel=_below(place, config.draft_model),
        Options=[*config.options, *_slots(config)],
        Overrides=config.overrides,
        EngineArgs=msgspec.json.encode(config.engine_args).decode() if config.engine_args else "",
        LimitImagePerPrompt=config.limit_mm_per_prompt.image,
        LimitVideoPerPrompt=config.limit_mm_per_prompt.video,
        LimitAudioPerPrompt=config.limit_mm_per_prompt.audio,
        EnableScore=_scores(config),
    )
    if place.models_path:
        options.LoraAdapters.extend(_there(place, path) for path in config.lora_adapters)
        options.LoraScales.extend(config.lora_scales)
        options.LoraAdapter = _there(place, config.lora_adapter)
        options.Tokenizer = parameters.tokenizer
    for field, value in _as_written(config):
        if value:
            setattr(options, field, value)
    return options


def _batch(config: ModelConfig, context: int) -> int:
    """A text that becomes one vector or one score has to go through in one piece."""
    if config.parameters.batch:
        return config.parameters.batch
    whole = config.embeddings or config.reranking or _scores(config)
    return context if whole else BATCH_DEFAULT


def _scores(config: ModelConfig) -> bool:
    return "score" in config.known_usecases


def _slots(config: ModelConfig) -> Iterator[str]:
    """How many requests llama.cpp is to take at once, unless its options say so themselves."""
    configured = any(
        option.partition(":")[0].strip() in (_PARALLEL, f"n_{_PARALLEL}") for option in config.options
    )
    if config.parallel and config.on_llama and not configured:
        yield f"{_PARALLEL}:{config.parallel}"


def _below(place: Place, name: str) -> str:
    """Always within the folder of models, also if it is written like a path from the root. Empty where that
    folder is not known, as the contract has it."""
    return posixpath.join(place.models_path, name.lstrip("/")) if name and place.models_path else ""


def _there(place: Place, path: str) -> str:
    """On the worker: backends of the contract do not look for adapters below the folder of models."""
    return path if path.startswith("/") else _below(place, path)


def _as_written(config: ModelConfig) -> Iterator[tuple[str, object]]:
    parameters = config.parameters
    yield "Seed", parameters.seed if parameters.seed != -1 else None
    yield "RopeFreqBase", parameters.rope_freq_base
    yield "RopeFreqScale", parameters.rope_freq_scale
    yield "F16Memory", config.f16
    yield "MLock", config.mmlock
    yield "LowVRAM", config.low_vram
    yield "NUMA", config.numa
    yield "Embeddings", config.embeddings
    yield "Reranking", config.reranking
    yield "NoMulMatQ", config.no_mulmatq
    yield "NoKVOffload", config.no_kv_offloading
    yield "MainGPU", config.main_gpu
    yield "TensorSplit", config.tensor_split
    yield "CacheTypeKey", config.cache_type_k
    yield "CacheTypeValue", config.cache_type_v
    yield "RopeScaling", config.rope_scaling
    yield "YarnExtFactor", config.yarn_ext_factor
    yield "YarnAttnFactor", config.yarn_attn_factor
    yield "YarnBetaFast", config.yarn_beta_fast
    yield "YarnBetaSlow", config.yarn_beta_slow
    yield "RMSNormEps", config.rms_norm_eps
    yield "NGQA", config.ngqa
    yield "LoraBase", config.lora_base
    yield "LoraScale", config.lora_scale
    yield "Type", config.type
    yield "Quantization", config.quantization
    yield "LoadFormat", config.load_format
    yield "GPUMemoryUtilization", config.gpu_memory_utilization
    yield "TrustRemoteCode", config.trust_remote_code
    yield "EnforceEager", config.enforce_eager
    yield "SwapSpace", config.swap_space
    yield "MaxModelLen", config.max_model_len
    yield "TensorParallelSize", config.tensor_parallel_size
    yield "DisableLogStatus", config.disable_log_stats
    yield "DType", config.dtype
