"""Which of the worker's environment variables a backend gets: those that inference programs need, no more.
Pure.

By a list of what is passed on, not of what is not: people keep secrets under any name.
"""

from collections.abc import Collection, Mapping
from typing import Final

_NAMES: Final = frozenset(
    {
        # Who and where it is.
        "HOME",
        "HOSTNAME",
        "LOGNAME",
        "PATH",
        "SHELL",
        "TEMP",
        "TMP",
        "TMPDIR",
        "USER",
        "XDG_CACHE_HOME",
        "XDG_CONFIG_HOME",
        "XDG_DATA_HOME",
        # Language and time.
        "LANG",
        "LANGUAGE",
        "TZ",
        "TZDIR",
        # The network: proxies, and who signs certificates.
        "ALL_PROXY",
        "FTP_PROXY",
        "HTTPS_PROXY",
        "HTTP_PROXY",
        "NO_PROXY",
        "AWS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
        "GIT_SSL_CAINFO",
        "NODE_EXTRA_CA_CERTS",
        "PIP_CERT",
        "REQUESTS_CA_BUNDLE",
        "SSL_CERT_DIR",
        "SSL_CERT_FILE",
        # Of LocalAI's, all that is for backends.
        "LOCALAI_BACKEND_PARENT_WATCH",
        "LOCALAI_BACKEND_PARENT_WATCH_INTERVAL",
        "LOCALAI_LOG_LEVEL",
        "GPU_DEVICE_ORDINAL",
        "TOKENIZERS_PARALLELISM",
    }
)
_FAMILIES: Final = (
    # Programs and their libraries.
    "DYLD_",
    "LC_",
    "LD_",
    "MALLOC_",
    "PYTHON",
    # Accelerators.
    "AMD_",
    "CUDA_",
    "CUDNN_",
    "GGML_",
    "HIP_",
    "HSA_",
    "MIOPEN_",
    "NCCL_",
    "NVIDIA_",
    "ONEAPI_",
    "OCL_",
    "RCCL_",
    "ROCM_",
    "ROCR_",
    "SYCL_",
    "VK_",
    "ZE_",
    # Threads and mathematics.
    "GOMP_",
    "KMP_",
    "MKL_",
    "OMP_",
    "OPENBLAS_",
    # Frameworks, and where they keep models.
    "HF_",
    "PYTORCH_",
    "TORCH_",
    "TRANSFORMERS_",
    "TRITON_",
)
_SECRETIVE: Final = ("API_KEY", "CREDENTIAL", "PASSWORD", "SECRET", "TOKEN")  # In a name of any family.
_EVERYTHING: Final = "*"
_TELLING_CHARS: Final = 8  # A shorter secret may stand in any text by accident.


def for_backends(name: str, also: Collection[str] = ()) -> bool:
    """Whether backends see a variable of this name; see `scrubbed`."""
    return _needed(name) or _wanted(name, also)


def scrubbed(
    environ: Mapping[str, str], secrets: Collection[str], also: Collection[str] = ()
) -> dict[str, str]:
    """The environment for a backend. `also` names what else is passed on; with a `*` at its end a name stands
    for all that begin so. Whatever holds one of `secrets` is left out, under any name."""
    return {
        name: value
        for name, value in environ.items()
        if for_backends(name, also) and not any(_reveals(value, secret) for secret in secrets)
    }


_CHOICES: Final = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK")
_ORDER: Final = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}  # Else CUDA numbers them by speed, and NVML by place.


def visible_gpus(environ: Mapping[str, str], gpus: Collection[int]) -> dict[str, str]:
    """What makes a process see these GPUs only, of any vendor. What the owner has chosen for all backends
    stays."""
    if any(environ.get(name) for name in (*_CHOICES, "ROCR_VISIBLE_DEVICES")):
        return {}
    return {**_ORDER, **dict.fromkeys(_CHOICES, ",".join(str(one) for one in sorted(gpus)))}


def _needed(name: str) -> bool:
    upper = name.upper()  # Proxies are written both ways.
    if upper in _NAMES:
        return True
    return name.startswith(_FAMILIES) and not any(word in upper for word in _SECRETIVE)


def _wanted(name: str, also: Collection[str]) -> bool:
    return any(
        name.startswith(one.removesuffix(_EVERYTHING)) if one.endswith(_EVERYTHING) else name == one
        for one in also
    )


def _reveals(value: str, secret: str) -> bool:
    return secret in value if len(secret) >= _TELLING_CHARS else bool(secret) and value == secret
