"""Models edited, renamed, exported and imported by commands, on a real frontend."""

import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from click.testing import Result

from remuda.cli.exits import Exit
from remuda.host.folder import DataFolder, read_json
from tests.integration.cli.conftest import LiveFrontend, frontend_in
from tests.support.models import tiny_model
from tests.support.plain_http import PLAIN
from tests.support.waiting import wait_until_blocking

TEXT = "# Ours.\nname: {name}\nbackend: echo\nspice: hot  # Unknown here.\n"


@pytest.fixture(scope="module")
def frontend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveFrontend]:
    """With a model that a file describes from the start."""
    data_dir = tmp_path_factory.mktemp("frontend")
    (data_dir / "models").mkdir()
    (data_dir / "models" / "followed.yaml").write_text(TEXT.format(name="followed"))
    with frontend_in(data_dir) as live:
        yield live


@pytest.fixture(autouse=True)
def _kept_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an edit leaves for its author is not left on the machine that runs the tests."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture
def model(frontend: LiveFrontend, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """One of its own for each test."""
    name = f"m{abs(hash(request.node.name)) % 10**8}"
    (tmp_path / "own.yaml").write_text(TEXT.format(name=name))
    done = frontend.remuda("models", "add", str(tmp_path / "own.yaml"))
    assert done.exit_code == 0, done.output
    return name


def text_of(frontend: LiveFrontend, name: str) -> str:
    done = frontend.remuda("models", "export", name)
    assert done.exit_code == 0, done.output
    return done.stdout


def edited(frontend: LiveFrontend, name: str, script: str, tmp_path: Path) -> Result:
    """`script` is the person at the editor: shell commands that change "$1"."""
    file = tmp_path / "editor.sh"
    file.write_text(f"cd {tmp_path}\n{script}\n")
    return frontend.remuda("models", "edit", name, VISUAL="", EDITOR=f"sh {file}")


def api(
    frontend: LiveFrontend, method: str, path: str, body: object = None, **headers: str
) -> httpx.Response:
    key = read_json(DataFolder(frontend.data_dir).endpoint)["api_key"]
    return httpx.request(
        method,
        f"{frontend.url}/api/{path}",
        json=body,
        headers={"Authorization": f"Bearer {key}", **headers},
        verify=PLAIN,
    )


# Edited.


def test_what_is_written_in_the_editor_is_in_force(
    frontend: LiveFrontend, model: str, tmp_path: Path
) -> None:
    done = edited(frontend, model, 'echo "f16: true" >> "$1"', tmp_path)

    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(f"{model}: changed")
    assert text_of(frontend, model) == TEXT.format(name=model) + "f16: true\n"


def test_nothing_changed_is_said(frontend: LiveFrontend, model: str, tmp_path: Path) -> None:
    done = edited(frontend, model, ":", tmp_path)

    assert (done.exit_code, done.stdout) == (0, f"{model}: nothing changed\n")


def test_after_an_error_the_editor_opens_again_with_the_message(
    frontend: LiveFrontend, model: str, tmp_path: Path
) -> None:
    script = """\
if [ -e again ]; then cp "$1" seen; sed -i s/many/4/ "$1"
else touch again; echo "threads: many" >> "$1"; fi"""

    done = edited(frontend, model, script, tmp_path)

    assert done.exit_code == 0, done.output
    assert (tmp_path / "seen").read_text() == (
        "#! The model was not changed:\n#! line 7: threads: must be a whole number, not 'many'\n"
        + TEXT.format(name=model)
        + "threads: many\n"
    )
    assert text_of(frontend, model) == TEXT.format(name=model) + "threads: 4\n"


def test_an_error_that_is_left_as_it_is_ends_the_edit_and_loses_nothing(
    frontend: LiveFrontend, model: str, tmp_path: Path
) -> None:
    done = edited(frontend, model, 'grep -q many "$1" || echo "threads: many" >> "$1"', tmp_path)

    assert done.exit_code == Exit.REJECTED
    assert "nothing was changed: line 5: threads: must be a whole number" in done.stderr
    kept = re.search(r"what you wrote is in (/\S+\.yaml)", " ".join(done.stderr.split()))
    assert kept is not None
    assert "threads: many" in Path(kept[1]).read_text()
    assert text_of(frontend, model) == TEXT.format(name=model)


def test_who_edits_at_the_same_time_overwrites_nothing_unseen(
    frontend: LiveFrontend, model: str, tmp_path: Path
) -> None:
    theirs = tmp_path / "theirs.yaml"
    theirs.write_text(TEXT.format(name=model) + "numa: true\n")
    url = f"{frontend.url}/api/models/{model}/config"
    key = read_json(DataFolder(frontend.data_dir).endpoint)["api_key"]
    body = json.dumps({"config": theirs.read_text()})
    (tmp_path / "body.json").write_text(body)
    script = f"""\
if [ -e again ]; then cp "$1" seen; cp "$(dirname "$1")/theirs.yaml" read; echo "numa: true" >> "$1"
else touch again; echo "f16: true" >> "$1"
curl -sf -X PUT -H "Authorization: Bearer {key}" -H "If-Match: *" -d @body.json {url} > put.json; fi"""

    done = edited(frontend, model, script, tmp_path)

    assert done.exit_code == 0, done.output
    assert f"{model} was changed by another person meanwhile" in (tmp_path / "seen").read_text()
    assert (tmp_path / "read").read_text() == theirs.read_text()
    assert text_of(frontend, model) == TEXT.format(name=model) + "f16: true\nnuma: true\n"


def test_an_editor_that_fails_changes_nothing(frontend: LiveFrontend, model: str, tmp_path: Path) -> None:
    done = edited(frontend, model, 'echo "f16: true" >> "$1"; exit 3', tmp_path)

    assert done.exit_code == Exit.REJECTED
    assert "the editor sh ended with status 3" in done.stderr
    assert text_of(frontend, model) == TEXT.format(name=model)


def test_what_an_editor_leaves_when_it_fails_is_kept(
    frontend: LiveFrontend, model: str, tmp_path: Path
) -> None:
    for script in ('echo "numa: true" >> "$1"; exit 1', r'printf "numa: \377\n" >> "$1"'):
        done = edited(frontend, model, script, tmp_path)
        kept = re.search(r"what you wrote is in (/\S+\.yaml)", " ".join(done.stderr.split()))
        assert (done.exit_code, kept is None) == (Exit.REJECTED, False)
        assert kept is not None
        assert b"numa: " in Path(kept[1]).read_bytes()


def test_line_ends_stay_as_they_are(frontend: LiveFrontend, tmp_path: Path) -> None:
    file, text = tmp_path / "crlf.yaml", b"name: crlf\r\nbackend: echo\r\n"
    file.write_bytes(b"\xef\xbb\xbf" + text)
    assert frontend.remuda("models", "import", str(file)).exit_code == 0

    assert edited(frontend, "crlf", ":", tmp_path).stdout == "crlf: nothing changed\n"
    assert frontend.remuda("models", "edit", "crlf", "--set", "backend=llama-cpp").exit_code != 0
    assert edited(frontend, "crlf", "printf 'f16: true\\r\\n' >> \"$1\"", tmp_path).exit_code == 0
    assert api(frontend, "GET", "models/crlf/config").json()["config"].encode() == text + b"f16: true\r\n"


def test_keys_are_set_without_an_editor(frontend: LiveFrontend, model: str) -> None:
    done = frontend.remuda("models", "edit", model, "--set", "parameters.seed=7", "--set", "spice=null")

    assert done.exit_code == 0, done.output
    assert text_of(frontend, model) == f"# Ours.\nname: {model}\nbackend: echo\nparameters:\n  seed: 7\n"
    refused = frontend.remuda("models", "edit", model, "--set", "threads=many")
    assert "line 6: threads: must be a whole number, not 'many'" in refused.stderr


def test_a_file_replaces_the_whole_text(frontend: LiveFrontend, model: str, tmp_path: Path) -> None:
    file = tmp_path / "new.yaml"
    file.write_text(f"name: {model}\nbackend: echo\nf16: perhaps\n")
    refused = frontend.remuda("models", "edit", model, "--file", str(file))
    assert f"{file}, line 3: f16: must be true or false, not 'perhaps'" in refused.stderr

    file.write_text(f"name: {model}\nbackend: echo\n")
    assert frontend.remuda("models", "edit", model, "--file", str(file)).exit_code == 0
    assert text_of(frontend, model) == file.read_text()


# By the API.


def test_a_change_names_the_text_it_was_made_to(frontend: LiveFrontend, model: str) -> None:
    path = f"models/{model}/config"
    seen = api(frontend, "GET", path)
    etag, text = seen.headers["etag"], seen.json()["config"]
    assert etag == f'"{seen.json()["etag"]}"'

    assert api(frontend, "PUT", path, {"config": text}).status_code == 400, "If-Match is missing"
    mine = api(frontend, "PATCH", path, {"set": {"f16": True}}, **{"If-Match": etag})
    assert mine.status_code == 200
    assert mine.headers["etag"] != etag
    late = api(frontend, "PUT", path, {"config": text + "numa: true\n"}, **{"If-Match": etag})
    assert late.status_code == 409
    assert late.json()["current"]["config"] == text + "f16: true\n"
    assert late.json()["current"]["etag"] == mine.headers["etag"].strip('"')
    assert late.json()["yours"] == text + "numa: true\n"
    assert late.json()["error"]["reason"] == "conflict"


# Renamed.


def test_keys_follow_a_renamed_model_at_once(frontend: LiveFrontend, model: str) -> None:
    made = api(frontend, "POST", "keys", {"name": f"key-{model}", "models": [model]}).json()

    done = frontend.remuda("models", "rename", model, f"{model}-new")

    assert done.exit_code == 0, done.output
    assert done.stdout == f"{model}: renamed to {model}-new\nAPI keys that follow: key-{model}\n"
    listed = {key["name"]: key.get("models") for key in api(frontend, "GET", "keys").json()}
    assert listed[made["name"]] == [f"{model}-new"]
    assert frontend.remuda("models", "rename", model, "other").exit_code == Exit.NOT_FOUND


# Exported and imported.


def test_what_the_frontend_finds_in_a_file_is_said_with_the_files_name(
    frontend: LiveFrontend, tmp_path: Path
) -> None:
    file = tmp_path / "evil.yaml"
    file.write_text("backend: echo\nname: a/../b\n")
    for command in ("add", "import"):
        refused = frontend.remuda("models", command, str(file))
        assert f"{file}, line 2: name: 'a/../b' cannot be the name of a file" in refused.stderr


def test_a_dash_for_the_folder_means_standard_output(
    frontend: LiveFrontend, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = frontend.remuda("models", "export", model, "-o", "-")
    assert (done.exit_code, done.stdout) == (0, text_of(frontend, model))
    several = frontend.remuda("models", "export", "-o", "-")
    assert several.exit_code == Exit.MISUSED
    assert "standard output takes one model" in several.stderr
    assert not (tmp_path / "-").exists()


def test_what_is_exported_is_imported_byte_for_byte(
    frontend: LiveFrontend, model: str, tmp_path: Path
) -> None:
    done = frontend.remuda("models", "export", model, "-o", str(tmp_path / "out"))
    assert done.exit_code == 0, done.output
    file = tmp_path / "out" / f"{model}.yaml"
    assert file.read_text() == TEXT.format(name=model)
    frontend.remuda("models", "remove", model)

    done = frontend.remuda("models", "import", str(tmp_path / "out"))

    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(f"{model}: added")
    assert text_of(frontend, model) == file.read_text()
    file.write_text("changed")
    kept = frontend.remuda("models", "export", model, "-o", str(tmp_path / "out"))
    assert (kept.exit_code, file.read_text()) == (Exit.REJECTED, "changed")


def test_aliases_are_imported_after_their_models(frontend: LiveFrontend, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("name: second-name\nalias: its-model\n")
    (tmp_path / "b.yaml").write_text("name: its-model\nbackend: echo\n")

    done = frontend.remuda("models", "import", str(tmp_path))

    assert done.exit_code == 0, done.output
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == ["its-model", "second-name"]


def test_one_bad_file_imports_none(frontend: LiveFrontend, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("name: never-there\nbackend: echo\n")
    (tmp_path / "b.yaml").write_text("name: b\nf16: perhaps\n")

    done = frontend.remuda("models", "import", str(tmp_path))

    assert done.exit_code == Exit.REJECTED
    assert f"{tmp_path / 'b.yaml'}, line 2: f16: must be true or false" in done.stderr
    assert frontend.remuda("models", "export", "never-there").exit_code == Exit.NOT_FOUND


def test_a_model_of_the_followed_folder_is_taken_over_with_its_file(
    frontend: LiveFrontend, tmp_path: Path
) -> None:
    folder = frontend.data_dir / "models"
    file = folder / "followed.yaml"
    wait_until_blocking(lambda: api(frontend, "GET", "models/followed").status_code == 200)

    refused = edited(frontend, "followed", 'echo "f16: true" >> "$1"', tmp_path)
    assert refused.exit_code == Exit.REJECTED
    assert (
        f"described by the file followed.yaml in the models folder on {os.uname().nodename}" in refused.stderr
    )
    assert frontend.remuda("models", "rename", "followed", "x").exit_code == Exit.REJECTED
    done = frontend.remuda("models", "import", str(file), "--json")

    assert done.exit_code == 0, done.output
    [told] = json.loads(done.stdout)["models"]
    assert told["set_aside"] == f"{file}.imported"
    assert sorted(one.name for one in folder.glob("followed*")) == ["followed.yaml.imported"]
    assert frontend.remuda("models", "edit", "followed", "--set", "f16=true").exit_code == 0


# Shown.


def test_a_model_is_shown_with_what_its_file_says(frontend: LiveFrontend) -> None:
    done = frontend.remuda("models", "add", str(tiny_model()), "--name", "shown")
    assert done.exit_code == 0, done.output

    lines = {
        line[:14].strip(): line[15:]
        for line in frontend.remuda("models", "show", "shown").stdout.splitlines()
    }

    assert lines["format"] == "gguf"
    assert lines["architecture"] == "llama"
    assert lines["configured in"] == "the store; change it with `remuda models edit`"
    assert {"parameters", "trained for", "chat template", "memory", "size", "replica"} <= lines.keys()
    told = json.loads(frontend.remuda("models", "show", "shown", "--json").stdout)
    assert told["details"]["parameters"] > 0
    assert "details" not in api(frontend, "GET", "models").json()["models"][0]


def test_models_of_the_galleries_are_searched_and_shown(frontend: LiveFrontend) -> None:
    found = frontend.remuda("models", "search", "reranks", "or", "ranks")
    assert (found.exit_code, found.stdout.split()[:2]) == (0, ["no", "gallery"])
    listed = json.loads(frontend.remuda("models", "search", "qwen3", "--json").stdout)
    assert [one["name"] for one in listed["models"]][:2] == ["qwen3-0.6b", "qwen3-1.7b"]
    assert listed["total"] == len(listed["models"])

    done = frontend.remuda("models", "show", "llama3.2:1b")

    assert done.exit_code == 0, done.output
    assert "llama-3.2-1b-instruct" in done.stdout.splitlines()[0]
    assert "hf://bartowski/Llama-3.2-1B-Instruct-GGUF" in done.stdout
    assert "remuda; not installed" in done.stdout
    assert (
        frontend.remuda("models", "search", "qwen3", "--limit", "1")
        .stdout.splitlines()[-1]
        .startswith("4 more")
    )


def test_a_model_that_is_nowhere_is_said_to_be(frontend: LiveFrontend) -> None:
    nowhere = frontend.remuda("models", "show", "llama4.2")

    assert nowhere.exit_code == Exit.NOT_FOUND
    assert "there is no model 'llama4.2', and no gallery has one of this name" in nowhere.stderr
    assert "did you mean llama3.2" in nowhere.stderr
