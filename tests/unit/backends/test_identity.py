"""Which requests a backend answers, given the model that it holds."""

import grpc
import pytest

from remuda.backends.calls import LoadedModel, ModelNotLoaded
from remuda.rpc import backend_pb2 as pb

GUARDED = [
    pb.PredictOptions,
    pb.RerankRequest,
    pb.ScoreRequest,
    pb.TranscriptRequest,
    pb.TTSRequest,
    pb.GenerateImageRequest,
]


def holding(name: str) -> LoadedModel:
    model = LoadedModel()
    model.remember(pb.ModelOptions(Model=name))
    return model


@pytest.mark.parametrize("kind", GUARDED, ids=lambda kind: kind.DESCRIPTOR.name)
def test_a_request_for_another_model_is_refused(kind: type) -> None:
    refusal = holding("llama").refusal(kind(ModelIdentity="qwen"))
    assert refusal is not None
    assert refusal.code is grpc.StatusCode.NOT_FOUND
    assert "model identity mismatch" in refusal.message


@pytest.mark.parametrize("kind", GUARDED, ids=lambda kind: kind.DESCRIPTOR.name)
def test_without_a_model_a_request_for_one_is_refused(kind: type) -> None:
    refusal = LoadedModel().refusal(kind())
    assert refusal is not None
    assert refusal.code is grpc.StatusCode.FAILED_PRECONDITION
    assert "model not loaded" in refusal.message


@pytest.mark.parametrize(("held", "wanted"), [("llama", "llama"), ("llama", ""), ("", "llama"), ("", "")])
def test_equal_names_and_missing_ones_pass(held: str, wanted: str) -> None:
    assert holding(held).refusal(pb.PredictOptions(ModelIdentity=wanted)) is None


def test_the_model_that_speech_names_is_not_compared() -> None:
    assert holding("voice").refusal(pb.TTSRequest(model="/models/voice.onnx")) is None


def test_messages_that_name_no_model_pass_always() -> None:
    assert LoadedModel().refusal(pb.HealthMessage()) is None


def test_a_freed_model_is_loaded_no_more() -> None:
    model = holding("llama")
    model.forget(pb.HealthMessage())
    assert isinstance(model.refusal(pb.PredictOptions(ModelIdentity="llama")), ModelNotLoaded)
