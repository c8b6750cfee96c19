"""Why a load failed, as the engine told it."""

import pytest

from remuda.backends.llama_cpp.engine import reason_in

MISSING = """\
0.00.001 E common_fit_params: encountered an error while trying to fit params to free device memory: failed
0.00.002 E gguf_init_from_file: failed to open GGUF file '/a.gguf' (No such file or directory)
0.00.003 E llama_model_load_from_file_impl: failed to load model
0.00.004 E srv          init: exiting due to model loading error
"""
TORN = """\
0.00.001 I loading
0.00.002 E llama_model_load: error loading model: tensor 'x' data is not within the file bounds
0.00.003 E llama_model_load: error loading model: tensor 'x' data is not within the file bounds
0.00.004 E srv    load_model: failed to load model, '/a.gguf'
"""
FOREIGN = "0.00.001 E gguf_init_from_file_impl: invalid magic characters: 'root', expected 'GGUF'\n"
ABORTED = "/src/ggml.c:12: GGML_ASSERT(n > 0) failed\n"


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (MISSING, "gguf_init_from_file: failed to open GGUF file '/a.gguf' (No such file or directory)"),
        (TORN, "llama_model_load: error loading model: tensor 'x' data is not within the file bounds"),
        (FOREIGN, "gguf_init_from_file_impl: not a GGUF file (wrong header)"),
        (ABORTED, "/src/ggml.c:12: GGML_ASSERT(n > 0) failed"),
        ("0.00.001 I all is well\n", ""),
        ("", ""),
    ],
)
def test_the_telling_lines_are_found_once(log: str, reason: str) -> None:
    assert reason_in(log) == reason
