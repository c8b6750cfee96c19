"""What is sent of a change is enough to get from one look to the next."""

import json

from hypothesis import given
from hypothesis import strategies as st

from remuda.gateway.events.changes import difference, snapshot

ENTITIES = st.dictionaries(st.text(max_size=3), st.integers(0, 3), max_size=5)
LOOKS = st.fixed_dictionaries({"nodes": ENTITIES, "models": ENTITIES})
Look = dict[str, dict[str, int]]


def rendered(look: Look) -> dict[str, dict[str, bytes]]:
    return {
        name: {id: json.dumps({"id": id, "value": value}).encode() for id, value in entities.items()}
        for name, entities in look.items()
    }


def known(data: bytes) -> Look:
    return {name: {one["id"]: one["value"] for one in found} for name, found in json.loads(data).items()}


@given(LOOKS)
def test_a_snapshot_is_everything(look: Look) -> None:
    assert known(snapshot(rendered(look))) == look


@given(LOOKS, LOOKS)
def test_a_change_leads_from_one_look_to_the_next_and_names_no_more(before: Look, after: Look) -> None:
    data = difference(rendered(before), rendered(after))
    assert bool(data) == (before != after)
    changes = json.loads(data or b"{}")
    shown = {name: dict(entities) for name, entities in before.items()}
    for name, changed in changes.items():
        for one in changed.get("set", ()):
            assert shown[name].get(one["id"]) != one["value"]
            shown[name][one["id"]] = one["value"]
        for gone in changed.get("gone", ()):
            del shown[name][gone]
    assert shown == after
