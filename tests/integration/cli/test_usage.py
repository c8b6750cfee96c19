"""`remuda usage` against a real frontend."""

import json

import pytest

from remuda.cli.exits import Exit
from tests.integration.cli.conftest import LiveFrontend


def test_nothing_used_is_said_in_words(frontend: LiveFrontend) -> None:
    told = frontend.remuda("usage", "--since", "2026-03-01", "--until", "2026-03-02", "--model", "nosuch")
    assert told.stdout == "nothing was used from 2026-03-01 to 2026-03-02\n"


def test_a_key_that_does_not_exist_is_told(frontend: LiveFrontend) -> None:
    told = frontend.remuda("usage", "--key", "nosuch")
    assert (told.exit_code, "there is no key 'nosuch'" in told.stderr) == (Exit.NOT_FOUND, True)


def test_json_and_csv_are_the_apis(frontend: LiveFrontend) -> None:
    view = json.loads(frontend.remuda("usage", "--since", "7d", "--by", "day", "--json").stdout)
    assert view["total"]["requests"] >= 0
    header = frontend.remuda("usage", "--since", "today", "--by", "day,key", "--csv").stdout.splitlines()[0]
    assert header == "day,key,requests,failed,prompt_tokens,completion_tokens,cost"


@pytest.mark.parametrize("asked", [("--since", "soon"), ("--csv", "--json")])
def test_what_makes_no_sense_is_refused(frontend: LiveFrontend, asked: tuple[str, ...]) -> None:
    assert frontend.remuda("usage", *asked).exit_code == Exit.MISUSED
