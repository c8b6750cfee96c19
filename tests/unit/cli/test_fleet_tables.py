"""What the tables of the fleet's backends show."""

from io import StringIO

from rich.console import Console, RenderableType

from remuda.cli.fleet_tables import (
    age_lines,
    available_table,
    installed_table,
    known_bad,
    some_of,
    upgrade_table,
    wanted_of,
)
from remuda.wire.operations import (
    BackendFits,
    BackendItem,
    BadVersionItem,
    CheckedItem,
    DriftedNode,
    NodeHolding,
    UncheckedItem,
    UpgradeItem,
    UpgradesReply,
)
from tests.unit.cli.ops_views import NOON

NEW, OLD = "sha256:" + "a" * 64, "sha256:" + "b" * 64
OUTPUT = Console(file=StringIO(), width=200, markup=False)


def rows(content: RenderableType) -> list[list[str]]:
    with OUTPUT.capture() as captured:
        OUTPUT.print(content)
    return [line.split() for line in captured.get().splitlines() if line.strip()]


def holding(node: str, digest: str) -> NodeHolding:
    return NodeHolding(node_id=f"id-{node}", node_name=node, version="2.0", digest=digest)


def item(name: str, *nodes: NodeHolding, **facts: object) -> BackendItem:
    given = {"id": f"mine@{name}", "name": name, "gallery": "mine", "nodes": nodes or None, **facts}
    return BackendItem.model_validate(given)


def test_nodes_that_differ_have_a_row_of_their_own() -> None:
    echo = item("echo", holding("attic", NEW), holding("barn", OLD), holding("cellar", NEW))
    drift = UpgradeItem(backend_name="echo", node_drift=(DriftedNode(node_id="id-barn", node_name="barn"),))

    most, other = rows(installed_table([echo], {"echo": drift}, OUTPUT))[1:]

    assert most == ["echo", "2.0", "sha256:aaaaaaaaaaaa", "attic,", "cellar", "-"]
    assert other == ["echo", "2.0", "sha256:bbbbbbbbbbbb", "barn", "differs", "from", "most"]


def test_one_node_against_one_is_no_majority() -> None:
    echo = item("echo", holding("attic", NEW), holding("barn", OLD))
    drift = UpgradeItem(backend_name="echo", node_drift=(DriftedNode(node_id="id-barn", node_name="barn"),))

    assert rows(installed_table([echo], {"echo": drift}, OUTPUT))[2][-3:] == ["differs", "from", "attic"]


def test_backend_that_does_not_start_is_shown_as_such() -> None:
    broken = holding("barn", NEW).model_copy(update={"start_error": "echo did not start: exit code 3"})

    [row] = rows(installed_table([item("echo", holding("attic", NEW), broken)], {}, OUTPUT))[1:]

    assert row[-5:] == ["does", "not", "start", "on", "barn"]


def test_what_is_newer_is_shown_with_what_is_installed() -> None:
    newer = UpgradeItem(backend_name="echo", available_version="3.0")

    assert rows(installed_table([item("echo", holding("attic", NEW))], {"echo": newer}, OUTPUT))[1][-3:] == [
        "3.0",
        "is",
        "available",
    ]


def test_nodes_are_not_offered_what_they_have() -> None:
    listed = item("echo", holding("attic", OLD), holding("shed", OLD), holding("barn", NEW))
    drift = (DriftedNode(node_id="id-barn", node_name="barn"),)
    newer = UpgradeItem(backend_name="echo", available_digest=NEW, node_drift=drift)
    most, barn = rows(installed_table([listed], {"echo": newer}, OUTPUT))[1:]

    assert most[-3:] == [NEW[:19], "is", "available"]
    assert barn[-4:] == ["barn", "differs", "from", "most"]


def test_builds_stand_behind_their_meta_backend_unless_they_are_asked_for() -> None:
    meta = item("llama-cpp", isMeta=True, capabilities={"default": "cpu-llama-cpp"})
    items = [meta, item("cpu-llama-cpp"), item("whisper", description="Speech to text.")]

    assert [one.name for one in wanted_of(items, [], builds=False)] == ["llama-cpp", "whisper"]
    assert [one.name for one in wanted_of(items, ["LLAMA"], builds=True)] == ["llama-cpp", "cpu-llama-cpp"]
    assert [one.name for one in wanted_of(items, ["text", "speech"], builds=False)] == ["whisper"]


def test_the_nodes_that_a_backend_fits_are_named_or_counted() -> None:
    fits = BackendFits(nodes=("a", "b"), backends={"mine@all": ["a", "b"], "mine@some": ["a"]})
    table = rows(available_table([item("all"), item("some"), item("none")], fits, OUTPUT))

    assert [row[2] for row in table[1:]] == ["all", "a", "none"]


def test_galleries_that_were_not_read_are_not_said_to_lack_a_backend() -> None:
    lost = BackendFits(unread=("gallery mine cannot be used: nothing listens there",))

    assert "no gallery has such" in " ".join(rows(available_table([], BackendFits(), OUTPUT))[0])
    assert "no gallery that could be read has" in " ".join(rows(available_table([], lost, OUTPUT))[0])


def test_many_names_are_shortened() -> None:
    assert some_of(["a", "b", "c", "d", "e", "f"]) == "a, b, c, d and 2 more"
    assert some_of([]) == "-"


def test_upgrades_show_what_there_is_and_what_there_could_be() -> None:
    upgrade = UpgradeItem(backend_name="echo", installed_digest=OLD, available_digest=NEW)

    assert rows(upgrade_table([upgrade], OUTPUT))[1] == [
        "echo",
        "sha256:bbbbbbbbbbbb",
        "sha256:aaaaaaaaaaaa",
        "-",
    ]


# How old an answer is.


def checked(source: str, age_s: float) -> CheckedItem:
    return CheckedItem(source=source, checked_at=NOON, age_s=age_s, backends=("echo",))


def test_up_to_date_is_said_with_the_age_of_the_answer() -> None:
    old, also_old = checked("gallery mine", 3 * 3600), checked("registry quay.io", 3 * 3600)
    assert age_lines(UpgradesReply(checked=(checked("gallery mine", 2),))) == [
        "everything is up to date (checked just now)"
    ]
    assert age_lines(UpgradesReply(checked=(old, also_old))) == [
        "everything is up to date (checked 3h ago; ask again with --check)"
    ]
    assert age_lines(UpgradesReply(checked=(old,), upgrades=(UpgradeItem(backend_name="echo"),))) == [
        "checked 3h ago; ask again with --check"
    ]


def test_galleries_and_registries_that_were_asked_at_different_times_are_told_apart() -> None:
    reply = UpgradesReply(checked=(checked("gallery mine", 5), checked("registry quay.io", 7200)))
    assert age_lines(reply) == [
        "everything is up to date",
        "gallery mine: checked just now",
        "registry quay.io: checked 2h ago",
        "ask again with --check",
    ]


def test_nothing_is_called_up_to_date_that_was_not_asked() -> None:
    unasked = UncheckedItem(source="registry quay.io", reason="it was not asked yet", backends=("echo",))
    for reply in (
        UpgradesReply(),
        UpgradesReply(unchecked=(unasked,)),
        UpgradesReply(unchecked=(unasked,), checked=(checked("gallery mine", 9000),)),
    ):
        assert not any("up to date" in line for line in age_lines(reply))


def test_a_version_that_is_not_offered_is_named_with_the_reason_and_the_way_to_try_it() -> None:
    bad = BadVersionItem(
        backend_name="echo", digest=NEW, node_name="attic", failed_at=NOON, reason="exit code 1"
    )
    said = known_bad(bad)
    assert said.startswith("not offered: version sha256:aaaaaaaaaaaa of echo failed to start on attic at ")
    assert said.endswith(": exit code 1; to try it again: remuda backends upgrade --force echo")
    reply = UpgradesReply(checked=(checked("gallery mine", 5),), known_bad=(bad,))
    assert age_lines(reply) == ["nothing else is newer (checked just now)"]
