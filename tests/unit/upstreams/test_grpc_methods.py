from remuda.inference.model import RequestKind
from remuda.rpc import backend_pb2 as pb
from remuda.upstreams.grpc import channels

SERVICE = pb.DESCRIPTOR.services_by_name["Backend"]


def test_every_method_of_the_service_is_either_inference_or_control() -> None:
    assert channels.INFERENCE | channels.CONTROL.keys() == {method.name for method in SERVICE.methods}
    assert not channels.INFERENCE & channels.CONTROL.keys()


def test_every_kind_of_request_is_counted_whatever_it_calls() -> None:
    assert set(channels.BY_KIND) == set(RequestKind)
    assert all(called <= channels.INFERENCE for called in channels.BY_KIND.values())


def test_what_carries_a_models_identity_is_inference() -> None:
    checked = {
        method.name for method in SERVICE.methods if "ModelIdentity" in method.input_type.fields_by_name
    }

    assert checked <= channels.INFERENCE


def test_a_method_is_called_by_its_full_name() -> None:
    assert SERVICE.full_name == channels.SERVICE
    assert channels.method_path("Predict") == "/backend.Backend/Predict"
