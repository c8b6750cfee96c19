"""What is declared of replicas when a frontend starts."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from remuda.assembly import scheduling_seeds
from remuda.assembly.scheduling_seeds import SchedulingSeeds, seeds_of
from remuda.assembly.settings import FrontendSettings
from remuda.core.errors import Misconfigured, Unavailable
from remuda.core.settings import resolve
from remuda.scheduler.scheduling import ModelScheduling, SchedulingTerms
from remuda.scheduler.scheduling_edits import SchedulingEdits


def by_environment(**environ: str) -> Mapping[str, SchedulingTerms]:
    return seeds_of(resolve(FrontendSettings, flags={}, environ=environ).values)


def test_both_of_localais_variables_are_read_and_the_list_counts_more(tmp_path: Path) -> None:
    file = tmp_path / "scheduling.yaml"
    file.write_text("- model_name: a\n  min_replicas: 1\n- {model_name: b, spread_all: true}\n")
    listed = [{"model_name": "a", "min_replicas": 2, "max_replicas": 3, "node_selector": {"room": "attic"}}]
    assert by_environment(
        LOCALAI_MODEL_SCHEDULING=json.dumps(listed), LOCALAI_MODEL_SCHEDULING_CONFIG=str(file)
    ) == {
        "a": SchedulingTerms(min_replicas=2, max_replicas=3, selector={"room": "attic"}),
        "b": SchedulingTerms(everywhere=True),
    }
    file.write_text("")
    assert by_environment(LOCALAI_MODEL_SCHEDULING_CONFIG=str(file)) == {}
    assert by_environment() == {}


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({"min_replicas": 1}, "entry 2: model_name"),
        ({"model_name": "b", "min_replicas": -1}, "entry 2: min_replicas"),
        ({"model_name": "b", "min_replicas": 3, "max_replicas": 2}, "entry 2: .*max_replicas"),
        ({"model_name": "b", "route_policy": "dice"}, "entry 2: route_policy"),
        ({"model_name": "b", "keep_alive": "soon"}, "entry 2: keep_alive"),
    ],
)
def test_mistakes_are_told_with_the_number_of_the_entry(entry: dict[str, Any], told: str) -> None:
    with pytest.raises(Misconfigured, match=told):
        by_environment(LOCALAI_MODEL_SCHEDULING=json.dumps([{"model_name": "a"}, entry]))


@pytest.mark.parametrize(
    ("text", "told"), [("a: [", "not valid YAML"), ("a: 1", "must be a list"), ("- 1", "entry 1")]
)
def test_files_that_cannot_be_used_are_told(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "scheduling.yaml"
    file.write_text(text)
    with pytest.raises(Misconfigured, match=told):
        by_environment(LOCALAI_MODEL_SCHEDULING_CONFIG=str(file))
    with pytest.raises(Misconfigured, match="No such file"):
        by_environment(LOCALAI_MODEL_SCHEDULING_CONFIG=str(tmp_path / "other.yaml"))


class Stored:
    """Away at first."""

    def __init__(self, **terms: SchedulingTerms) -> None:
        self.terms = dict(terms)
        self.away = 1

    async def scheduling(self) -> Sequence[ModelScheduling]:
        if self.away:
            self.away -= 1
            raise Unavailable("the database is away")
        return [ModelScheduling(model, terms) for model, terms in self.terms.items()]

    async def put_scheduling(self, model: str, terms: SchedulingTerms) -> ModelScheduling:
        self.terms[model] = terms
        return ModelScheduling(model, terms)


async def _nothing() -> None:
    pass


@pytest.mark.anyio
async def test_what_admins_have_declared_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduling_seeds, "_AGAIN_S", 0)
    by_admin, seed = SchedulingTerms(min_replicas=5), SchedulingTerms(min_replicas=1)
    stored = Stored(a=by_admin)
    alias = SimpleNamespace(config=SimpleNamespace(alias="real"))
    catalogue = SimpleNamespace(configured={"nick": alias}, refresh=_nothing)
    table = SimpleNamespace(rows_changed=lambda: None, refresh=_nothing)
    edits = SchedulingEdits(
        cast("Any", stored),
        cast("Any", catalogue),
        cast("Any", None),
        cast("Any", None),
        table=cast("Any", table),
        nodes=cast("Any", None),
    )
    with anyio.fail_after(10):
        await SchedulingSeeds({"a": seed, "b": seed, "nick": seed}, edits).run()
    assert stored.terms == {"a": by_admin, "b": seed, "real": seed}
