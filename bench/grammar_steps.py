"""What the built-in engine takes for one character of grammars whose parts stay open side by side.

    python -m bench.grammar_steps MODEL.gguf

A model with a large vocabulary shows more: an engine tries all of its tokens in each of the open ways. Bounds
are ignored here; what `remuda.core.gbnf` says of each shape is printed beside its time.
"""

import json
import os
import sys
import time
from typing import Final

import xllamacpp  # type: ignore[import-untyped]
from pydantic import JsonValue

from remuda.core.errors import Invalid
from remuda.core.gbnf import check_grammar
from remuda.core.slices import at_once
from remuda.models.grammar import grammar_of_schema

TOKENS: Final = 6


def _row(part: str, count: int) -> str:
    return "root ::= " + f"{part} " * count + '"b"'


def _ways(count: int) -> str:
    return "root ::= (" + " | ".join(['"a"'] * count) + ") "


def _properties(count: int) -> str:
    properties: dict[str, JsonValue] = {f"p{number}": {"type": "string"} for number in range(count)}
    return at_once(grammar_of_schema({"type": "object", "properties": properties}))


SHAPES: Final = {
    **{f'"a"? {count} times': _row('"a"?', count) for count in (50, 75, 100)},
    **{f'("a" "b"?)? {count} times': _row('("a" "b"?)?', count) for count in (25, 50, 75)},
    **{f"[a-z ]* {count} times": _row("[a-z ]*", count) for count in (10, 15, 20)},
    **{f'{count} equal ways, then "a"? 50 times': _ways(count) + '"a"? ' * 50
       for count in (10, 100)},
    "4000 different texts": "root ::= " + " | ".join(f'"a{n}"' for n in range(4000)),
    **{f"object of {count} optional texts": _properties(count) for count in (50, 500, 1000)},
    '"a"{0,2000}': 'root ::= "a"{0,2000} "b"',
}  # fmt: skip


def main(model: str) -> None:
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.n_ctx, params.n_parallel, params.warmup, params.verbosity = 512, 1, False, -1
    params.cpuparams.n_threads = 1
    server = xllamacpp.Server(params)
    _seconds(server, "")
    plain_s = _seconds(server, "")
    for name, grammar in SHAPES.items():
        taken_s = _seconds(server, grammar) - plain_s
        print(f"{name:50} {taken_s / TOKENS * 1000:10.1f} ms  {_verdict(grammar)}", flush=True)
    os._exit(0)


def _seconds(server: xllamacpp.Server, grammar: str) -> float:
    asked = {"prompt": "aaaaaaaaaaaaaa", "n_predict": TOKENS, "temperature": 0, "cache_prompt": False}
    asked |= {"grammar": grammar} if grammar else {}
    began_s = time.process_time()
    json.dumps(server.handle_completions(asked))
    return time.process_time() - began_s


def _verdict(grammar: str) -> str:
    try:
        at_once(check_grammar(grammar))
    except Invalid as error:
        return error.message[:60]
    return "accepted"


if __name__ == "__main__":
    main(sys.argv[1])
