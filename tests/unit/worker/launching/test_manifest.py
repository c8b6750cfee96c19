"""remuda.yaml: what is accepted, and that a refusal names the file and the field."""

import re
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remuda.core.errors import Invalid
from remuda.worker.launching.manifest import (
    LIMITS,
    BackendManifest,
    Placeholder,
    PlaceholderText,
    parse_manifest,
)
from remuda.worker.launching.starting import HttpNeeds, http_recipe
from remuda.worker.processes.model import Protocol


def manifest(more: str = "", command: str = '[serve, "{port}"]') -> BackendManifest:
    return parse_manifest(f"protocol: http\ncommand: {command}\n{more}".encode(), "x/remuda.yaml")


def refusal(text: str | bytes) -> str:
    with pytest.raises(Invalid) as raised:
        parse_manifest(text.encode() if isinstance(text, str) else text, "x/remuda.yaml")
    return str(raised.value)


def test_little_has_to_be_said() -> None:
    read = manifest()
    assert read.protocol is Protocol.HTTP
    assert read.health == "/health"
    assert read.start_limit == timedelta(minutes=10)
    assert read.env == {}


def test_everything_can_be_said() -> None:
    read = manifest('env: {HOST: "127.0.0.1:{port}", N: 010}\nhealth: /v1/ready\nstart_limit: 1h30m')
    assert read.env["HOST"] == PlaceholderText(("127.0.0.1:", Placeholder("port")))
    assert read.env["N"] == PlaceholderText(("010",))
    assert (read.health, read.start_limit) == ("/v1/ready", timedelta(minutes=90))


def test_arguments_stay_as_they_were_written() -> None:
    read = manifest(command='[serve, "{port}", 1.10, off, 0x1F, null]')
    assert [part.templates[0].parts for part in read.command[2:]] == [
        ("1.10",),
        ("off",),
        ("0x1F",),
        ("null",),
    ]


def test_a_list_in_the_command_is_optional() -> None:
    read = manifest(command='[serve, --port, "{port}", [-c, "{context_size}"]]')
    assert [part.optional for part in read.command] == [False, False, False, True]


def test_grpc_says_that_the_run_file_is_started() -> None:
    assert parse_manifest(b"protocol: grpc").protocol is Protocol.GRPC
    assert "takes no other fields" in refusal("protocol: grpc\ncommand: [x]")


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("'{modle}'", "there is no placeholder {modle}; use {port} {model_path}"),
        ("'{\"a\": 1}'", "a single { has no meaning"),
        ("'x={options}'", "{options} stands for several"),
        ("['{options}']", "{options} stands for several"),
        ("[]", "must not be an empty list"),
        ("{a: b}", "must be text"),
        ("[[x]]", "must be text"),
        ("--bind=0.0.0.0", "must not listen on all addresses"),
        ('"a\\0b"', "contains a NUL"),
    ],
)
def test_a_bad_argument_is_named(argument: str, words: str) -> None:
    said = refusal(f"protocol: http\ncommand: [serve, '{{port}}', {argument}]")
    assert said.startswith(f"x/remuda.yaml: command[2]: {words}")


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("env: {A-B: x}", "env.A-B"),
        ("env: {A: '{options}'}", "env.A: {options} stands for arguments"),
        ("env: {A: '{nope}'}", "env.A: there is no placeholder {nope}"),
        ("health: ready", "health: must be a path"),
        ("start_limit: 10", "start_limit: '10' is not a duration"),
        ("start_limit: 25h", "start_limit: must be"),
        ("start_limit: 0s", "start_limit: must be"),
        ("timeout: 5", "timeout is not known here"),
    ],
)
def test_a_bad_field_is_named(field: str, words: str) -> None:
    said = refusal(f"protocol: http\ncommand: [serve, '{{port}}']\n{field}")
    assert said.startswith(f"x/remuda.yaml: {words}")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("command: [serve, '{port}']", "protocol is missing"),
        ("protocol: smtp\ncommand: [serve, '{port}']", "protocol must be 'grpc' or 'http'"),
        ("protocol: http", "command must name the program"),
        ("protocol: http\ncommand: [[x], '{port}']", "command must name the program"),
        ("protocol: http\ncommand: ['', '{port}']", "command must name the program"),
        ("protocol: http\ncommand: serve {port}", "command must be a list"),
        ("protocol: http\ncommand: [serve]", "{port} must appear in command or env"),
        ("", "it must be a mapping"),
        ("- a", "it must be a mapping"),
        ("protocol: http\ncommand: [serve", "line 2: not valid YAML"),
        ("protocol: http\n---\nprotocol: http", "line 3: a second document begins here"),
        ("protocol: \x01", "not valid YAML"),
        ("protocol: http\ncommand: &a [x, *a]", "line 2: *a contains itself"),
        ("protocol: http\ncommand: " + "[" * 5000, "line 2: it is nested more than 4 deep"),
        ("#" * (LIMITS.bytes + 1), "it has more than 64 KiB"),
        (b"protocol: \xff", "it is not UTF-8 text"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(text: str | bytes, words: str) -> None:
    assert refusal(text).startswith(f"x/remuda.yaml: {words}")


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_content_is_read_or_refused(content: bytes) -> None:
    outcome: BackendManifest | Invalid
    try:
        outcome = parse_manifest(content)
    except Invalid as error:
        outcome = error
    assert isinstance(outcome, BackendManifest) or outcome.message.startswith("remuda.yaml: ")


@given(st.text())
def test_braces_written_twice_are_braces(text: str) -> None:
    parsed = PlaceholderText.parse(text.replace("{", "{{").replace("}", "}}"))
    assert "".join(str(part) for part in parsed.parts) == text
    assert parsed.names == frozenset()


def test_every_example_in_the_guide_can_be_used() -> None:
    guide = Path(__file__).resolve().parents[4] / "docs/guide/http-backends.md"
    examples = re.findall(r"```yaml\n(protocol: .*?)```", guide.read_text(), re.DOTALL)
    needs = HttpNeeds("/models/x", "x", 4096, 2, ("--more",))
    recipes = [http_recipe(parse_manifest(text.encode()), Path("/b"), {}, needs) for text in examples]
    assert len(recipes) == 6
    assert all("127.0.0.1" in str((recipe.argv, dict(recipe.env))) for recipe in recipes)


@pytest.mark.parametrize(
    ("check", "complaint"),
    [
        ('[./server, --port, "{port}", "{model_path}"]', "cannot use {model_path}"),
        ("[./server]", "{port} must appear in check or env"),
        ('[["{port}"], ./server]', "check must name the program"),
    ],
)
def test_check_that_could_not_be_started_without_a_model_is_refused(check: str, complaint: str) -> None:
    text = f'protocol: http\ncommand: [./server, "{{port}}"]\ncheck: {check}\n'
    with pytest.raises(Invalid, match=re.escape(complaint)):
        parse_manifest(text.encode())
