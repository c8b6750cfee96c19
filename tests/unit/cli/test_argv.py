"""Secrets given as arguments leave the process list."""

import pytest

from remuda.cli.argv import split_secrets

SECRETS = {"--token": "REMUDA_REGISTRATION_TOKEN", "--nats-user-seed": "REMUDA_NATS_USER_SEED"}


@pytest.mark.parametrize(
    ("arguments", "kept", "moved"),
    [
        (["join", "URL"], ["join", "URL"], {}),
        (["join", "--token", "s3", "URL"], ["join", "URL"], {"REMUDA_REGISTRATION_TOKEN": "s3"}),
        (["join", "--token=s=3", "URL"], ["join", "URL"], {"REMUDA_REGISTRATION_TOKEN": "s=3"}),
        (["--token", "a", "--token", "b"], [], {"REMUDA_REGISTRATION_TOKEN": "b"}),
        (
            ["--token", "a", "--nats-user-seed", "b"],
            [],
            {"REMUDA_REGISTRATION_TOKEN": "a", "REMUDA_NATS_USER_SEED": "b"},
        ),
        (["--token-file", "path"], ["--token-file", "path"], {}),
    ],
)
def test_secrets_are_told_from_other_arguments(
    arguments: list[str], kept: list[str], moved: dict[str, str]
) -> None:
    assert split_secrets(arguments, SECRETS) == (kept, moved)


def test_a_dash_stays_because_it_asks() -> None:
    assert split_secrets(["--token", "-"], SECRETS) == (["--token", "-"], {})


def test_a_flag_without_a_value_stays_for_the_parser_to_refuse() -> None:
    assert split_secrets(["join", "--token"], SECRETS) == (["join", "--token"], {})


def test_nothing_after_two_dashes_is_an_option() -> None:
    assert split_secrets(["--", "--token", "x"], SECRETS) == (["--", "--token", "x"], {})
