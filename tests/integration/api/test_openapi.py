"""The OpenAPI document is complete and true: schemathesis makes up requests from it, good and bad, and holds
every answer against it. `--hypothesis-profile thorough` makes up ten times as many."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import requests
import schemathesis
import structlog
from anyio.from_thread import start_blocking_portal
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import negative_data_rejection, positive_data_acceptance

from remuda.core import log
from remuda.gateway.anthropic.endpoints import ENDPOINTS as ANTHROPICS
from remuda.gateway.app import api_routes
from remuda.gateway.ollama.api import ENDPOINTS as OLLAMA_ENDPOINTS
from remuda.gateway.openai.endpoints import ENDPOINTS
from remuda.gateway.responses import endpoints as responses
from remuda.inference.model import RequestKind
from tests.integration.api.ops_frontends import our_node
from tests.support.frontends import LiveFrontend, live_frontend

Json = dict[str, Any]
ALL_ENDPOINTS = {**ENDPOINTS, responses.PATH: responses.ENDPOINT, **OLLAMA_ENDPOINTS}
INFERENCE = [(path, "POST") for path in (*ALL_ENDPOINTS, *ANTHROPICS)]
MODELS = [("/v1/models", "GET"), ("/v1/models/{id}", "GET")]
KEPT = [
    (f"{responses.PATH}/{{id}}", "GET"),
    (f"{responses.PATH}/{{id}}", "DELETE"),
    (f"{responses.PATH}/{{id}}/cancel", "POST"),
    (f"{responses.PATH}/{{id}}/input_items", "GET"),
]
OPERATIONS = sorted(
    [(route.path_format, method) for route in api_routes() for method in route.methods or ()]
    + INFERENCE
    + MODELS
    + KEPT
)
BODIES_OF_OPERATIONS = (
    "/backends/install",
    "/model-files/free",
    "/backends/upgrade",
    "/backends/delete",
    "/backends/install-external",
    "/backends/apply",
    "/api/ops",
    "/api/ops/upgrades",
    "/retry",
    "/api/models",
    "/api/models/install",
    "/unload",
    "/models/delete",
    "/backend/load",
    "/rename",
    "/backend/shutdown",
    "/api/session",
    "/api/benchmarks",
    "/api/show",
    "/api/pull",
)
PER_EXAMPLE, PER_EXAMPLE_WITH_BODY = 10, 5  # Of the profile's: a request is slow beside a function.
USUAL = settings.get_profile("usual").max_examples
NOT_HELD_AGAINST_IT = [
    # Texts are bounded in bytes, and some must be printable: a JSON schema cannot say so.
    positive_data_acceptance,
    # Reading is tolerant: null is absent, a heartbeat that cannot be read is one without figures.
    negative_data_rejection,
]


@schemathesis.serializer("application/offset+octet-stream")
def _part(_context: Any, value: Any) -> bytes:
    """schemathesis knows how to send bytes only under the media types of its own list."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Api:
    schema: Any  # schemathesis is untyped.
    session: requests.Session
    node_id: str
    token: str


NETWORK = pytest.param("0.0.0.0", id="network", marks=pytest.mark.long)


@pytest.fixture(scope="module", params=[pytest.param("127.0.0.1", id="loopback"), NETWORK])
def api(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """In a thread of its own: schemathesis calls from this one, and waits."""
    with _silence(), start_blocking_portal("asyncio") as portal:
        # Without galleries on the network, and with a node that has said what it has: what is looked at
        # here does not depend on who answers elsewhere.
        shipped = [{"name": "remuda", "url": "builtin:gallery"}]
        folder = tmp_path_factory.mktemp("frontend")
        running = live_frontend(folder, host=request.param, backend_galleries=shipped)
        with portal.wrap_async_context_manager(running) as frontend, requests.Session() as session:
            node_id = portal.call(our_node, frontend)["id"]
            yield Api(_loaded(frontend), session, node_id, frontend.token)


def _loaded(frontend: LiveFrontend) -> Any:
    keys = {
        "registrationToken": {"bearer": frontend.token},
        "adminKey": {"bearer": frontend.running.first_admin_key or "none is needed"},
        "inferenceKey": {"bearer": frontend.running.first_admin_key or "none is needed"},
    }
    config = schemathesis.Config.from_dict({"auth": {"openapi": keys}})
    return schemathesis.openapi.from_url(f"{frontend.url}/openapi.json", config=config, timeout=60)


@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_every_answer_is_a_documented_one(api: Api, path: str, method: str) -> None:
    operation = api.schema[path][method]
    good, bad = (operation.as_strategy(generation_mode=mode) for mode in GenerationMode)
    answers: list[int] = []

    @settings(
        max_examples=requests_to_make(path, method),
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(case=good | bad, at_home=st.booleans())
    def call(case: Any, at_home: bool) -> None:
        if at_home or path == "/api/pull":
            _lead_home(case, api)
        if path.endswith("/events"):
            _cut_short(case)
        reply = case.call_and_validate(session=api.session, excluded_checks=NOT_HELD_AGAINST_IT)
        answers.append(reply.status_code)

    call()
    assert answers
    assert max(answers) < 500


def requests_to_make(path: str, method: str) -> int:
    made_up = settings().max_examples
    divisor = PER_EXAMPLE_WITH_BODY if reads_a_body(path, method.lower()) else PER_EXAMPLE
    return made_up // divisor if made_up > USUAL else made_up // divisor // 2


def _lead_home(case: Any, api: Api) -> None:
    """Past the checks of id, token and name, behind which most cases would never come."""
    removes_node = (case.method, case.path) == ("DELETE", "/api/nodes/{node_id}")
    if "node_id" in (case.path_parameters or {}) and not removes_node:
        case.path_parameters["node_id"] = api.node_id
    if case.path == "/api/pull" and isinstance(case.body, dict):  # Others take as long as their registry.
        case.body["model"] = "ollama://"
    if case.path == "/api/node/register" and isinstance(case.body, dict):
        case.body = {"name": "made-up", "address": "127.0.0.1:1", **case.body, "token": api.token}


def _cut_short(case: Any) -> None:
    """A stream would go on for as long as it was asked to."""
    query = dict(case.query or {})
    query.setdefault("wait_s", 0)
    case.query = {**query, "wait_s": 0} if isinstance(query["wait_s"], int | float) else query


def test_every_route_says_what_it_is_for_and_how_it_refuses(document: Json) -> None:
    documented = {
        (path, method.upper()) for path, operations in document["paths"].items() for method in operations
    }
    assert documented == set(OPERATIONS)
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            assert operation["summary"], path
            assert operation["description"], path
            assert "403" in operation["responses"], path
            assert "413" in operation["responses"] or (path, method.upper()) in [*MODELS, *KEPT], path
            assert "422" not in operation["responses"], path
            assert ("requestBody" in operation) == reads_a_body(path, method), path


BODIES_OF_WORKERS = ("/register", "/heartbeat", "/bus-trouble", "/drain", "/deregister")


def reads_a_body(path: str, method: str) -> bool:
    if path == "/api/delete":
        return method == "delete"
    if path.startswith("/api/node/") and path.endswith(BODIES_OF_WORKERS):
        return method == "post"
    if (
        path
        in ("/api/keys", "/api/nodes/invites", "/api/nodes/scheduling", "/api/servers", "/api/servers/scan")
        or path in (*ALL_ENDPOINTS, *ANTHROPICS)
        or path.endswith(BODIES_OF_OPERATIONS)
    ):
        return method == "post"
    return method in ("put", "patch")


def test_guarded_routes_name_their_key(document: Json) -> None:
    schemes = document["components"]["securitySchemes"]
    assert {name: scheme["scheme"] for name, scheme in schemes.items()} == {
        "registrationToken": "bearer",
        "adminKey": "bearer",
        "inferenceKey": "bearer",
    }
    for path, operations in document["paths"].items():
        for operation in operations.values():
            asked = {scheme for one in operation.get("security", []) for scheme in one}
            assert asked == _key_for(path), path


LOOKED_AT_WITH_ANY_KEY = {
    "/api/models/{model}/load-status",
    "/api/tags",
    "/api/ps",
    "/api/show",
    "/api/version",
}


def _key_for(path: str) -> set[str]:
    if path.startswith("/api/node/"):
        return {"registrationToken"}
    if path.startswith(("/v1/", "/v2/")) or path in OLLAMA_ENDPOINTS or path in LOOKED_AT_WITH_ANY_KEY:
        return {"inferenceKey"}
    if path.startswith("/api/model-files/"):  # The address is signed.
        return set()
    if path == "/api/session":  # Whoever is not signed in yet.
        return set()
    return {"adminKey"} if path.startswith(("/api/", "/backend")) or path == "/metrics" else set()


def test_what_is_asked_of_models_is_described_by_the_types_that_read_it(document: Json) -> None:
    for path, ask in ALL_ENDPOINTS.items():
        operation = document["paths"][path]["post"]
        (content,) = operation["requestBody"]["content"].values()
        name = content["schema"]["$ref"].rpartition("/")[2]
        fields = document["components"]["schemas"][name]["properties"].keys()
        assert fields == set(ask.body.__struct_fields__), path
        streams = bool(fields & {"stream", "stream_format"}) and ask.kind is not RequestKind.IMAGE
        stream_type = ask.format.stream_headers[0][1].decode()
        assert (stream_type in operation["responses"]["200"]["content"]) == streams, path


def test_the_page_for_people_shows_every_route_and_fetches_nothing(api: Api, document: Json) -> None:
    reply = api.session.get(api.schema.location.replace("/openapi.json", "/docs"), timeout=60)
    assert reply.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in reply.headers["content-security-policy"]
    for path, method in OPERATIONS:
        assert f"<b>{method}</b> {path}<" in reply.text
    assert "<script" not in reply.text
    assert "http" not in reply.text.split("<h1>")[0]


def test_every_reference_in_the_document_leads_somewhere(document: Json) -> None:
    def references(part: object) -> Iterator[str]:
        if isinstance(part, dict):
            yield from (value for key, value in part.items() if key == "$ref")
            for value in part.values():
                yield from references(value)
        elif isinstance(part, list):
            for value in part:
                yield from references(value)

    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert set(references(document)) <= known


def test_bounds_of_numbers_are_part_of_the_document(document: Json) -> None:
    fields = document["components"]["schemas"]["RegisterRequest"]["properties"]
    assert (fields["total_vram"]["minimum"], fields["total_vram"]["maximum"]) == (0, 2**64 - 1)


@pytest.fixture
def document(api: Api) -> Json:
    raw: Json = api.schema.raw_schema
    return raw


class _silence:
    """Thousands of made-up requests are no news."""

    def __enter__(self) -> None:
        self._before = logging.root.handlers[:], logging.root.level
        log.configure("critical")

    def __exit__(self, *_: object) -> None:
        logging.root.handlers[:], level = self._before
        logging.root.setLevel(level)
        structlog.reset_defaults()
