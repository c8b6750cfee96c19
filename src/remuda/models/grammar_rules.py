"""Grammars in the form that llama.cpp reads (GBNF): the rules, and how texts are written in them. Pure."""

import json
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Final

from pydantic import JsonValue

from remuda.core.errors import Invalid
from remuda.core.gbnf import ALTERNATIVES_MAX, CHARS_MAX, COPIES_MAX, REPETITIONS_MAX, RULES_MAX
from remuda.core.slices import Budget, Sliced

_EXCLUDED_CHARS_MAX: Final = 100
_RULE_CHARS: Final = 16  # Of a rule's name, and what stands around it.
_SHARED_COPIES: Final = 200  # By the repetitions in the rules that all grammars have.
_LITERAL_CHARS_MAX: Final = 32 << 10
_CHARS_PER_STEP: Final = 32  # Which are copied in the time of a step. Escaping one takes as long as four.
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
    """The rules of one grammar. Equal ones are written once. Invalid for more than an engine can bear."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._names: dict[str, str] = {}  # Of what each rule says.
        self._chars = sum(map(len, _SHARED.values())) + _RULE_CHARS * (len(_SHARED) + 1)
        self._alternatives = sum(body.count("|") for body in _SHARED.values())
        self._copies = _SHARED_COPIES
        self._origin = ""
        self._origins: dict[str, str] = {}  # What each rule was made for.

    @contextmanager
    def origin(self, words: str) -> Generator[None, None, None]:
        """What rules are made for from here on, in words that begin a message."""
        before, self._origin = self._origin, words
        try:
            yield
        finally:
            self._origin = before

    def origin_of(self, rule: str) -> str:
        return self._origins.get(rule, "")

    def add(self, body: str) -> str:
        """The name of a rule that says this."""
        if body.isidentifier():  # It is another rule's name.
            return body
        if body not in self._names:
            self._chars += len(body) + _RULE_CHARS
            self._alternatives += body.count("|")
            self._within(self._chars, CHARS_MAX, "characters")
            self._within(self._alternatives, ALTERNATIVES_MAX, "alternatives")
            self._within(len(self._names), RULES_MAX - len(_SHARED) - 1, "rules")
            self._names[body] = f"r{len(self._names)}"
            self._origins[self._names[body]] = self._origin
        return self._names[body]

    def spend(self, steps: int) -> bool:
        """What the budget says."""
        return self._budget.spend(steps)

    def constant(self, value: JsonValue) -> str:
        """Exactly this value."""
        text = json_text(value)
        if len(text) > _LITERAL_CHARS_MAX:
            raise Invalid(f"a constant is longer than {_LITERAL_CHARS_MAX} characters")
        plain = text.isprintable()
        self._budget.charge(1 + len(text) // (_CHARS_PER_STEP if plain else 4))
        return literal(text)

    def choice(self, count: int) -> None:
        """So many alternatives are about to be written. Invalid if those are too many, before any work."""
        self._within(self._alternatives + count, ALTERNATIVES_MAX, "alternatives")

    def room(self, *counts: int) -> None:
        """An object with so many named properties, or required ones, is about to be written."""
        self._within(len(self._names) + max(counts), RULES_MAX, "rules")

    def repeated(self, part: str, least: int, most: int | None) -> str:
        """So many times. What cannot be counted so far has no upper bound: engines copy what is repeated."""
        if most is not None and self.can_count_to(most):
            self._copies += most
            return f"{part}{{{least},{most}}}"
        self._copies += least
        self._within(self._copies, COPIES_MAX, "repeated parts")
        return f"{part}{{{least},}}" if least else f"{part}*"

    def can_count_to(self, most: int) -> bool:
        return most <= REPETITIONS_MAX and self._copies + most <= COPIES_MAX // 2

    def grammar(self, root: str) -> str:
        """The whole grammar, whose texts are what `root` says."""
        own = [f"{name} ::= {body}" for body, name in self._names.items()]
        shared = [f"{name} ::= {body}" for name, body in _SHARED.items()]
        return "\n".join([f"root ::= {root}", *own, *shared, ""])

    def _within(self, count: int, most: int, what: str) -> None:
        if count > most:
            raise Invalid(
                f"it makes a grammar of more than {most} {what}",
                hint="fewer properties and fewer allowed values make it smaller",
            )


def literal(text: str) -> str:
    """Exactly this text."""
    return f'"{_escaped(text, _IN_QUOTES)}"'


def json_literal(value: JsonValue) -> str:
    """Exactly this value, written in the shortest way."""
    return literal(json_text(value))


def json_text(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def either(choices: Iterable[str]) -> str:
    """One of these, each named once."""
    return " | ".join(dict.fromkeys(choices))


def other_string(rules: Rules, known: Sequence[str]) -> Sliced[str]:
    """The name of a rule for all strings but these, if none is so long that it is better not looked at."""
    inner = [json.dumps(name, ensure_ascii=False)[1:-1] for name in known]
    if not known or max(map(len, inner)) > _EXCLUDED_CHARS_MAX:
        return "string"
    rest = yield from _other(rules, sorted(set(inner)), optional="" not in inner)
    return rules.add(f'"\\"" {rest} "\\""')


def _other(rules: Rules, known: list[str], *, optional: bool) -> Sliced[str]:
    """All that a string can go on with, but for these; if `optional` it may also end here.

    A string leaves the ones known at some plain character, and is free from there on.
    """
    if rules.spend(len(known) + 4):
        yield
    heads: dict[str, list[str]] = {}
    for name in known:
        if name:
            heads.setdefault(name[0], []).append(name[1:])
    class_ = "".join(_escaped(head, _IN_BRACKETS) for head in heads)
    ways = [f'[^"\\\\\\x00-\\x1F{class_}] char*']
    for head, tails in heads.items():
        rest = yield from _other(rules, tails, optional="" not in tails)
        ways.append(f"{literal(head)} {rest}")
    return f"{rules.add(either(ways))}{'?' if optional else ''}"


def _escaped(text: str, special: str) -> str:
    if text.isprintable() and not any(char in text for char in special):
        return text
    return "".join(_escape(char) if char in special or not char.isprintable() else char for char in text)


def _escape(char: str) -> str:
    if char in '"\\[]':
        return f"\\{char}"
    code = ord(char)
    return f"\\x{code:02X}" if code < 0x80 else f"\\U{code:08X}"
