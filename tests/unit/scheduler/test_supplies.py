"""Which nodes have a backend, which could get it, and why the others could not."""

from remuda.scheduler.supplies import supplies
from tests.unit.ops.fleet import READINGS, a_node, artifact


def test_node_that_has_the_build_for_its_hardware_has_the_backend() -> None:
    node = a_node("gpu-1", artifact("cpu-llama-cpp", alias="llama-cpp"))
    [supply] = supplies("llama-cpp", [node], READINGS).values()
    assert (supply.has, supply.why_not) == (True, "")


def test_node_without_it_gets_it_from_the_galleries() -> None:
    [supply] = supplies("llama-cpp", [a_node()], READINGS).values()
    assert (supply.has, supply.why_not) == (False, "")
    assert "example.org/index.yaml" in supply.galleries


def test_node_whose_hardware_has_no_build_says_so() -> None:
    found = supplies("vllm", [a_node("cpu-1"), a_node("gpu-1", capability="nvidia")], READINGS)
    assert found[a_node("cpu-1").standing.node.id].why_not
    assert found[a_node("gpu-1").standing.node.id].why_not == ""


def test_backend_that_no_gallery_has_is_missing_everywhere_but_where_it_is() -> None:
    has, lacks = a_node("has-it", artifact("private")), a_node("lacks-it")
    found = supplies("private", [has, lacks], READINGS)
    assert found[has.standing.node.id].why_not == ""
    assert "private" in found[lacks.standing.node.id].why_not


def test_without_galleries_only_what_is_there_counts() -> None:
    has, lacks = a_node("has-it", artifact("cpu-llama-cpp", alias="llama-cpp")), a_node("lacks-it")
    found = supplies("llama-cpp", [has, lacks], ())
    assert (found[has.standing.node.id].has, found[lacks.standing.node.id].has) == (True, False)
    assert found[lacks.standing.node.id].why_not


def test_model_that_names_no_backend_is_installed_nowhere() -> None:
    """D1 row 01: an install without a name was sent every half minute."""
    [supply] = supplies("", [a_node("gpu-1", artifact("echo"))], READINGS).values()
    assert not supply.has
    assert supply.why_not.startswith("the model names no backend")


def test_node_that_waits_for_approval_is_not_considered() -> None:
    assert supplies("llama-cpp", [a_node(approved=False)], READINGS) == {}
