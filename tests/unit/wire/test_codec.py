"""Reading what peers really send, and refusing the rest in words that help."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.core.errors import Invalid, TooLarge
from remuda.wire.backends import BackendInstall, BackendListReply, BackendStop
from remuda.wire.broadcasts import GalleryStatus, PrefixObserved
from remuda.wire.codec import NOTHING, decode, encode, refuse_unknown_fields, rfc3339
from remuda.wire.files import FilesListdirReply
from remuda.wire.models import ModelsRunningReply
from remuda.wire.nodes import Heartbeat, Labels, RegisterReply, RegisterRequest
from remuda.wire.operations import OpRequest, OpRetryBody


def test_request_of_an_old_frontend_keeps_its_meaning() -> None:
    """Row A100: not forced, silent, replica 0, and none of our additions."""
    request = decode(BackendInstall, b'{"backend":"llama-cpp"}')

    assert request == BackendInstall(
        backend="llama-cpp", force=False, op_id="", replica_index=0, attempt=0, digest="", options=()
    )


def test_agent_worker_registers_with_three_fields() -> None:
    request = decode(RegisterRequest, b'{"name":"agent-host","node_type":"agent","token":"t"}')

    assert (request.name, request.node_type, request.token, request.address) == (
        "agent-host",
        "agent",
        "t",
        "",
    )


@pytest.mark.parametrize("payload", [b"", NOTHING, b"{}"])
def test_stop_without_payload_means_everything_unforced(payload: bytes) -> None:
    assert decode(BackendStop, payload) == BackendStop(backend="", force=False)


def test_empty_payload_is_refused_where_a_body_is_due() -> None:
    with pytest.raises(Invalid, match="not JSON"):
        decode(BackendInstall, b"")


def test_null_means_absent() -> None:
    request = decode(
        RegisterRequest, b'{"name":"n","labels":null,"total_vram":null,"remuda":null,"token":null}'
    )

    assert request == RegisterRequest(name="n")


def test_null_list_of_a_go_worker_is_empty() -> None:
    assert decode(BackendListReply, b'{"backends":null,"error":"e"}') == BackendListReply(error="e")
    assert decode(FilesListdirReply, b'{"files":null}') == FilesListdirReply()
    assert decode(ModelsRunningReply, b'{"models":[null]}').models[0].model_id == ""


def test_absent_figure_differs_from_zero() -> None:
    heartbeat = decode(Heartbeat, b'{"available_disk":0}')

    assert (heartbeat.available_disk, heartbeat.total_disk) == (0, None)


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        (b'{"total_ram":-1}', "total_ram"),
        (b'{"total_ram":18446744073709551616}', "total_ram"),
        (b'{"total_ram":1e30}', "total_ram"),
        (b'{"total_ram":1.5}', "total_ram"),
        (b'{"total_ram":true}', "total_ram"),
        (b'{"total_ram":"8"}', "total_ram"),
        (b'{"name":5}', "name"),
        (b'{"labels":{"room":7}}', "labels.room"),
        (b'{"labels":[]}', "labels"),
        (b'{"max_replicas_per_model":99999999999}', "max_replicas_per_model"),
        (b'{"remuda":{"version":1}}', "remuda.version"),
        (b"[]", "the message"),
    ],
)
def test_refusal_names_the_field(payload: bytes, field: str) -> None:
    with pytest.raises(Invalid) as refusal:
        decode(RegisterRequest, payload)

    assert refusal.value.message.startswith(f"{field} must ")


@pytest.mark.parametrize(
    "payload",
    [b"{", b'{"name":"\xff"}', b'{"name":"\\ud800"}', b'{"x":NaN}', b"[" * 5000, b"1" * 5000, b"\0"],
)
def test_what_is_not_json_is_refused(payload: bytes) -> None:
    with pytest.raises(Invalid):
        decode(RegisterRequest, payload)


def test_refusal_never_repeats_a_value() -> None:
    with pytest.raises(Invalid) as refusal:
        decode(RegisterRequest, b'{"token":["hunter2"],"name":{"a":"hunter2"}}')

    assert "hunter2" not in str(refusal.value)
    assert refusal.value.__cause__ is None


def test_secrets_are_not_shown() -> None:
    reply = RegisterReply(id="i", api_token="hunter2", nats_jwt="hunter2", nats_user_seed="hunter2")

    assert "hunter2" not in f"{reply!r} {reply} {RegisterRequest(token='hunter2')!r}"


def test_many_refusals_are_summed_up() -> None:
    with pytest.raises(Invalid, match=r"; and 2 more$"):
        decode(Labels, b'{"a":1,"b":1,"c":1,"d":1,"e":1}')


def test_payload_over_the_limit_is_refused() -> None:
    with pytest.raises(TooLarge, match="more than the 10 allowed"):
        decode(Heartbeat, b'{"gpu_vendor":"amd"}', bytes_max=10)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (b"{}," * 300_000 + b"{}", "the message has more than 20971 objects and lists"),
        (b"1," * 500_000 + b"1", "the message has more than 83884 values"),
    ],
)
def test_payload_that_would_take_long_to_check_is_refused(files: bytes, said: str) -> None:
    with pytest.raises(Invalid, match=said):
        decode(Heartbeat, b'{"report":{"model_files":[%s]}}' % files)


def test_what_stands_in_texts_is_not_counted() -> None:
    name = '[{,"' * 1000
    assert decode(BackendListReply, encode(BackendListReply(error=name)), containers_max=10).error == name


def test_whole_number_with_exponent_is_a_number_of_bytes() -> None:
    assert decode(Heartbeat, b'{"available_ram":1e3}').available_ram == 1000


def test_replica_count_below_one_is_read_as_one() -> None:
    assert decode(RegisterRequest, b'{"max_replicas_per_model":-3}').max_replicas_per_model == 1


@pytest.mark.parametrize(
    ("text", "instant"),
    [
        ("2026-08-22T10:15:30Z", datetime(2026, 8, 22, 10, 15, 30, tzinfo=UTC)),
        ("2026-08-22T12:15:30.123456789+02:00", datetime(2026, 8, 22, 10, 15, 30, 123456, tzinfo=UTC)),
        ("0001-01-01T00:00:00Z", datetime(1, 1, 1, tzinfo=UTC)),
    ],
)
def test_times_of_go_are_read(text: str, instant: datetime) -> None:
    assert decode(RegisterReply, f'{{"id":"i","created_at":"{text}"}}'.encode()).created_at == instant


@pytest.mark.parametrize("text", ["yesterday", "2026-08-22T10:15:30", "0001-01-01T00:00:00+02:00", ""])
def test_time_that_is_no_instant_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match=r"^created_at(:| must be)"):
        decode(RegisterReply, f'{{"id":"i","created_at":"{text}"}}'.encode())


def test_times_are_written_in_utc_without_trailing_zeros() -> None:
    east = timezone(timedelta(hours=2))

    assert rfc3339(datetime(2026, 8, 22, 12, 15, 30, 120000, tzinfo=east)) == "2026-08-22T10:15:30.12Z"


@given(st.datetimes(timezones=st.just(UTC)))
def test_times_survive(instant: datetime) -> None:
    reply = RegisterReply(id="i", created_at=instant)

    assert decode(RegisterReply, encode(reply)) == reply


TEXT = st.text(st.characters(codec="utf-8"), max_size=50)
UINT64 = st.integers(0, 2**64 - 1)


@given(st.lists(UINT64), st.integers(-(2**31), 2**31 - 1), TEXT)
def test_large_integers_survive_without_loss(chain: list[int], replica: int, model: str) -> None:
    message = PrefixObserved(model=model, chain=tuple(chain), node_id="i", replica=replica)

    assert decode(PrefixObserved, encode(message)) == message


@pytest.mark.parametrize(
    ("body", "named", "hint"),
    [
        (b'{"kind": "upgrade", "rolling": true}', "'rolling'", "did you mean roll_out?"),
        (b'{"kind": "install", "node": "a"}', "'node'", "did you mean nodes?"),
        (b'{"kind": "upgrade", "roll_out": {"polcy": "rolling"}}', "'roll_out.polcy'", "roll_out.policy?"),
        (b'{"kind": "install", "zzz": null}', "'zzz'", "known here: kind, backend, nodes"),
    ],
)
def test_a_field_that_is_not_known_is_refused_with_the_nearest_that_is(
    body: bytes, named: str, hint: str
) -> None:
    with pytest.raises(Invalid) as refused:
        refuse_unknown_fields(OpRequest, body)
    assert refused.value.message == f"{named} is not a known field"
    assert hint in (refused.value.hint or "")


@pytest.mark.parametrize("body", [b"", b"null", b"{}", b'{"nodes": ["a"]}'])
def test_known_fields_and_no_body_are_taken(body: bytes) -> None:
    refuse_unknown_fields(OpRetryBody, body)
    assert len(decode(OpRetryBody, body).nodes) <= 1


@given(
    st.builds(
        RegisterRequest,
        name=TEXT,
        token=TEXT,
        total_vram=UINT64,
        total_ram=st.none() | UINT64,
        available_disk=st.none() | UINT64,
        vram_budget=TEXT,
        labels=st.dictionaries(TEXT, TEXT),
        machine_id=TEXT,
    )
)
def test_registration_survives(request_: RegisterRequest) -> None:
    assert decode(RegisterRequest, encode(request_)) == request_


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_fractions_survive(progress: float) -> None:
    assert decode(GalleryStatus, encode(GalleryStatus(progress=progress))).progress == progress


@given(st.binary(max_size=200))
def test_no_bytes_can_do_more_than_be_refused(payload: bytes) -> None:
    try:
        message = decode(Heartbeat, payload)
    except Invalid:
        return
    assert decode(Heartbeat, encode(message)) == message
