"""The engine's process: loads one model, serves it on a local port, ends when its parent does.

Started by `engine` only. Settings come as a line of JSON on standard input, what became of them goes out as
one on standard output. While xllamacpp loads, nothing else runs in this process.
"""

import ctypes
import json
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

_PR_SET_PDEATHSIG = 1
_TENSOR_SPLIT_LENGTH = 128

# Settings whose values are members of an enumeration, with what their names begin with there.
_ENUMERATIONS = {
    "cache_type_k": ("ggml_type", "GGML_TYPE_"),
    "cache_type_v": ("ggml_type", "GGML_TYPE_"),
    "flash_attn_type": ("llama_flash_attn_type", "LLAMA_FLASH_ATTN_TYPE_"),
    "load_mode": ("llama_load_mode", "LLAMA_LOAD_MODE_"),
    "numa": ("ggml_numa_strategy", "GGML_NUMA_STRATEGY_"),
    "pooling_type": ("llama_pooling_type", "LLAMA_POOLING_TYPE_"),
    "reasoning_format": ("common_reasoning_format", "COMMON_REASONING_FORMAT_"),
    "rope_scaling_type": ("llama_rope_scaling_type", "LLAMA_ROPE_SCALING_TYPE_"),
    "split_mode": ("llama_split_mode", "LLAMA_SPLIT_MODE_"),
}


def main() -> None:
    # The worker signals the whole process group; our parent decides when we end.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _end_with_parent()
    reply_fd = os.dup(1)
    os.dup2(2, 1)  # Whatever native code prints is log.
    order = json.loads(sys.stdin.buffer.readline())
    try:
        server = _load(order["settings"])
    except Exception as error:
        _flush_log()
        os.write(reply_fd, json.dumps({"error": str(error)}).encode() + b"\n")
        return
    os.dup2(order["log_fd"], 2)  # What was said until now is kept apart, to explain a failure.
    os.dup2(order["log_fd"], 1)
    os.write(reply_fd, json.dumps({"address": server.listening_address}).encode() + b"\n")
    sys.stdin.buffer.read()  # Ends when the parent closes it or is gone.
    os._exit(0)  # The system frees faster than destructors do.


def _load(settings: Mapping[str, Any]) -> Any:
    try:
        import xllamacpp  # type: ignore[import-untyped]
    except ImportError as error:
        raise RuntimeError(f"xllamacpp cannot be used on this machine: {error}") from error
    params = xllamacpp.CommonParams()
    for name, value in settings.items():
        *path, attribute = name.split(".")
        owner = params
        for part in path:
            owner = getattr(owner, part)
        setattr(owner, attribute, _value(xllamacpp, name, value))
    return xllamacpp.Server(params)


def _flush_log() -> None:
    """llama.cpp logs in a thread that the end of the process does not wait for: on a busy machine the reason
    of a failed load would be lost. Python has no call for it; a build that does not export it goes without.
    """
    module = sys.modules.get("xllamacpp.xllamacpp")
    if module is None or module.__file__ is None:
        return
    library = ctypes.CDLL(module.__file__)
    with suppress(AttributeError):
        log, flush = library["_Z15common_log_mainv"], library["_Z16common_log_flushP10common_log"]
        log.restype, flush.argtypes, flush.restype = ctypes.c_void_p, (ctypes.c_void_p,), None
        flush(log())


def _value(xllamacpp: Any, name: str, value: Any) -> Any:
    """From what JSON can say to what the attribute takes."""
    if name in _ENUMERATIONS:
        kind, prefix = _ENUMERATIONS[name]
        members = {member.name.removeprefix(prefix): member for member in getattr(xllamacpp, kind)}
        if value.upper() not in members:
            raise ValueError(f"{name} cannot be {value!r}; it is one of {', '.join(members).lower()}")
        return members[value.upper()]
    match name:
        case "lora_adapters":
            return [xllamacpp.CommonAdapterLoraInfo(path, scale) for path, scale in value]
        case "model_alias":
            return set(value)
        case "tensor_split":
            return [*value, *[0.0] * (_TENSOR_SPLIT_LENGTH - len(value))]
        case "speculative.types":
            return [xllamacpp.common_speculative_type[f"COMMON_SPECULATIVE_TYPE_{kind}"] for kind in value]
    return value


def _end_with_parent() -> None:
    """While loading, the end of standard input goes unnoticed; where the kernel can tell, it does."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()
