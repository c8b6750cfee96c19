"""A real engine that writes what grammars allow, as a program: native code may take its process down.

Standard input has a line of JSON, the grammars; standard output gets one, an answer for each and seed. An
answer that was cut off, or a grammar that the engine does not read, is null.
"""

import json
import os
import sys

import xllamacpp  # type: ignore[import-untyped]

SEEDS = 4
TOKENS_MAX = 600


def main(model: str) -> None:
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.n_ctx, params.n_parallel, params.warmup, params.verbosity = 2 * TOKENS_MAX, 1, False, -1
    params.cpuparams.n_threads = 1
    server = xllamacpp.Server(params)
    asked = [(grammar, seed) for grammar in json.loads(sys.stdin.readline()) for seed in range(SEEDS)]
    print(json.dumps([_answer(server, grammar, seed) for grammar, seed in asked]), flush=True)
    os._exit(0)


def _answer(server: xllamacpp.Server, grammar: str, seed: int) -> str | None:
    said = server.handle_completions(
        {"prompt": "the house", "grammar": grammar, "seed": seed, "n_predict": TOKENS_MAX}
    )
    choices = said.get("choices", [])
    return next((each["text"] for each in choices if each["finish_reason"] == "stop"), None)


if __name__ == "__main__":
    main(sys.argv[1])
