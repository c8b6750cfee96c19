import pytest

from remuda.gateway.openai.framing import DONE, event, last_event


def test_an_event_is_one_line() -> None:
    assert event(b"{}") == b"data: {}\n\n"


@pytest.mark.parametrize(
    ("written", "before"), [(b"", b""), (b"data: {}\n\n", b""), (b'data: {"half', b"\n\n")]
)
def test_the_last_event_ends_one_that_was_cut_off(written: bytes, before: bytes) -> None:
    assert last_event(b"{}", written) == before + b"data: {}\n\n" + DONE
