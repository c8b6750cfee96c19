"""`remuda models` and `remuda chat`: what becomes of files, and what people are shown."""

import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import ClassVar

import pytest
from click.testing import CliRunner
from rich.console import Console

from remuda.cli import model_arguments, model_installs, models, ops_wait
from remuda.cli.chat import ChatReply, _about, _pieces
from remuda.cli.client import AdminClient, ApiAnswer
from remuda.cli.invocation import ClientOptions
from remuda.cli.model_arguments import added_line
from remuda.cli.model_files import local_model, models_folder
from remuda.cli.model_tables import model_table, replica_table, size
from remuda.cli.target import Target
from remuda.cli.verbs import root
from remuda.core.errors import Conflict, Invalid, NotFound, PeerFailed
from remuda.host.folder import DataFolder, write_json
from remuda.models.reading import read_model
from remuda.wire.codec import encode
from remuda.wire.model_galleries import GalleryModelView
from remuda.wire.operations import OpSubmitted, OpView, OpViews, RollOutView
from remuda.wire.serving import (
    ModelAdded,
    ModelItem,
    ModelItems,
    ModelLoaded,
    ModelOps,
    ModelThere,
    ReplicaView,
    UnusableModel,
)
from tests.support.models import tiny_model
from tests.unit.cli.ops_views import an_op

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def asked(tmp_path: Path) -> ClientOptions:
    return ClientOptions(data_dir=str(tmp_path / "data"))


def models_of(asked: ClientOptions) -> Path:
    assert asked.data_dir is not None
    return Path(asked.data_dir) / "models"


def shown(table: object) -> str:
    output = Console(width=200, file=StringIO())
    output.print(table)
    assert isinstance(output.file, StringIO)
    return output.file.getvalue()


def model_text(file: Path, name: str | None, context: int | None, options: ClientOptions) -> str:
    return local_model(file, name, context, models_folder(options, os.environ)).text


def test_gguf_file_alone_becomes_a_model_and_lies_where_models_are(
    tmp_path: Path, asked: ClientOptions
) -> None:
    file = tmp_path / "Tiny-Test.Q4_1.gguf"
    os.link(tiny_model(), file)
    config = read_model(model_text(file, None, None, asked))

    assert config.backend == "llama-cpp"
    assert config.file == file.name
    assert (models_of(asked) / file.name).samefile(file), "linked, for models are large"


def test_file_is_not_kept_here_for_a_frontend_that_is_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, data = tmp_path / "tiny.gguf", DataFolder(tmp_path / "own")
    os.link(tiny_model(), file)
    monkeypatch.setattr("remuda.cli.model_files.data_folder", lambda flags, environ: data)
    monkeypatch.delenv("REMUDA_DATA_DIR", raising=False)
    elsewhere = ClientOptions(url="http://192.0.2.7:8080")
    assert models_folder(elsewhere, {}) is None, "it has to be uploaded"

    write_json(data.joined, {"register_to": "http://192.0.2.7:8080"})
    model_text(file, None, None, elsewhere)
    assert (data.models / file.name).exists(), "this machine is one of its nodes"
    write_json(data.joined, {})
    write_json(data.endpoint, {"port": 8090})
    model_text(file, None, None, ClientOptions(url="http://localhost:8090"))
    other_port = ClientOptions(url="http://localhost:8091")
    assert models_folder(other_port, {}) is None, "it has another data folder"


def test_a_models_folder_that_does_not_exist_is_not_made(tmp_path: Path, asked: ClientOptions) -> None:
    """It is a typo, or a disk that is not mounted."""
    assert asked.data_dir is not None
    missing = tmp_path / "modles"
    write_json(DataFolder(Path(asked.data_dir)).endpoint, {"models": str(missing)})
    with pytest.raises(Invalid, match=f"the models folder {missing} does not exist"):
        model_text(tiny_model(), None, None, asked)
    assert not missing.exists()


def test_files_that_cannot_be_used_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = UnusableModel(source="/models/a.yaml", reason="line 1: it is not YAML")
    told = ApiAnswer(200, encode(ModelItems(unusable=(wrong,))), NOON)
    monkeypatch.setattr(AdminClient, "get", lambda self, *path, **query: told)
    result = CliRunner().invoke(root, ["models", "--url", "http://127.0.0.1:1"])
    assert "/models/a.yaml cannot be used: line 1: it is not YAML" in result.stdout


def test_name_and_context_can_be_given(tmp_path: Path, asked: ClientOptions) -> None:
    config = read_model(model_text(tiny_model(), "mine", 512, asked))
    assert (config.id, config.context_size) == ("mine", 512)


def test_adding_the_same_file_or_a_copy_of_it_again_is_no_trouble(
    tmp_path: Path, asked: ClientOptions
) -> None:
    model_text(tiny_model(), None, None, asked)
    model_text(tiny_model(), None, None, asked)
    copy = tmp_path / tiny_model().name
    copy.write_bytes(tiny_model().read_bytes())

    assert read_model(model_text(copy, None, None, asked)).file == copy.name


def test_a_model_that_the_frontend_refuses_leaves_no_file_behind(
    tmp_path: Path, asked: ClientOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was there before stays."""

    def refuse(self: AdminClient, *words: object, **more: object) -> ApiAnswer:
        raise Conflict("there is a model of this name")

    monkeypatch.setattr(AdminClient, "call", refuse)
    file = tmp_path / "Other.gguf"
    file.write_bytes(tiny_model().read_bytes())
    for there in (False, True):
        if there:
            models_of(asked).mkdir(parents=True, exist_ok=True)
            os.link(file, models_of(asked) / file.name)
        words = ["models", "add", str(file), "--data-dir", str(asked.data_dir)]
        write_json(
            DataFolder(Path(str(asked.data_dir))).endpoint, {"url": "http://127.0.0.1:1", "pid": os.getpid()}
        )
        result = CliRunner().invoke(root, words)
        assert "there is a model of this name" in result.stderr
        assert (models_of(asked) / file.name).exists() is there


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nosuchname"], "hint: for a model by its name: remuda models install nosuchname"),
        (["qwen3:8b"], "hint: for a model by its name: remuda models install qwen3:8b"),
        ([str(tiny_model()), "--upload", "--name", "a/../b"], "cannot be the name of a file"),
    ],
)
def test_what_cannot_be_added_is_said_before_anything_is_sent(words: list[str], said: str) -> None:
    result = CliRunner().invoke(root, ["models", "add", *words, "--url", "http://127.0.0.1:1"])
    assert result.exit_code == 6
    assert said in result.stderr


def test_a_file_that_differs_in_its_middle_is_another_one(tmp_path: Path, asked: ClientOptions) -> None:
    """Also where its size, its beginning and its end are the same."""
    content = tiny_model().read_bytes() + bytes(3 << 20)
    first, second = tmp_path / "a" / "m.gguf", tmp_path / "b" / "m.gguf"
    for file, middle in ((first, b"one"), (second, b"two")):
        file.parent.mkdir()
        at = len(content) // 2
        file.write_bytes(content[:at] + middle + content[at + 3 :])
    model_text(first, None, None, asked)
    with pytest.raises(Invalid, match="exists and is a different file"):
        model_text(second, None, None, asked)


def test_files_that_are_something_else_are_named_for_what_they_are(
    tmp_path: Path, asked: ClientOptions
) -> None:
    page, renamed = tmp_path / "page.gguf", tmp_path / "model.bin"
    page.write_bytes(b"<!DOCTYPE html><html><body>Please log in</body></html>")
    with pytest.raises(Invalid, match=r"web page, not a GGUF file .*download it again"):
        model_text(page, None, None, asked)
    renamed.write_bytes(tiny_model().read_bytes())
    with pytest.raises(Invalid, match=r"model\.bin is a GGUF file.*rename it to end in \.gguf"):
        model_text(renamed, None, None, asked)


def test_a_name_that_is_refused_is_that_of_the_option(
    tmp_path: Path, asked: ClientOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: AdminClient, *words: object, **more: object) -> ApiAnswer:
        raise Invalid("line 1: name: '../evil' cannot be the name of a file")

    monkeypatch.setattr(AdminClient, "call", refuse)
    words = ["models", "add", str(tiny_model()), "--data-dir", str(asked.data_dir), "--name"]
    monkeypatch.setattr(models, "connect", lambda *_: AdminClient(Target("http://127.0.0.1:1")))
    done = CliRunner().invoke(root, [*words, "../evil"])
    assert done.stderr == "error: --name: '../evil' cannot be the name of a file\n"
    assert "--name is empty" in CliRunner().invoke(root, [*words, ""]).output


class Installing(AdminClient):
    """A frontend that has what it is asked to install, or says that it is on its way."""

    asked: ClassVar[list[object]] = []

    def call(
        self, method: str, *path: str, body: object = None, query: Mapping[str, str] | None = None
    ) -> ApiAnswer:
        self.asked.append((method, path, body))
        if isinstance(body, dict) and body.get("if_missing"):
            return ApiAnswer(200, encode(ModelThere(model="qwen3-0.6b")), None)
        now = datetime(2026, 1, 1, tzinfo=UTC)
        op = OpView(
            id="3f2a0000-0", kind="install_model", model="tiny", roll_out=RollOutView(at_once=1), asked_at=now
        )
        return ApiAnswer(202, encode(OpSubmitted(operation=op)), None)


@pytest.mark.parametrize(
    ("words", "body"),
    [
        (("models", "add", "https://a.example/Tiny.gguf"), {"model": "https://a.example/Tiny.gguf"}),
        (("models", "install", "qwen3:0.6b", "--name", "q"), {"model": "qwen3:0.6b", "name": "q"}),
        (("pull", "hf://a/b"), {"model": "hf://a/b"}),
    ],
)
def test_what_is_elsewhere_is_installed(
    words: tuple[str, ...], body: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_installs, "connect", lambda *_: Installing(Target("http://127.0.0.1:1")))
    monkeypatch.setattr(ops_wait, "_wait", lambda options, picture, waiting: picture)
    Installing.asked.clear()

    result = CliRunner().invoke(root, [*words, *(("--no-wait",) if words[1] != "add" else ())])

    assert Installing.asked == [("POST", ("api", "models", "install"), body)]
    if words[1] != "add":
        assert result.stdout == (
            "install model tiny: operation 3f2a0000; see it with: remuda ops watch 3f2a0000\n"
        )


def test_run_installs_only_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_installs, "connect", lambda *_: Installing(Target("http://127.0.0.1:1")))
    assert model_installs.ensured(ClientOptions(None, None, None, None), "qwen3:0.6b") == "qwen3-0.6b"


class Taking(AdminClient):
    """A frontend that takes every model."""

    def call(
        self, method: str, *path: str, body: object = None, query: Mapping[str, str] | None = None
    ) -> ApiAnswer:
        assert isinstance(body, dict)
        name = read_model(body["config"]).id
        reasons = ("a: full", "b: asleep") if name == "nowhere" else ()
        problem = f"no node can take it: {reasons[0]} and 1 more node" if reasons else ""
        item = ModelItem(name=name, problem=problem, problem_details=reasons)
        return ApiAnswer(201, encode(ModelAdded(model=item)), None)


@pytest.mark.parametrize(
    ("name", "words"), [("qwen", "remuda chat qwen"), ("my own", "remuda chat 'my own'")]
)
def test_what_to_try_next_can_be_typed_as_it_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: str
) -> None:
    monkeypatch.setattr(models, "connect", lambda *_: Taking(Target("http://127.0.0.1:1")))
    file = tmp_path / "model.yaml"
    file.write_text(f"name: {name}\nbackend: echo\n")

    added = CliRunner().invoke(models.group, ["add", str(file)])

    assert added.output.endswith(f"try it with: {words}\n")


def test_model_that_cannot_answer_is_added_with_the_reason_and_not_to_be_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "connect", lambda *_: Taking(Target("http://127.0.0.1:1")))
    file = tmp_path / "model.yaml"
    file.write_text("name: nowhere\nbackend: none\n")

    added = CliRunner().invoke(models.group, ["add", str(file)])

    assert added.output == "nowhere: added, but no node can take it:\n  a: full\n  b: asleep\n"


class Serving(AdminClient):
    """A frontend with two models and an alias, of which one model is loaded."""

    unloads: ClassVar[list[tuple[str, ...]]] = []

    def get(self, *path: str, **query: str) -> ApiAnswer:
        models = (ModelItem(name="qwen"), ModelItem(name="phi"), ModelItem(name="gpt", alias="qwen"))
        return ApiAnswer(200, encode(ModelItems(models=models)), None)

    def call(
        self, method: str, *path: str, body: object = None, query: Mapping[str, str] | None = None
    ) -> ApiAnswer:
        self.unloads.append(path)
        ops = (an_op(),) if "qwen" in path else ()
        return ApiAnswer(202, encode(ModelOps(operations=ops)), None)


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """What it is asked for."""
    Serving.unloads.clear()
    monkeypatch.setattr(models, "connect", lambda *_: Serving(Target("http://127.0.0.1:1")))
    return Serving.unloads


def test_unload_of_all_asks_for_each_model_once(serving: list[tuple[str, ...]]) -> None:
    done = CliRunner().invoke(models.group, ["unload", "--all", "--no-wait"])

    assert done.exit_code == 0, done.output
    assert [path[2] for path in serving] == ["qwen", "phi"]


@pytest.mark.parametrize("words", [[], ["qwen", "--all"]])
def test_unload_takes_one_model_or_all(serving: list[tuple[str, ...]], words: list[str]) -> None:
    done = CliRunner().invoke(models.group, ["unload", *words])

    assert (done.exit_code, serving) == (2, [])
    assert "name one model, or give --all" in done.output


class Loaded(AdminClient):
    """A frontend where the model is loaded, and nothing more fits anywhere."""

    def call(
        self, method: str, *path: str, body: object = None, query: Mapping[str, str] | None = None
    ) -> ApiAnswer:
        told = ModelLoaded(model=path[2], nodes=("attic",), others=("barn: it has no file",))
        return ApiAnswer(200, encode(told), None)


def test_loading_what_is_loaded_already_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "connect", lambda *_: Loaded(Target("http://127.0.0.1:1")))

    done = CliRunner().invoke(models.group, ["load", "qwen"])

    assert done.exit_code == 0
    assert done.output == ("qwen is already loaded on attic\nno replica can go to barn: it has no file\n")
    assert '"nodes":["attic"]' in CliRunner().invoke(models.group, ["load", "qwen", "--json"]).output


def test_model_that_was_there_just_so_is_not_called_changed() -> None:
    same = ModelAdded(model=ModelItem(name="qwen"), replaced=True, unchanged=True)

    assert added_line(same) == "qwen: already there, unchanged; try it with: remuda chat qwen"
    assert added_line(same.model_copy(update={"unchanged": False})).startswith("qwen: changed;")
    vectors = ModelItem(name="qwen", usecases=("embeddings",))
    assert added_line(ModelAdded(model=vectors)) == "qwen: added; it is for embeddings: POST /v1/embeddings"
    taken = same.model_copy(update={"set_aside": "/models/qwen.yaml.imported"})
    assert added_line(taken).startswith("qwen: taken over from its file;")


@pytest.mark.parametrize("same_size", [False, True])
def test_another_file_of_a_models_name_is_refused(
    tmp_path: Path, asked: ClientOptions, same_size: bool
) -> None:
    model_text(tiny_model(), None, None, asked)
    other, content = tmp_path / tiny_model().name, tiny_model().read_bytes()
    changed = content[:-1] + bytes([content[-1] ^ 1])
    other.write_bytes(changed if same_size else content + b"more")

    with pytest.raises(Invalid, match="exists and is a different file"):
        model_text(other, None, None, asked)


def test_yaml_is_checked_before_it_is_sent(tmp_path: Path, asked: ClientOptions) -> None:
    file = tmp_path / "qwen.yaml"
    file.write_text("name: qwen\nbackend: echo\ncontext_size: many\n")
    with pytest.raises(Invalid, match="context_size"):
        model_text(file, None, None, asked)

    file.write_text("name: qwen\nbackend: echo\n")
    assert read_model(model_text(file, "other", None, asked)).id == "other"


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", None], ids=["empty", "no text", "missing"])
def test_file_that_is_no_model_is_refused_by_name(
    tmp_path: Path, asked: ClientOptions, content: bytes | None
) -> None:
    file = tmp_path / "odd.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(Invalid, match=r"odd\.yaml"):
        model_text(file, None, None, asked)


def test_table_of_replicas_says_where_how_busy_and_until_when() -> None:
    replica = ReplicaView(
        model="qwen",
        node="gpu-1",
        state="loaded",
        in_flight=2,
        parallel=4,
        memory_bytes=3 << 30,
        in_vram=True,
        last_used=NOON - timedelta(seconds=5),
        unloads_at=NOON + timedelta(minutes=30),
    )
    row = shown(replica_table([replica], NOON, Console(width=200, file=StringIO()))).splitlines()[1]

    assert row.split("  ")[0] == "qwen"
    for part in ("gpu-1", "loaded", "2/4", "3.0 GiB VRAM", "5s ago", "in 30m"):
        assert part in row


def test_replica_of_a_silent_node_is_not_shown_as_simply_loaded() -> None:
    replica = ReplicaView(
        model="qwen", node="gpu-1", state="loaded", unconfirmed_since=NOON - timedelta(seconds=75)
    )
    output = Console(width=200, file=StringIO())
    assert "loaded, not confirmed for 1m 15s" in shown(replica_table([replica], NOON, output))

    confirmed = ReplicaView(model="qwen", node="gpu-2", state="loaded")
    for replicas, state in (((replica,), "loaded, not confirmed"), ((replica, confirmed), "loaded on 2  ")):
        item = ModelItem(name="qwen", replicas=replicas)
        assert state in shown(model_table([item], NOON, output))


def test_empty_tables_say_what_to_do() -> None:
    output = Console(width=200, file=StringIO())
    assert "remuda models add" in shown(model_table([], NOON, output))
    assert "nothing is loaded" in shown(replica_table([], NOON, output))


def test_where_files_are_is_told_also_of_those_that_no_node_has() -> None:
    listed = [
        ModelItem(name="here", file="a.gguf", on_frontend=True),
        ModelItem(name="gone", file="b.gguf", on_frontend=False),
        ModelItem(name="hub", file="Qwen/Qwen3-8B", on_frontend=False),
        ModelItem(name="old", file="c.gguf"),  # Of a frontend that does not tell.
        ModelItem(name="all", on_frontend=True, in_storage=True, nodes_with_files=("gpu-1", "gpu-2")),
        ModelItem(name="kept", file="d.gguf", on_frontend=False, in_storage=True),
    ]
    text = shown(model_table(listed, NOON, Console(width=200, file=StringIO())))

    here, gone, hub, old, everywhere, kept, note = text.splitlines()[1:]
    assert ("not loaded" in here, "the frontend" in here) == (True, True)
    assert "file not found" in gone
    assert ("not loaded" in hub, "not loaded" in old) == (True, True)
    assert "gpu-1, gpu-2, the frontend, object storage" in everywhere
    assert ("not loaded" in kept, "object storage" in kept) == (True, True)
    assert note.startswith("gone: no node has reported b.gguf, and it is not on this frontend")


COMING = an_op(
    id="3f2a1b0c-1", kind="install_model", model="qwen3-0.6b", status="retrying", message="no line"
)


class Installed(AdminClient):
    """A frontend that has no models, and is about to have one, which a gallery calls by another name."""

    def get(self, *path: str, **query: str) -> ApiAnswer:
        if path == ("api", "ops"):
            assert query == {"kind": "install_model", "state": "live"}
            return ApiAnswer(200, encode(OpViews(operations=(COMING,))), NOON)
        if path[:3] == ("api", "galleries", "models"):
            known = {"qwen3:0.6b": "qwen3-0.6b", "smol": "smollm2"}
            if path[3] not in known:
                raise NotFound("no gallery has it")
            return ApiAnswer(200, encode(GalleryModelView(id="g@m", name=known[path[3]], gallery="g")), NOON)
        return ApiAnswer(200, encode(ModelItems()), NOON)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        (
            "qwen3:0.6b",
            "qwen3-0.6b is being installed (no line); see it with: "
            "remuda ops watch 3f2a1b0c; end it with: remuda ops cancel 3f2a1b0c",
        ),
        ("smol", "a gallery has it: remuda run smol"),
        ("else", "as it was"),
    ],
)
def test_a_model_that_is_not_there_yet_can_be_had(
    name: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_arguments, "connect", lambda *_: Installed(Target("http://127.0.0.1:1")))
    missing = NotFound("there is no such model", hint="as it was")
    assert model_arguments.not_there(ClientOptions(), name, missing).hint == hint


def test_a_hint_with_a_similar_configured_name_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    class Configured(Installed):
        def get(self, *path: str, **query: str) -> ApiAnswer:
            if path == ("api", "models"):
                return ApiAnswer(200, encode(ModelItems(models=(ModelItem(name="smolly"),))), NOON)
            return super().get(*path, **query)

    monkeypatch.setattr(model_arguments, "connect", lambda *_: Configured(Target("http://127.0.0.1:1")))
    missing = NotFound("there is no such model", hint="try smolly")
    assert model_arguments.not_there(ClientOptions(), "smol", missing).hint == "try smolly"


def test_models_that_are_being_installed_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "connect", lambda *_: Installed(Target("http://127.0.0.1:1")))
    done = CliRunner().invoke(models.group, ["list"])
    assert done.output == (
        "qwen3-0.6b is being installed (no line); see it with: remuda ops watch 3f2a1b0c; "
        "end it with: remuda ops cancel 3f2a1b0c\n"
    )


def test_paused_install_is_told_with_the_way_to_go_on() -> None:
    paused = an_op(
        id="3f2a1b0c-1", kind="install_model", model="qwen3-0.6b", status="paused", percentage=31.4
    )
    assert model_arguments.under_way(paused) == (
        "the install of qwen3-0.6b is paused at 31 %; go on with: remuda ops resume 3f2a1b0c; "
        "end it with: remuda ops cancel 3f2a1b0c"
    )


def test_state_of_a_model_comes_from_its_replicas() -> None:
    loaded, gone = (ReplicaView(model="qwen", state=state) for state in ("loaded", "unreachable"))
    models = [
        ModelItem(name="a"),
        ModelItem(name="b", replicas=(loaded,)),
        ModelItem(name="c", replicas=(loaded, loaded)),
        ModelItem(name="d", replicas=(ReplicaView(model="d", state="loading"),)),
        ModelItem(name="e", replicas=(gone, ReplicaView(model="e", state="staging"))),
        ModelItem(name="f", replicas=(gone,)),
    ]
    text = shown(model_table(models, NOON, Console(width=200, file=StringIO())))

    states = [line.split("  ")[1:] for line in text.splitlines()[1:]]
    found = [next(cell.strip() for cell in cells if cell.strip()) for cells in states]
    assert found == ["not loaded", "loaded", "loaded on 2", "loading", "staging", "unreachable"]


def test_a_folder_with_a_file_that_cannot_be_read_is_not_imported_in_part(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("name: a\nbackend: echo\n")
    (tmp_path / "b.yaml").write_text("name: [\n")
    done = CliRunner().invoke(root, ["models", "import", str(tmp_path), "--url", "http://127.0.0.1:1"])
    assert "nothing was imported" in done.stderr


def test_an_alias_says_what_it_stands_for_and_when_that_does_not_exist() -> None:
    models = [
        ModelItem(name="qwen"),
        ModelItem(name="fast", alias="qwen"),
        ModelItem(name="old", alias="bge"),
    ]

    lines = shown(model_table(models, NOON, Console(width=200, file=StringIO()))).splitlines()

    assert lines[2].split()[:4] == ["fast", "alias", "of", "qwen"]
    assert lines[3].split()[:3] == ["old", "broken", "alias"]
    assert lines[4].strip() == "old: it is an alias of bge, which does not exist; add it, or remove the alias"


def test_sizes_are_short() -> None:
    assert [size(0), size(94 << 20), size(3 << 30)] == ["-", "94 MiB", "3.0 GiB"]


def test_pieces_of_a_stream_become_text_and_figures() -> None:
    reply = ChatReply(node="gpu-1", first_s=0.5, seconds=2.5)
    events: list[dict[str, object]] = [
        {"choices": [{"delta": {"role": "assistant"}}]},
        {"choices": [{"delta": {"content": "Hello"}}]},
        {"choices": [], "usage": {"completion_tokens": 21}},
    ]
    assert [text for event in events for text in _pieces(event, reply)] == ["Hello"]
    assert _about(reply) == "from gpu-1, 21 tokens, 10.0 tok/s, first token after 0.5 s"


def test_error_in_the_stream_is_told() -> None:
    with pytest.raises(PeerFailed, match="the backend crashed"):
        list(_pieces({"error": {"message": "the backend crashed"}}, ChatReply()))


def test_more_requests_than_a_replica_takes_at_once_are_explained() -> None:
    full, over = (ReplicaView(model="qwen", node="n", parallel=1, in_flight=count) for count in (1, 2))
    output = Console(width=200, file=StringIO())
    assert "queues" not in shown(replica_table([full], NOON, output))
    assert "the engine queues what exceeds it" in shown(replica_table([full, over], NOON, output))
