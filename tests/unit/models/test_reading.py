import contextlib
import re
from datetime import timedelta
from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.core.errors import Invalid
from remuda.models.config import LIMITS, Function, Grammar, ModelConfig, Parameters, Template, parse_document
from remuda.models.keep_alive import FOR_EVER
from remuda.models.paths import check_absolute_paths
from remuda.models.reading import check_file, located, misspelled, read_model, write_model

QWEN = """\
name: qwen3-8b
backend: llama-cpp
context_size: 8192
known_usecases: [chat]
parameters:
  model: qwen3-8b/Qwen3-8B-Q4_K_M.gguf
  temperature: 0.6
template:
  use_tokenizer_template: true
options: ["use_jinja:true"]
keep_alive: 5m
"""


def refusal(text: str, where: str = "") -> str:
    with pytest.raises(Invalid) as refused:
        read_model(text, where=where)
    return refused.value.message


def test_a_model_file_is_read() -> None:
    assert read_model(QWEN) == ModelConfig(
        name="qwen3-8b",
        backend="llama-cpp",
        context_size=8192,
        known_usecases=("chat",),
        parameters=Parameters(model="qwen3-8b/Qwen3-8B-Q4_K_M.gguf", temperature=0.6),
        template=Template(use_tokenizer_template=True),
        options=("use_jinja:true",),
        keep_alive=timedelta(minutes=5),
    )


def test_only_what_was_said_is_written_back() -> None:
    assert write_model(read_model("name: a\nthreads: 0004\nf16: false\n")) == "name: a\nthreads: 4\n"


def test_templates_are_written_line_by_line() -> None:
    config = ModelConfig(name="a", template=Template(chat="{{.Input}}\nassistant\n"))

    assert "chat: |\n    {{.Input}}\n    assistant\n" in write_model(config)


def test_a_model_without_a_name_is_called_by_its_file() -> None:
    assert read_model("parameters: {model: a/b.gguf}").name == "a/b.gguf"


def test_keys_without_effect_are_named() -> None:
    config = read_model("name: a\nusage: none\nfunction: {json_regex_match: [x], disable_no_action: true}\n")

    assert config.unknown == ("usage", "function.json_regex_match")
    assert config.function.disable_no_action


@pytest.mark.parametrize("key", ["template.edit", "template.multimodal", "parameters.language"])
def test_what_nothing_here_looks_at_counts_as_unknown(key: str) -> None:
    section, _, name = key.partition(".")
    assert read_model(f"name: a\n{section}: {{{name}: text}}").unknown == (key,)


def test_unknown_itself_cannot_be_written() -> None:
    assert read_model("name: a\nunknown: [b]").unknown == ("unknown",)


def test_a_key_without_a_value_is_as_good_as_not_written() -> None:
    assert read_model("name: a\ntemplate:\nf16:\nparameters: {seed: null}") == ModelConfig(name="a")


def test_texts_stay_as_written_and_numbers_become_numbers_where_asked_for() -> None:
    config = read_model(
        "name: 1.10\nflash_attention: on\nmain_gpu: 0\nthreads: '4'\nengine_args: {a: 1, b: '1'}"
    )

    assert (config.name, config.flash_attention, config.main_gpu) == ("1.10", "on", "0")
    assert (config.threads, config.engine_args) == (4, {"a": 1, "b": "1"})


def test_aliases_and_merge_keys_mean_what_they_say() -> None:
    config = read_model(
        "name: a\nparameters: &p {seed: 1, top_k: 2}\nengine_args: {<<: *p, seed: 3, again: *p}"
    )

    assert config.engine_args == {"seed": 3, "top_k": 2, "again": {"seed": 1, "top_k": 2}}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: a\nthreads: many", "line 2: threads: must be a whole number, not 'many'"),
        ("name: a\nparameters: {top_p: [1]}", "line 2: parameters.top_p: must be a number, not a list"),
        ("name: a\nf16: perhaps", "line 2: f16: must be true or false, not 'perhaps'"),
        ("name: a\nname2: b\nbackend: {a: b}", "line 3: backend: must be a text, not a map"),
        ("name: a\nstopwords: x", "line 2: stopwords: must be a list, not 'x'"),
        ("name: a\nstopwords: [[x]]", "line 2: stopwords[0]: must be a text, not a list"),
        ("name: a\ntemplate: x", "line 2: template: must be a map of keys, not 'x'"),
        ("name: a\nkeep_alive: 5", "line 2: keep_alive: '5' is not a duration such as"),
        ("name: a\nparallel: 0", "line 2: parallel: must be 1 or more, not '0'"),
        ("name: a\ncontext_size: 4294967296", "line 2: context_size: must be less than 2147483648, not"),
        ("name: a\nyarn_ext_factor: .nan", "line 2: yarn_ext_factor: must be a number, not '.nan'"),
    ],
)
def test_a_wrong_value_is_refused_by_its_key(text: str, said: str) -> None:
    assert refusal(text).startswith(said)


@pytest.mark.parametrize("name", ["''", "' '", '"a\\tb"', "a#0", "'a '", "x" * 257])
def test_a_name_that_nothing_could_go_by_is_refused(name: str) -> None:
    assert refusal(f"backend: echo\nname: {name}").startswith(("line 2: name: ", "name: missing"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "this is neither a model file nor the YAML"),
        ("[a]", "this is neither a model file nor the YAML"),
        ("name: [}", "line 1: not valid YAML"),
        ("name: a\nname: b", "line 2: name: given twice"),
        ("name: !!python/name:os.system x", "line 1: the tag tag:yaml.org,2002:python/name:os.system"),
        ("name: a\x00", "not valid YAML"),
        ("name: \ud800", "it "),
        ("name: *a", "line 1: *a is an undefined alias"),
        ("name: &a [*a]", "line 1: *a contains itself"),
        ("? [a]\n: b", "line 1: a key must be a word"),
        ("name: " + "[" * 100, "line 1: it is nested more than"),
        ("name: " + "x" * LIMITS.bytes, "it has more than 1 MiB"),
    ],
)
def test_what_is_no_model_file_is_refused(text: str, said: str) -> None:
    assert refusal(text).startswith(said)


def test_a_document_that_would_grow_is_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]

    assert "parts" in refusal("\n".join(lines))


def test_the_file_is_named_in_complaints() -> None:
    assert refusal("[]", where="a.yaml").startswith("a.yaml: ")


def test_an_error_names_the_file_the_line_and_the_field() -> None:
    text = (
        "# Our model.\nname: smollm\n\nbackend: llama-cpp\nparameters:\n  model: a.gguf\ncontext_size: many\n"
    )

    said = "smollm.yaml, line 7: context_size: must be a whole number, not 'many'"
    assert refusal(text, where="smollm.yaml") == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: a\nthreads:\n  many\n", "line 2: threads: "),
        ("name: a\nstopwords:\n- x\n- [y]\n", "line 4: stopwords[1]: "),
        ("name: a\nparameters: {seed: 1,\n  top_p: x}\n", "line 3: parameters.top_p: "),
        ("name: a\nx: &p\n  seed: x\nparameters: {<<: *p}\n", "line 3: parameters.seed: "),
        ("name: a\nx: &p [1]\nf16: *p\n", "line 3: f16: "),
        ("name: a\nmmproj: ../x\n", "line 2: mmproj: "),
        ("name: a\noptions:\n- parallel:2\n- lora:../x\n", "line 2: options: lora: "),
        ("name: a\nf16: x\nbackend: [b]\nthreads: x\nnuma: x\n", "line 2: f16: must be true or false"),
    ],
)
def test_the_line_is_that_of_the_field(text: str, said: str) -> None:
    assert refusal(text).startswith(said)


def test_several_errors_are_told_in_the_order_of_their_lines() -> None:
    said = refusal("numa: x\nf16: z\nname: a\nbackend: []\n")

    assert re.findall(r"line (\d)", said) == ["1", "2", "4"]


def test_a_later_check_is_said_with_the_line_too() -> None:
    text = "name: a\nbackend: echo\nalias: b\n"

    with pytest.raises(Invalid, match=r"^a\.yaml, line 3: alias: no such model$"), located(text, "a.yaml"):
        raise Invalid("alias: no such model", param="alias")
    with pytest.raises(Invalid, match=r"^a\.yaml: draft_model: missing$"), located(text, "a.yaml"):
        raise Invalid("draft_model: missing", param="draft_model")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: a\nparameters:\n\tmodel: x\n", "line 3: not valid YAML: a tab is used for indentation"),
        ("name: a\n---\nname: b\n", "line 3: a second document begins here"),
        ("name: a\nx: &x\n  y: *x\n", "line 3: *x contains itself"),
        ("a: &a [x]\nb: {<<: *a}\n", "line 2: << can only merge maps"),
    ],
)
def test_what_yaml_allows_and_a_model_does_not_is_said_with_its_line(text: str, said: str) -> None:
    assert refusal(text).startswith(said)


def test_megabytes_of_anchors_are_refused_before_they_are_read() -> None:
    anchors = "".join(f"a{n}: &a{n} {{}}\n" for n in range(700_000))
    assert len(anchors) > 10_000_000

    assert refusal(anchors) == "it has more than 1 MiB"
    assert refusal(anchors[:1_000_000].rpartition("\n")[0]).endswith("it has more than 5000 parts")


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(Invalid):
        assert read_model(text).name


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
words = st.text(
    st.characters(exclude_categories=["C", "Z"], exclude_characters="~/\\."), max_size=20
)  # No paths.
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=5,
)
configs = st.builds(
    ModelConfig,
    name=st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=9),
    backend=texts,
    flash_attention=texts,
    system_prompt=texts,
    threads=st.none() | st.integers(-5, 99),
    f16=st.booleans(),
    mmap=st.none() | st.booleans(),
    yarn_ext_factor=st.floats(allow_nan=False, allow_infinity=False),
    options=st.lists(words, max_size=3).map(tuple),
    template=st.builds(
        Template,
        chat=texts,
        join_chat_messages_by_character=st.none() | texts,
        use_tokenizer_template=st.booleans(),
    ),
    function=st.builds(Function, grammar=st.builds(Grammar, disable=st.booleans())),
    selector=st.dictionaries(texts, texts, max_size=3),
    engine_args=st.dictionaries(words, values, max_size=3),
    keep_alive=st.none() | st.just(FOR_EVER) | st.timedeltas(timedelta(0), timedelta(days=9)),
)


@pytest.mark.parametrize(
    ("written", "meant"),
    [("0", timedelta()), ("0s", timedelta()), ("-1", FOR_EVER), ("90s", timedelta(seconds=90))],
)
def test_keep_alive_is_a_duration_or_none_or_for_ever(written: str, meant: timedelta) -> None:
    assert read_model(f"name: a\nkeep_alive: {written}").keep_alive == meant


@given(configs)
def test_what_is_written_is_read_back(config: ModelConfig) -> None:
    assert read_model(write_model(config)) == config


class LaterConfig(ModelConfig):
    """As a version to come may have it."""

    context_size_max: int = 0


def test_frontends_that_know_more_keys_see_the_same_revision() -> None:
    told: dict[str, Any] = {"name": "a", "backend": "echo", "engine_args": {"x": 1, "y": 2}}
    again = {**told, "engine_args": {"y": 2, "x": 1}}

    assert ModelConfig(**told).revision == LaterConfig(**again).revision


@pytest.mark.parametrize(
    ("change", "same"),
    [({"context_size": 512}, False), ({"template": {"chat": "x"}}, False), ({"pinned": True}, True)],
)
def test_what_replicas_are_made_from_makes_another_revision(change: dict[str, Any], same: bool) -> None:
    before, after = ModelConfig(name="a"), ModelConfig(name="a", **change)

    assert (before.revision == after.revision) is same
    assert before.model_copy(update={key: getattr(after, key) for key in change}).revision == after.revision


@pytest.mark.parametrize(
    "text",
    [
        "parameters: {model: ../../etc/passwd}",
        "parameters: {model: models/../../x.gguf}",
        "{parameters: {model: m.gguf}, mmproj: ../secret}",
        "{parameters: {model: m.gguf}, lora_adapters: [a, ../b]}",
        "{parameters: {model: m.gguf}, draft_model: 'a\\..\\b'}",
    ],
)
def test_a_file_outside_the_folder_of_models_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="is outside the models folder"):
        read_model(text)


def test_a_name_with_dots_in_it_is_no_way_out() -> None:
    assert read_model("parameters: {model: org/llama-3..1.gguf}").file == "org/llama-3..1.gguf"


@pytest.mark.parametrize(
    "value",
    ["1" + ":59" * 200_000, "0x" + "f" * 900_000, "1" + ":59" * 100 + ":59.5", "!!bool zz", "!!int 1x"],
    ids=["base 60", "hexadecimal", "fraction of base 60", "no truth value", "no number"],
)
def test_what_only_looks_like_a_number_stays_text_and_takes_no_time(value: str) -> None:
    read = parse_document(f"x: {value}\n").value
    assert isinstance(read, dict)
    assert read["x"] == value.removeprefix("!!bool ").removeprefix("!!int ")


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ('options: ["lora:../../etc/passwd"]', "options: lora"),
        ('options: ["parallel:2", "mmproj_path: ../b"]', "options: mmproj_path"),
        ('options: ["lora_adapters:a.gguf,../b.gguf"]', "options: lora_adapters"),
        ("engine_args: {speculative_config: {model: ../other}}", "engine_args.speculative_config.model"),
        ("engine_args: {lora-modules: [x, ../y]}", "engine_args.lora-modules"),
        ("engine_args: {download_dir: ../y}", "engine_args.download_dir"),
    ],
)
def test_files_in_a_backends_own_options_stay_in_the_folder_of_models(line: str, key: str) -> None:
    with pytest.raises(Invalid, match=f"{key}: .* is outside the models folder"):
        read_model(f"name: m\nparameters: {{model: m.gguf}}\n{line}")

    absolute = read_model(f"name: m\nparameters: {{model: m.gguf}}\n{line.replace('..', '/etc')}")
    with pytest.raises(Invalid, match=f"{key}: .* is outside the models folder"):
        check_absolute_paths(absolute, PurePosixPath("/models"))


@pytest.mark.parametrize(
    ("line", "piece"),
    [
        ('options: ["--mmproj=/etc/passwd"]', "/etc/passwd"),
        ('options: ["--lora", "../../../etc/shadow"]', "../../../etc/shadow"),
        ('options: ["--lora", "/etc/shadow"]', "/etc/shadow"),
        ('options: ["--mmproj /etc/passwd"]', "/etc/passwd"),
        ('options: ["--lora=/models/a.gguf,/etc/passwd"]', "/etc/passwd"),
        ('options: ["--lora=a.gguf:1.0,/etc/passwd:0.5"]', "/etc/passwd"),
        ('options: ["mmproj=../x"]', "../x"),
        ('options: ["lora:file:///etc/passwd"]', "/etc/passwd"),
        ('options: ["lora:~/secret"]', "~/secret"),
        ('options: ["--lora=https://host/a,/etc/passwd"]', "/etc/passwd"),
        ('options: ["--anything=a/../../b"]', "a/../../b"),
        ('options: ["/etc/passwd"]', "/etc/passwd"),
        ('options: ["anything:..\\\\x"]', "../x"),
        ('overrides: ["a=str:/etc/passwd"]', "/etc/passwd"),
        ("engine_args: {hf_overrides: {rope: ../x}}", "../x"),
        ("engine_args: {a: {b: [{c: x}, [y, /etc/passwd]]}}", "/etc/passwd"),
        ("engine_args: {a: [--mmproj=/etc/passwd]}", "/etc/passwd"),
        ("""engine_args: {speculative_config: '{"model": "/etc/passwd"}'}""", "/etc/passwd"),
        ("""options: ['kwargs: [{"a": "../../x"}]']""", "../../x"),
        ("engine_args: {a: '/etc/passwd {'}", "/etc/passwd"),
        ('engine_args: {"--mmproj=/etc/passwd": true}', "/etc/passwd"),
        ('engine_args: {a: {"--mmproj=~/x": true}}', "~/x"),
    ],
)
def test_every_word_of_an_option_stays_in_the_folder_of_models(line: str, piece: str) -> None:
    with pytest.raises(
        Invalid, match=f"(options|overrides|engine_args).*{piece}.* is outside the models folder"
    ):
        check_absolute_paths(
            read_model(f"name: m\nparameters: {{model: m.gguf}}\n{line}"), PurePosixPath("/models")
        )


@pytest.mark.parametrize(
    "line",
    [
        'options: ["lora:adapters/a.gguf", "mmproj:/models/p.gguf", "reasoning_format:...", "stop:/"]',
        'options: ["--lora=/models/a.gguf,b.gguf:0.5", "--mmproj", "p.gguf", "-ngl 99", "stop:</s>"]',
        'options: ["mmproj:https://host/a/../p.gguf", "--chat-template={{ /x/../y }}", "tensor_split:1,2"]',
        'engine_args: {chat_template: "{% if x %}/../{% endif %}\\n", dtype: auto, max_model_len: 1}',
        "engine_args: {tokenizer: org/name, hf_overrides: {rope: a/b, list: [c, 1]}}",
    ],
)
def test_other_options_are_left_alone(line: str) -> None:
    config = read_model(f"name: m\nparameters: {{model: m.gguf}}\n{line}")

    check_absolute_paths(config, PurePosixPath("/models"))
    assert config.options or config.engine_args


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("paramters", "parameters"),
        ("contextsize", "context_size"),
        ("temperature", "parameters.temperature"),
        ("parameters.temprature", "parameters.temperature"),
        ("parameters.modle", "parameters.model"),
        ("function.grammer", "function.grammar"),
    ],
)
def test_a_misspelled_key_is_named_with_the_one_that_was_meant(written: str, meant: str) -> None:
    assert misspelled((written,)) == [
        f"{written} is not a known key and has no effect; did you mean `{meant}`?"
    ]


def test_keys_that_only_peers_know_are_not_called_misspelled() -> None:
    theirs = "debug usage icon license urls files diffusers tts step cuda cutstrings trimspace"
    theirs += (
        " trimsuffix extract_regex feature_flags grpc pipeline cfg_scale template.edit template.multimodal"
    )
    theirs += " function.response_regex function.grammar.mixed_mode parameters.n parameters.language"
    theirs += " parameters.echo parameters.clip_skip parameters.translate nowhere.at.all"
    assert misspelled(tuple(theirs.split())) == []


def test_a_model_of_llama_cpp_without_a_file_is_refused_with_how_to_name_it() -> None:
    check_file(read_model("name: a\nbackend: llama-cpp\nparameters: {model: a.gguf}"))
    check_file(read_model("name: a\nbackend: echo"))
    check_file(read_model("name: a\nbackend: llama-cpp\nalias: b"))
    with pytest.raises(Invalid, match="the backend cuda12-llama-cpp needs a model file"):
        check_file(read_model("name: a\nbackend: cuda12-llama-cpp"))
    with pytest.raises(Invalid) as refused:
        check_file(read_model("name: a\nbackend: llama-cpp\nparamters: {model: a.gguf}"))
    assert "did you mean `parameters`?" in refused.value.hint


FILES = """\
name: a
download_files:
- filename: a/model.gguf
  uri: huggingface://owner/repo/model.gguf
  sha256: B179C9523D0E6A0F98A330C7562B682750A6F8C8C15E5BC70EA373728110DB53
artifacts:
- name: main
  target: a/snapshot
  source: {type: huggingface, repo: owner/repo, token_env: HF_TOKEN, allow_patterns: ["*.json"]}
  resolved: {commit: abc}
"""


def test_files_to_fetch_and_artifacts_are_read() -> None:
    config = read_model(FILES)

    [file], [artifact] = config.download_files, config.artifacts
    assert (file.filename, file.sha256[:8]) == ("a/model.gguf", "b179c952")
    assert (artifact.source.repo, artifact.source.allow_patterns) == ("owner/repo", ("*.json",))
    assert (artifact.resolved, config.unknown) == ({"commit": "abc"}, ())
    assert config.revision == read_model("name: a").revision


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("a/model.gguf", "../model.gguf", "line 3: download_files[0].filename: it is absolute, or has empty"),
        ("a/model.gguf", "/etc/passwd", "line 3: download_files[0].filename: it is absolute"),
        ("a/model.gguf", "[x]", "line 3: download_files[0].filename: must be a text, not a list"),
        ("huggingface://owner/repo/model.gguf", '"a b"', "line 4: download_files[0].uri: must be an address"),
        ("  uri: huggingface://owner/repo/model.gguf\n", "", "line 3: download_files[0].uri: is missing"),
        ("B179C9", "beef", "line 5: download_files[0].sha256: must be 64 hexadecimal digits"),
        ("a/snapshot", "../snapshot", "line 8: artifacts[0].target: '../snapshot' leads out of the models"),
        ("HF_TOKEN", "a-b", "line 9: artifacts[0].source.token_env: 'a-b' is not the name of an environment"),
        ("*.json", "../*", "line 9: artifacts[0].source.allow_patterns[0]: '../*' leads out"),
    ],
)
def test_files_that_cannot_be_fetched_are_refused_with_line_and_field(
    before: str, after: str, said: str
) -> None:
    assert refusal(FILES.replace(before, after)).startswith(said)
