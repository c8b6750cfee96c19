"""One backend under all its names, and locks that nobody waits for in vain."""

from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.worker.commands.exclusive_access import NameLocks, known_names, ordered_names
from remuda.worker.depot.install_spec import InstallSpec
from remuda.worker.depot.layout import Metadata
from remuda.worker.depot.listing import ListedBackend, Listing

BUILD = Metadata(name="cpu-echo", alias="echo-alias")
LISTED = Listing(
    (
        ListedBackend("cpu-echo", Path("b/cpu-echo"), BUILD),
        ListedBackend(
            "echo", Path("b/cpu-echo"), Metadata(name="echo", meta_backend_for="cpu-echo"), meta=True
        ),
        ListedBackend("echo-alias", Path("b/cpu-echo"), BUILD),
        ListedBackend("renamed", Path("b/folder"), Metadata(name="renamed")),
        ListedBackend("whisper", Path("s/whisper"), Metadata(name="whisper"), system=True),
    )
)


@pytest.mark.parametrize("name", ["cpu-echo", "echo", "echo-alias"])
def test_any_name_of_a_backend_gives_all_of_them(name: str) -> None:
    assert known_names(LISTED, name) == {"cpu-echo", "echo", "echo-alias"}


def test_folder_is_a_name_too() -> None:
    assert known_names(LISTED, "renamed") == {"renamed", "folder"}


def test_name_of_nothing_is_its_own() -> None:
    assert known_names(LISTED, "nonesuch") == {"nonesuch"}


def test_order_has_the_names_that_it_will_give() -> None:
    assert ordered_names(InstallSpec("cpu-echo", ("u",), alias="a", meta="echo")) == {"cpu-echo", "a", "echo"}
    assert ordered_names(InstallSpec("x", ("u",))) == {"x"}
    assert ordered_names(None) == set()


@given(st.lists(st.frozensets(st.sampled_from("abcd"), min_size=1), min_size=1, max_size=12))
def test_whoever_shares_a_name_is_never_there_at_once_and_all_have_their_turn(
    wanted: list[frozenset[str]],
) -> None:
    inside: list[frozenset[str]] = []
    turns = 0

    async def visit(locks: NameLocks, names: frozenset[str]) -> None:
        nonlocal turns
        async with locks.held(names):
            assert all(names.isdisjoint(other) for other in inside)
            inside.append(names)
            await anyio.lowlevel.checkpoint()
            inside.remove(names)
            turns += 1

    async def visit_all() -> int:
        locks = NameLocks()
        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                for names in wanted:
                    tasks.start_soon(visit, locks, names)
        return len(locks)

    left = anyio.run(visit_all)

    assert turns == len(wanted)
    assert left == 0
