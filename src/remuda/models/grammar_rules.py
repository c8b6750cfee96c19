"""Grammars in the form that llama.cpp reads (GBNF): the rules, and how texts are written in them. Pure."""

import json
from collections.abc import Iterable, Sequence
from typing import Final

from pydantic import JsonValue

from remuda.core.errors import Invalid

CHARS_MAX: Final = 1 << 20
REPETITIONS_MAX: Final = 2000  # More is not read.
_EXCLUDED_CHARS_MAX: Final = 100
COMMA: Final = 'ws "," ws'
COLON: Final = 'ws ":" ws'

_IN_QUOTES: Final = '"\\'  # What is written as an escape there.
_IN_BRACKETS: Final = "[]^-\\"
# Blanks are bounded, or a model that runs out of ideas writes them for ever.
_SHARED: Final = {
    "ws": '( " " | "\\n" [ \\t]{0,20} )?',
    "char": r'[^"\\\x00-\x1F] | "\\" ( ["\\/bfnrt] | "u" [0-9a-fA-F]{4} )',
    "string": r'"\"" char* "\""',
    "integer": '"-"? ( "0" | [1-9] [0-9]{0,17} )',
    "number": '"-"? ( "0" | [1-9] [0-9]{0,17} ) ( "." [0-9]{1,20} )? ( [eE] [-+]? [0-9]{1,3} )?',
    "boolean": '"true" | "false"',
    "null": '"null"',
    "value": "object | array | string | number | boolean | null",
    "object": f'"{{" ws ( string {COLON} value ( {COMMA} string {COLON} value )* ws )? "}}"',
    "array": f'"[" ws ( value ( {COMMA} value )* ws )? "]"',
}


class Rules:
    """The rules of one grammar. Equal ones are written once."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}  # Of what each rule says.
        self._chars = 0

    def add(self, body: str) -> str:
        """The name of a rule that says this."""
        if body.isidentifier():  # It is another rule's name.
            return body
        if body not in self._names:
            self._chars += len(body)
            if self._chars > CHARS_MAX:
                raise Invalid(f"its grammar has more than {CHARS_MAX >> 20} MiB")
            self._names[body] = f"r{len(self._names)}"
        return self._names[body]

    def grammar(self, root: str) -> str:
        """The whole grammar, whose texts are what `root` says."""
        own = [f"{name} ::= {body}" for body, name in self._names.items()]
        shared = [f"{name} ::= {body}" for name, body in _SHARED.items()]
        return "\n".join([f"root ::= {root}", *own, *shared, ""])


def literal(text: str) -> str:
    """Exactly this text."""
    return f'"{_escaped(text, _IN_QUOTES)}"'


def json_literal(value: JsonValue) -> str:
    """Exactly this value, written in the shortest way."""
    return literal(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def either(choices: Iterable[str]) -> str:
    """One of these, each named once."""
    return " | ".join(dict.fromkeys(choices))


def repeated(part: str, least: int, most: int | None) -> str:
    """So many times. What cannot be counted so far has no upper bound."""
    if most is not None and most <= REPETITIONS_MAX:
        return f"{part}{{{least},{most}}}"
    return f"{part}{{{least},}}" if least else f"{part}*"


def other_string(rules: Rules, known: Sequence[str]) -> str:
    """The name of a rule for all strings but these, if none is so long that it is better not looked at."""
    inner = [json.dumps(name, ensure_ascii=False)[1:-1] for name in known]
    if not known or max(map(len, inner)) > _EXCLUDED_CHARS_MAX:
        return "string"
    return rules.add(f'"\\"" {_other(rules, sorted(set(inner)), optional="" not in inner)} "\\""')


def _other(rules: Rules, known: list[str], *, optional: bool) -> str:
    """All that a string can go on with, but for these; if `optional` it may also end here.

    A string leaves the ones known at some plain character, and is free from there on.
    """
    heads: dict[str, list[str]] = {}
    for name in known:
        if name:
            heads.setdefault(name[0], []).append(name[1:])
    class_ = "".join(_escaped(head, _IN_BRACKETS) for head in heads)
    ways = [f'[^"\\\\\\x00-\\x1F{class_}] char*']
    for head, tails in heads.items():
        ways.append(f"{literal(head)} {_other(rules, tails, optional='' not in tails)}")
    return f"{rules.add(either(ways))}{'?' if optional else ''}"


def _escaped(text: str, special: str) -> str:
    return "".join(_escape(char) if char in special or not char.isprintable() else char for char in text)


def _escape(char: str) -> str:
    if char in '"\\[]':
        return f"\\{char}"
    code = ord(char)
    return f"\\x{code:02X}" if code < 0x80 else f"\\U{code:08X}"
