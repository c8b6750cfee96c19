"""Process keys: `model#replica`, split at the last sign."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.wire.process_keys import ProcessKey


@given(st.text(min_size=1), st.integers(0, 10**9 - 1))
def test_key_survives_whatever_the_model_is_called(model_id: str, replica_index: int) -> None:
    key = ProcessKey(model_id, replica_index)

    assert ProcessKey.parse(str(key)) == key


def test_the_last_sign_splits() -> None:
    assert ProcessKey.parse("org/model#v2#1") == ProcessKey("org/model#v2", 1)


@pytest.mark.parametrize(
    "text", ["", "model", "#0", "model#", "model#-1", "model#x", "model#1_0", "model#²", "m#" + "9" * 5000]
)
def test_other_text_is_no_key(text: str) -> None:
    assert ProcessKey.parse(text) is None
