"""Gallery lists as JSON, and how current a reading is."""

from datetime import timedelta

import pytest

from remuda.core.errors import Invalid
from remuda.gallery.model import Gallery, MachineProfile, Verification, galleries_from_json, galleries_to_json
from tests.unit.gallery.indexes import NOW, gallery, localai_like, unreadable

LIST = (
    '[{"name":"localai","url":"https://index.localai.io/backends",'
    '"mirrors":["github:mudler/LocalAI/backend/index.yaml@master"]},'
    '{"name":"signed","url":"https://signed.example/i.yaml",'
    '"verification":{"issuer":"https://issuer.example","identity_regex":"^ci$","not_before":"2026-01-01T00:00:00Z"}}]'
)


def test_a_list_survives_both_directions_exactly() -> None:
    assert galleries_to_json(galleries_from_json(LIST)) == LIST


def test_empty_fields_are_left_out() -> None:
    assert galleries_to_json((Gallery(name="a", url="b"),)) == '[{"name":"a","url":"b"}]'


def test_an_empty_policy_is_still_a_policy() -> None:
    (read,) = galleries_from_json('[{"name":"a","url":"b","verification":{}}]')

    assert read.verification == Verification()


@pytest.mark.parametrize("text", ["[]", "null", " null "])
def test_no_galleries_can_be_said_in_several_ways(text: str) -> None:
    assert galleries_from_json(text) == ()


def test_unknown_fields_and_nulls_are_skipped() -> None:
    text = '[{"name":"a","url":"b","mirrors":null,"verification":null,"colour":1}]'

    assert galleries_from_json(text) == (Gallery(name="a", url="b"),)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{", "not JSON"),
        ("", "not JSON"),
        ('{"name":"a"}', "list"),
        ('[{"name":"a"}]', r"\[0\]\.url"),
        ('[{"name":"a","url":"b"},{"url":"b"}]', r"\[1\]\.name"),
        ('[{"name":"","url":"b"}]', r"\[0\]\.name"),
        ('[{"name":"a","url":"b","mirrors":"c"}]', r"\[0\]\.mirrors"),
        ('[{"name":"a","url":"b","mirrors":[' + ",".join(['"c"'] * 17) + "]}]", r"\[0\]\.mirrors"),
    ],
)
def test_a_list_that_cannot_be_used_names_the_place(text: str, named: str) -> None:
    with pytest.raises(Invalid, match=named):
        galleries_from_json(text)


@pytest.mark.parametrize(
    ("vendor", "vram", "capability"),
    [
        ("", 0, "default"),
        ("nvidia", 4 << 30, "default"),
        ("nvidia", 8 << 30, "nvidia"),
        ("amd", 8 << 30, "amd"),
    ],
)
def test_without_a_reported_capability_the_gpu_decides(vendor: str, vram: int, capability: str) -> None:
    assert MachineProfile("linux", "amd64", "", vendor, vram).effective_capability == capability


def test_standing_tells_the_age_and_what_is_wrong() -> None:
    offline = localai_like()
    offline = type(offline)(offline.gallery, offline.index, "it cannot be reached", NOW)

    assert localai_like().standing(NOW) == "gallery localai was read just now"
    assert unreadable().standing(NOW) == "gallery localai cannot be used: it cannot be reached"
    assert offline.standing(NOW + timedelta(days=3, hours=1)) == (
        "gallery localai was read 3 days ago; since then it could not be: it cannot be reached"
    )


def test_only_what_ships_with_remuda_is_builtin() -> None:
    assert Gallery(name="remuda", url="builtin:gallery").builtin
    assert not gallery().builtin
