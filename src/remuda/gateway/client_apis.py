"""Every API that clients may speak, put together over what answers all of them."""

from starlette.types import ASGIApp

from remuda.core.clock import Clock
from remuda.gateway.anthropic.api import AnthropicApi
from remuda.gateway.inference.admission import Admission
from remuda.gateway.inference.api import InferenceHandler, InferenceRoutes
from remuda.gateway.inference.endpoint import ClientApi
from remuda.gateway.ollama.api import OllamaApi
from remuda.gateway.openai.api import OpenAiApi
from remuda.gateway.responses.api import ResponsesApi
from remuda.gateway.responses.asking import ResponseDesk
from remuda.gateway.services import Inference, Services
from remuda.gateway.shut_out import RequestsShutOut


def inference_routes(
    elsewhere: ASGIApp, services: Services, inference: Inference, clock: Clock
) -> InferenceRoutes:
    """A path that several APIs cover is the first one's."""
    admission = _admission(services, inference)
    limits = services.metering.limits if services.access.keys_required else None
    usage, prefix = services.metering.usage, f"req-{services.entropy.uuid()[:13]}-"
    handler = InferenceHandler(inference, admission, limits, usage, clock, prefix)
    refresh = inference.refresh_models
    apis: tuple[ClientApi, ...] = (
        AnthropicApi(admission, refresh),
        *_responses(handler, admission, inference, services, clock),
        OpenAiApi(admission, refresh),
        OllamaApi(admission, inference.dispatcher, services.serving.models, clock),
    )
    return InferenceRoutes(elsewhere, handler, apis)


def requests_shut_out(services: Services, inference: Inference) -> RequestsShutOut:
    """To run for as long as requests are answered."""
    return RequestsShutOut(inference.running, _admission(services, inference), services.keyring)


def _admission(services: Services, inference: Inference) -> Admission:
    return Admission(services.access, services.keyring, inference.tables, services.console.sessions)


def _responses(
    handler: InferenceHandler, admission: Admission, inference: Inference, services: Services, clock: Clock
) -> tuple[ClientApi, ...]:
    if inference.responses is None:
        return ()
    desk = ResponseDesk(handler, inference.responses, clock, services.entropy)
    return (ResponsesApi(desk, admission, inference.responses),)
