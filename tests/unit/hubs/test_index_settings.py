"""Which package index is used, by the settings of uv and pip."""

from pathlib import Path

import pytest
from pydantic import SecretStr

from remuda.core.errors import Misconfigured
from remuda.hubs.credentials import basic_header
from remuda.hubs.index_settings import DEFAULT_INDEX, configured_indexes


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """Nothing is configured, whatever this machine has."""
    return {
        "HOME": str(tmp_path),
        "XDG_CONFIG_DIRS": str(tmp_path / "system"),
        "UV_CONFIG_FILE": str(tmp_path / "uv.toml"),
        "PIP_CONFIG_FILE": str(tmp_path / "pip.conf"),
    }


def urls(env: dict[str, str]) -> list[str]:
    return [str(index.url) for index in configured_indexes(env)]


def test_without_settings_it_is_the_public_one(env: dict[str, str]) -> None:
    assert urls(env)[-1] == DEFAULT_INDEX


def test_the_environment_counts_more_than_files_and_uv_more_than_pip(
    env: dict[str, str], tmp_path: Path
) -> None:
    order = [
        ("https://a.example/simple", "UV_DEFAULT_INDEX"),
        ("https://b.example/simple", "UV_INDEX_URL"),
        ("https://c.example/simple", "PIP_INDEX_URL"),
    ]
    (tmp_path / "uv.toml").write_text('[[index]]\nurl = "https://d.example/simple"\ndefault = true\n')
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = https://e.example/simple\n")
    env |= {name: url for url, name in order}
    for url, name in order:
        assert urls(env) == [url]
        del env[name]
    assert urls(env) == ["https://d.example/simple"]
    (tmp_path / "uv.toml").unlink()
    assert urls(env) == ["https://e.example/simple"]


def test_further_indexes_are_asked_first(env: dict[str, str]) -> None:
    env |= {
        "UV_INDEX": "mine=https://mine.example/simple",
        "UV_DEFAULT_INDEX": "all=https://all.example/simple",
    }
    assert urls(env) == ["https://mine.example/simple", "https://all.example/simple"]


def test_a_password_in_the_address_is_taken_out_of_it(env: dict[str, str]) -> None:
    env["PIP_INDEX_URL"] = "https://me:p%40ss@index.example/simple"
    (index,) = configured_indexes(env)
    assert str(index.url) == "https://index.example/simple"
    assert index.authorization == basic_header("me", SecretStr("p@ss"))
    assert "p@ss" not in repr(index)


def test_what_cannot_be_used_is_told_without_the_address(env: dict[str, str]) -> None:
    env["PIP_INDEX_URL"] = "ftp://me:hunter2@index.example"
    with pytest.raises(Misconfigured, match="is not an http") as refused:
        configured_indexes(env)
    assert "hunter2" not in str(refused.value)
    with pytest.raises(Misconfigured, match="PIP_NO_INDEX"):
        configured_indexes({**env, "PIP_NO_INDEX": "1"})


def test_a_file_that_cannot_be_read_is_passed_over(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "uv.toml").write_text("no toml")
    (tmp_path / "pip.conf").write_text("no ini")
    assert urls(env)[-1] == DEFAULT_INDEX
