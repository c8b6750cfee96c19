"""LocalAI's backend service as its wire contract tells it, described at run time. It knows nothing of ours.

The description lives in a pool of its own, so that other stubs of the same service may be loaded beside it.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

PACKAGE, SERVICE = "backend", "Backend"
MESSAGE_BYTES_MAX = 50 << 20
# Proxies are for the outside world, and a second server on a port must fail instead of sharing it.
TRANSPORT = (
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.enable_http_proxy", 0),
    ("grpc.so_reuseport", 0),
)

STATES = {"UNINITIALIZED": 0, "BUSY": 1, "READY": 2, "ERROR": -1}
LAYOUTS = {"UNSPECIFIED": 0, "ONE_VECTOR": 1, "PER_TOKEN": 2}
_ENUMS = {"State": STATES, "EmbeddingLayout": LAYOUTS}

_MESSAGES = """
message ModelOptions {
  string Model = 1; int32 ContextSize = 2; int32 Seed = 3; int32 NBatch = 4; bool F16Memory = 5;
  bool MLock = 6; bool MMap = 7; bool VocabOnly = 8; bool LowVRAM = 9; bool Embeddings = 10;
  bool NUMA = 11; int32 NGPULayers = 12; string MainGPU = 13; string TensorSplit = 14; int32 Threads = 15;
  float RopeFreqBase = 17; float RopeFreqScale = 18; float RMSNormEps = 19; int32 NGQA = 20;
  string ModelFile = 21; string PipelineType = 26; string SchedulerType = 27; bool CUDA = 28;
  float CFGScale = 29; bool IMG2IMG = 30; string CLIPModel = 31; string CLIPSubfolder = 32;
  int32 CLIPSkip = 33; string Tokenizer = 34; string LoraBase = 35; string LoraAdapter = 36;
  bool NoMulMatQ = 37; string AudioPath = 38; string DraftModel = 39; string Quantization = 40;
  string MMProj = 41; float LoraScale = 42; string RopeScaling = 43; float YarnExtFactor = 44;
  float YarnAttnFactor = 45; float YarnBetaFast = 46; float YarnBetaSlow = 47; string ControlNet = 48;
  string Type = 49; float GPUMemoryUtilization = 50; bool TrustRemoteCode = 51; bool EnforceEager = 52;
  int32 SwapSpace = 53; int32 MaxModelLen = 54; int32 TensorParallelSize = 55; string FlashAttention = 56;
  bool NoKVOffload = 57; string LoadFormat = 58; string ModelPath = 59; repeated string LoraAdapters = 60;
  repeated float LoraScales = 61; repeated string Options = 62; string CacheTypeKey = 63;
  string CacheTypeValue = 64; repeated GrammarTrigger GrammarTriggers = 65; bool DisableLogStatus = 66;
  string DType = 67; int32 LimitImagePerPrompt = 68; int32 LimitVideoPerPrompt = 69;
  int32 LimitAudioPerPrompt = 70; bool Reranking = 71; repeated string Overrides = 72;
  string EngineArgs = 73; ProxyOptions Proxy = 74; bool EnableScore = 75;
}
message HealthMessage {}
message Result { string message = 1; bool success = 2; }
message StatusResponse { State state = 1; MemoryUsageData memory = 2; }
message MemoryUsageData { uint64 total = 1; map<string, uint64> breakdown = 2; }
message GrammarTrigger { string word = 1; }
message ProxyOptions {
  string upstream_url = 1; string mode = 2; string provider = 3; string api_key_env = 4;
  string api_key_file = 5; string upstream_model = 6; int32 request_timeout_seconds = 7;
  bool cache_prompt = 8;
}
message MetricsRequest {}
message MetricsResponse {
  int32 slot_id = 1; string prompt_json_for_slot = 2; float tokens_per_second = 3;
  int32 tokens_generated = 4; int32 prompt_tokens_processed = 5;
}
message ModelMetadataResponse {
  bool supports_thinking = 1; string rendered_template = 2; string media_marker = 4;
}
message PredictOptions {
  string Prompt = 1; int32 Seed = 2; int32 Threads = 3; int32 Tokens = 4; int32 TopK = 5;
  int32 Repeat = 6; int32 Batch = 7; int32 NKeep = 8; float Temperature = 9; float Penalty = 10;
  bool F16KV = 11; bool DebugMode = 12; repeated string StopPrompts = 13; bool IgnoreEOS = 14;
  float TailFreeSamplingZ = 15; float TypicalP = 16; float FrequencyPenalty = 17;
  float PresencePenalty = 18; int32 Mirostat = 19; float MirostatETA = 20; float MirostatTAU = 21;
  bool PenalizeNL = 22; string LogitBias = 23; bool MLock = 25; bool MMap = 26; bool PromptCacheAll = 27;
  bool PromptCacheRO = 28; string Grammar = 29; string MainGPU = 30; string TensorSplit = 31;
  float TopP = 32; string PromptCachePath = 33; bool Debug = 34; repeated int32 EmbeddingTokens = 35;
  string Embeddings = 36; float RopeFreqBase = 37; float RopeFreqScale = 38;
  float NegativePromptScale = 39; string NegativePrompt = 40; int32 NDraft = 41;
  repeated string Images = 42; bool UseTokenizerTemplate = 43; repeated Message Messages = 44;
  repeated string Videos = 45; repeated string Audios = 46; string CorrelationId = 47; string Tools = 48;
  string ToolChoice = 49; int32 Logprobs = 50; int32 TopLogprobs = 51; map<string, string> Metadata = 52;
  float MinP = 53; string ModelIdentity = 54;
}
message Message {
  string role = 1; string content = 2; string name = 3; string tool_call_id = 4;
  string reasoning_content = 5; string tool_calls = 6;
}
message Reply {
  bytes message = 1; int32 tokens = 2; int32 prompt_tokens = 3; double timing_prompt_processing = 4;
  double timing_token_generation = 5; bytes audio = 6; bytes logprobs = 7;
  repeated ChatDelta chat_deltas = 8;
}
message ChatDelta {
  string content = 1; string reasoning_content = 2; repeated ToolCallDelta tool_calls = 3;
}
message ToolCallDelta { int32 index = 1; string id = 2; string name = 3; string arguments = 4; }
message EmbeddingResult {
  repeated float embeddings = 1; int32 tokens = 2; int32 dim = 3; int32 prompt_tokens = 4;
  EmbeddingLayout layout = 5;
}
message RerankRequest {
  string query = 1; repeated string documents = 2; int32 top_n = 3; string ModelIdentity = 4;
}
message RerankResult { Usage usage = 1; repeated DocumentResult results = 2; }
message Usage { int32 total_tokens = 1; int32 prompt_tokens = 2; }
message DocumentResult { int32 index = 1; string text = 2; float relevance_score = 3; }
message TokenizationResponse { int32 length = 1; repeated int32 tokens = 2; }
message DetokenizeRequest { repeated int32 tokens = 1; }
message DetokenizeResponse { string content = 1; }
message TranscriptRequest {
  string dst = 2; string language = 3; uint32 threads = 4; bool translate = 5; bool diarize = 6;
  string prompt = 7; float temperature = 8; repeated string timestamp_granularities = 9; bool stream = 10;
  string ModelIdentity = 11;
}
message TranscriptResult {
  repeated TranscriptSegment segments = 1; string text = 2; string language = 3; float duration = 4;
  bool eou = 5;
}
message TranscriptSegment {
  int32 id = 1; int64 start = 2; int64 end = 3; string text = 4; repeated int32 tokens = 5;
  string speaker = 6; repeated TranscriptWord words = 7;
}
message TranscriptWord { int64 start = 1; int64 end = 2; string text = 3; }
message TranscriptStreamResponse { string delta = 1; TranscriptResult final_result = 2; }
message TTSRequest {
  string text = 1; string model = 2; string dst = 3; string voice = 4; string language = 5;
  string instructions = 6; map<string, string> params = 7; string ModelIdentity = 8;
}
message SoundGenerationRequest {
  string text = 1; string model = 2; string dst = 3; float duration = 4; float temperature = 5;
  bool sample = 6; string src = 7; int32 src_divisor = 8;
}
message GenerateImageRequest {
  int32 height = 1; int32 width = 2; int32 step = 4; int32 seed = 5; string positive_prompt = 6;
  string negative_prompt = 7; string dst = 8; string src = 9; string EnableParameters = 10;
  int32 CLIPSkip = 11; repeated string ref_images = 12; string ModelIdentity = 13;
}
"""

_MESSAGE = re.compile(r"message (\w+) \{(.*?)\}", re.DOTALL)
_FIELD = re.compile(r"(?:(repeated) )?(?:map<(\w+), (\w+)>|(\w+)) (\w+) = (\d+);")


@dataclass(frozen=True, slots=True)
class Rpc:
    name: str
    request: str
    reply: str
    streams: bool = False

    @property
    def path(self) -> str:
        return f"/{PACKAGE}.{SERVICE}/{self.name}"


RPCS = {
    rpc.name: rpc
    for rpc in (
        Rpc("Health", "HealthMessage", "Reply"),
        Rpc("Free", "HealthMessage", "Result"),
        Rpc("LoadModel", "ModelOptions", "Result"),
        Rpc("Predict", "PredictOptions", "Reply"),
        Rpc("PredictStream", "PredictOptions", "Reply", streams=True),
        Rpc("Embedding", "PredictOptions", "EmbeddingResult"),
        Rpc("Rerank", "RerankRequest", "RerankResult"),
        Rpc("GenerateImage", "GenerateImageRequest", "Result"),
        Rpc("AudioTranscription", "TranscriptRequest", "TranscriptResult"),
        Rpc("AudioTranscriptionStream", "TranscriptRequest", "TranscriptStreamResponse", streams=True),
        Rpc("TTS", "TTSRequest", "Result"),
        Rpc("TTSStream", "TTSRequest", "Reply", streams=True),
        Rpc("SoundGeneration", "SoundGenerationRequest", "Result"),
        Rpc("TokenizeString", "PredictOptions", "TokenizationResponse"),
        Rpc("Detokenize", "DetokenizeRequest", "DetokenizeResponse"),
        Rpc("Status", "HealthMessage", "StatusResponse"),
        Rpc("GetMetrics", "MetricsRequest", "MetricsResponse"),
        Rpc("ModelMetadata", "ModelOptions", "ModelMetadataResponse"),
    )
}


def build(message: str, /, **fields: object) -> Any:
    """A message by its name; nested ones may be given as mappings."""
    return CLASSES[message](**fields)


def service(behaviours: Mapping[str, Callable[..., object]]) -> Any:
    """What a gRPC server is given: these calls answered, all others unimplemented."""

    def handler(rpc: Rpc) -> Any:
        kind = grpc.unary_stream_rpc_method_handler if rpc.streams else grpc.unary_unary_rpc_method_handler
        return kind(
            behaviours[rpc.name], CLASSES[rpc.request].FromString, CLASSES[rpc.reply].SerializeToString
        )

    handlers = {name: handler(RPCS[name]) for name in behaviours}
    return grpc.method_handlers_generic_handler(f"{PACKAGE}.{SERVICE}", handlers)


def _describe() -> FileDescriptorProto:
    file = FileDescriptorProto(name="peers/backend.proto", package=PACKAGE, syntax="proto3")
    for name, values in _ENUMS.items():
        enum = file.enum_type.add(name=name)
        for label, number in values.items():
            enum.value.add(name=f"{name}_{label}", number=number)
    for name, body in _MESSAGE.findall(_MESSAGES):
        message = file.message_type.add(name=name)
        for repeated, key, value, kind, field, number in _FIELD.findall(body):
            if key:
                _add_map(message, field, int(number), key, value)
            else:
                _add_field(message, field, int(number), kind, repeated=bool(repeated))
    return file


def _add_field(message: DescriptorProto, name: str, number: int, kind: str, *, repeated: bool) -> None:
    field = message.field.add(name=name, number=number)
    field.label = FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL
    if kind.islower():
        field.type = FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
    else:
        field.type_name = f".{PACKAGE}.{kind}"  # A message or an enum: the pool finds out which.


def _add_map(message: DescriptorProto, name: str, number: int, key: str, value: str) -> None:
    """A map is a repeated message of pairs, which proto names after the field."""
    pair = f"{name[0].upper()}{name[1:]}Entry"
    entry = message.nested_type.add(name=pair)
    entry.options.map_entry = True
    _add_field(entry, "key", 1, key, repeated=False)
    _add_field(entry, "value", 2, value, repeated=False)
    _add_field(message, name, number, f"{message.name}.{pair}", repeated=True)


def _classes(file: FileDescriptorProto) -> dict[str, Any]:
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    names = [message.name for message in file.message_type]
    return {name: GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in names}


CLASSES = _classes(_describe())
