"""Every call of backend.proto: inference, which is counted as in flight, or process management.

What is not listed here cannot be called: a new method in the service has to be put on one side first.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from remuda.inference.model import RequestKind

SERVICE: Final = "backend.Backend"

INFERENCE: Final = frozenset(
    {
        "Predict",
        "PredictStream",
        "Embedding",
        "Rerank",
        "TokenizeString",
        "Detokenize",
        "TokenClassify",
        "Score",
        "GenerateImage",
        "UpscaleImage",
        "GenerateVideo",
        "Generate3D",
        "AudioTranscription",
        "AudioTranscriptionStream",
        "AudioTranscriptionLive",
        "TTS",
        "TTSStream",
        "SoundGeneration",
        "SoundDetection",
        "VAD",
        "Diarize",
        "AudioEncode",
        "AudioDecode",
        "AudioTransform",
        "AudioTransformStream",
        "AudioToAudioStream",
        "Detect",
        "Depth",
        "FaceVerify",
        "FaceAnalyze",
        "VoiceVerify",
        "VoiceAnalyze",
        "VoiceEmbed",
        "StoresSet",
        "StoresDelete",
        "StoresGet",
        "StoresFind",
        "Forward",
    }
)

_JOB = "starts or steers a job that outlives the call"
CONTROL: Final[Mapping[str, str]] = MappingProxyType(
    {
        "Health": "asks whether the process answers",
        "Status": "asks what the process is doing",
        "GetMetrics": "reads figures",
        "LoadModel": "comes before there is a replica",
        "Free": "comes after the last request",
        "ModelMetadata": "asks what the model can do",
        "StartFineTune": _JOB,
        "StopFineTune": _JOB,
        "FineTuneProgress": "watches a job",
        "ListCheckpoints": "reads a list of files",
        "ExportModel": _JOB,
        "StartQuantization": _JOB,
        "StopQuantization": _JOB,
        "QuantizationProgress": "watches a job",
    }
)

BY_KIND: Final[Mapping[RequestKind, frozenset[str]]] = MappingProxyType(
    {
        RequestKind.CHAT: frozenset({"Predict", "PredictStream"}),
        RequestKind.COMPLETION: frozenset({"Predict", "PredictStream"}),
        RequestKind.EMBEDDING: frozenset({"Embedding"}),
        RequestKind.RERANK: frozenset({"Rerank"}),
    }
)


def path(method: str) -> str:
    """What the call is called on the wire."""
    assert method in INFERENCE or method in CONTROL, f"{method} is on neither side"
    return f"/{SERVICE}/{method}"
