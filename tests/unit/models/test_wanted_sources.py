"""What a configuration wants fetched, what is refused, and what stands in its place once it is there."""

import pytest

from remuda.core.errors import Invalid
from remuda.models.files import FetchedSource, Manifest, ManifestFile
from remuda.models.reading import located, read_model
from remuda.models.wanted_sources import (
    MODEL,
    as_fetched,
    checked_sources,
    file_key,
    is_complete,
    wanted_sources,
)

SHA256 = "5" * 64
FAR = "name: far\nparameters: {model: 'hf://some/repo', temperature: 0.2}\n"
LISTING = "name: m\nbackend: b\ndownload_files:\n- {filename: a.bin, uri: 'https://host.test/a.bin'}\n"


def artifact(more: str) -> str:
    return f"name: m\nbackend: b\nartifacts:\n- {{{more}}}\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (LISTING.replace("https:", "gopher:"), "line 4: download_files[0].uri: gopher:// is not a kind of"),
        (LISTING.replace("https://host.test/a.bin", "upload:abcdefgh"), "line 4: download_files[0].uri: "),
        (
            LISTING + "- {filename: a.bin, uri: 'hf://a/b/c'}\n",
            "line 5: download_files[1].filename: 'a.bin' is there twice",
        ),
        (FAR.replace("hf:", "ftp:"), "line 2: parameters.model: ftp:// is not a kind of source"),
        (artifact("name: x, source: {type: svn, repo: a/b}"), "line 4: artifacts[0]: the artifact x is of"),
        (artifact("name: x, source: {repo: nothing}"), "line 4: artifacts[0]: "),
        (artifact("source: {repo: a/b}"), "line 4: artifacts[0]: the artifact from a/b has neither"),
        (
            artifact("name: x, source: {repo: a/b, token_env: AWS_SECRET}"),
            "line 4: artifacts[0]: the artifact x wants a token from AWS_SECRET",
        ),
    ],
)
def test_what_can_never_be_fetched_is_refused_with_line_and_field(text: str, said: str) -> None:
    with pytest.raises(Invalid) as refused, located(text):
        checked_sources(read_model(text))
    assert refused.value.message.startswith(said)


@pytest.mark.parametrize("path", ["../a", "/etc/passwd", "a/../../b", "C:\\\\a", ""])
def test_paths_that_lead_out_of_the_folder_are_refused(path: str) -> None:
    with pytest.raises(Invalid, match=r"line 4: download_files\[0\].filename"):
        read_model(LISTING.replace("filename: a.bin", f'filename: "{path}"'))


def test_what_was_fetched_is_complete_until_something_else_is_wanted() -> None:
    config = read_model(LISTING)
    fetched = [FetchedSource(key=key, source=source) for key, source in wanted_sources(config).items()]
    manifest = Manifest(files=(), fetched=tuple(fetched))

    assert not is_complete(config, None)
    assert is_complete(config, manifest)
    assert not is_complete(read_model(LISTING.replace("a.bin'", f"a.bin', sha256: {SHA256}")), manifest)
    assert not is_complete(read_model("name: m\nbackend: b\n"), manifest)


def test_installs_of_earlier_releases_have_what_their_files_say() -> None:
    files = (ManifestFile(path="m/a.bin", size=1, sha256=SHA256),)

    assert is_complete(read_model(LISTING), Manifest(files=files, source="hf://a/b"))
    other = LISTING + "- {filename: b.bin, uri: 'https://host.test/b.bin'}\n"
    assert not is_complete(read_model(other), Manifest(files=files, source="hf://a/b"))


def test_a_source_is_replaced_by_its_file_and_what_people_wrote_wins() -> None:
    source = FetchedSource(key=MODEL, source="hf://some/repo", place="far/a.gguf", paths=("far/a.gguf",))
    laid = '{"backend": "llama-cpp", "parameters": {"model": "far/a.gguf", "temperature": 0.7, "seed": 3}}'
    manifest = Manifest(files=(), fetched=(source,), laid=laid)

    config = as_fetched(read_model(FAR), manifest)

    assert (config.file, config.backend) == ("far/a.gguf", "llama-cpp")
    assert (config.parameters.temperature, config.parameters.seed) == (0.2, 3)
    changed = read_model(FAR.replace("some/repo", "other/repo"))
    assert as_fetched(changed, manifest).file == "hf://other/repo"
    assert file_key("x") not in wanted_sources(changed)
