"""`remuda keys`, and doctor's view, against a real frontend."""

import json

from remuda.cli.exits import Exit
from tests.integration.cli.conftest import LiveFrontend


def names(frontend: LiveFrontend) -> set[str]:
    return {key["name"] for key in json.loads(frontend.remuda("keys", "--json").stdout)["keys"]}


def test_a_key_is_shown_once_and_alone_on_standard_output(frontend: LiveFrontend) -> None:
    made = frontend.remuda("keys", "create", "laptop")

    secret = made.stdout.strip()
    assert secret.startswith("rmd_")
    assert "cannot be shown again" in made.stderr
    listed = frontend.remuda("keys").stdout
    assert secret not in listed
    assert ["laptop", "inference", "active", "all", "none", "never", "never", secret[:8]] in [
        line.split()[:8] for line in listed.splitlines()
    ]


def test_a_key_for_a_model_is_for_inference_with_it_alone(frontend: LiveFrontend) -> None:
    made = json.loads(frontend.remuda("keys", "create", "app", "--model", "qwen", "--json").stdout)

    assert (made["scope"], made["models"]) == ("inference", ["qwen"])


def test_a_key_for_a_model_that_is_not_there_is_made_with_a_warning(frontend: LiveFrontend) -> None:
    made = frontend.remuda("keys", "create", "early", "--model", "nosuch")

    assert made.stdout.startswith("rmd_")
    assert "warning: there is no model 'nosuch' now" in made.stderr


def test_an_admins_key_is_for_no_model_alone(frontend: LiveFrontend) -> None:
    refused = frontend.remuda("keys", "create", "app", "--scope", "admin", "--model", "qwen")

    assert refused.exit_code == Exit.MISUSED


def test_a_name_is_given_once(frontend: LiveFrontend) -> None:
    frontend.remuda("keys", "create", "twice")

    again = frontend.remuda("keys", "create", "twice", "--json")

    assert again.exit_code == Exit.REJECTED
    assert json.loads(again.stderr)["error"]["code"] == "conflict"


def test_a_key_is_revoked_by_name_or_id(frontend: LiveFrontend) -> None:
    frontend.remuda("keys", "create", "by-name")
    by_id = json.loads(frontend.remuda("keys", "create", "by-id", "--json").stdout)["id"]

    assert frontend.remuda("keys", "revoke", "by-name").stdout == "by-name: revoked\n"
    assert frontend.remuda("keys", "revoke", by_id).exit_code == Exit.DONE
    assert names(frontend).isdisjoint({"by-name", "by-id"})


def test_a_keys_limits_are_set_shown_and_taken_away(frontend: LiveFrontend) -> None:
    options = ("--requests-per-minute", "60", "--tokens-per-day", "2M", "--expires", "30d", "--weight", "3")
    frontend.remuda("keys", "create", "website", *options)

    shown = frontend.remuda("keys", "show", "website").stdout
    assert "60 requests per minute; 2,000,000 tokens per day" in shown
    assert "60 req/min, 2M tok/day" in frontend.remuda("keys").stdout

    changed = frontend.remuda(
        "keys", "edit", "website", "--requests-per-minute", "none", "--expires", "never"
    )
    assert changed.stdout == "website: changed\n"
    kept = json.loads(frontend.remuda("keys", "show", "website", "--json").stdout)
    assert (kept["tokens_per_day"], kept["weight"]) == (2_000_000, 3)
    assert kept.keys().isdisjoint({"requests_per_minute", "expires_at"})


def test_a_key_is_paused_and_resumed(frontend: LiveFrontend) -> None:
    secret = frontend.remuda("keys", "create", "nap", "--scope", "admin").stdout.strip()

    def status() -> int:
        asked = {"REMUDA_URL": frontend.url, "REMUDA_API_KEY": secret, "REMUDA_DATA_DIR": "/nowhere"}
        return frontend.remuda("nodes", **asked).exit_code

    paused = frontend.remuda("keys", "pause", "nap")
    assert paused.stdout == "nap: paused; it works again after: remuda keys resume nap\n"
    assert frontend.remuda("keys", "show", "nap").stdout.count("paused") == 1
    assert frontend.remuda("keys", "resume", "nap").stdout == "nap: resumed\n"
    assert status() == Exit.DONE


def test_limits_that_are_none_are_misused(frontend: LiveFrontend) -> None:
    for wrong in (
        ("--requests-per-minute", "0"),
        ("--tokens-per-day", "lots"),
        ("--tokens-per-day", "1.5"),
        ("--expires", "soon"),
        ("--weight", "0"),
    ):
        assert frontend.remuda("keys", "create", "wrong", *wrong).exit_code == Exit.MISUSED
    assert frontend.remuda("keys", "edit", "wrong").exit_code == Exit.MISUSED
    assert frontend.remuda("keys", "create", "late", "--expires", "2001-01-01").exit_code == Exit.REJECTED
    assert names(frontend).isdisjoint({"wrong", "late"})


def test_an_unknown_key_is_not_found(frontend: LiveFrontend) -> None:
    assert frontend.remuda("keys", "revoke", "nobody").exit_code == Exit.NOT_FOUND


def test_a_frontend_that_is_named_is_asked_with_the_key_that_is_given(frontend: LiveFrontend) -> None:
    key = frontend.remuda("keys", "create", "remote", "--scope", "admin").stdout.strip()

    result = frontend.remuda("keys", REMUDA_URL=frontend.url, REMUDA_API_KEY=key, REMUDA_DATA_DIR="/nowhere")

    assert result.exit_code == Exit.DONE, result.output


def test_a_frontend_that_is_not_there_has_its_exit_code(frontend: LiveFrontend) -> None:
    assert frontend.remuda("keys", "--url", "http://127.0.0.1:9").exit_code == Exit.UNREACHABLE


def test_doctor_finds_a_running_frontend_well(frontend: LiveFrontend) -> None:
    result = frontend.remuda("doctor", "--json")

    document = json.loads(result.stdout)
    levels = {finding["check"]: finding["level"] for finding in document["findings"]}
    assert result.exit_code == Exit.DONE, document
    assert {levels[check] for check in ("frontend", "store", "bus", "clock", "versions")} == {"ok"}
