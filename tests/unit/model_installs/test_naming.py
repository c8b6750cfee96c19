"""What a model may be called."""

import pytest

from remuda.core.errors import Invalid
from remuda.model_installs.naming import NAME_BYTES_MAX, checked_name, folder_of
from remuda.models.files import path_fault


@pytest.mark.parametrize(("name", "length"), [("a" * 201, 201), ("a" * 256, 256), ("é" * 101, 202)])
def test_name_too_long_for_a_folder_is_refused_with_its_bytes_and_the_limit(name: str, length: int) -> None:
    with pytest.raises(Invalid, match=f"{length} bytes .* at most {NAME_BYTES_MAX}") as refused:
        checked_name(name)
    assert refused.value.param == "name"


@pytest.mark.parametrize("name", ["a" * 200, "é" * 100, "a:" * 100])
def test_longest_name_has_a_folder_on_any_system(name: str) -> None:
    assert path_fault(f"{folder_of(checked_name(name))}/model.gguf") == ""
