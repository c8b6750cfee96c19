"""Bounds on the size and shape of grammars in GBNF, the form that llama.cpp reads. Pure.

Engines parse groups by recursion, copy what is repeated, and keep every alternative open while they write.
The text is cut up exactly as they do it, or a grammar could hide from the bounds what an engine sees.
A grammar is a client's text, so all of that is bounded before an engine sees it. Whether a grammar makes
sense is left to the engine.
"""

import re
from collections import deque
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from remuda.core.errors import Invalid
from remuda.core.gbnf_ambiguity import Ambiguity
from remuda.core.gbnf_diagnosis import why_refused
from remuda.core.gbnf_expansion import Expansion
from remuda.core.gbnf_overlap import Overlap
from remuda.core.slices import Budget, Sliced

CHARS_MAX: Final = 512 << 10
RULES_MAX: Final = 10_000
ALTERNATIVES_MAX: Final = 4000  # An engine needs half a second for so many, and four times as long for twice.
NESTING_MAX: Final = 64
REPETITIONS_MAX: Final = 2000  # In one {m,n}: more is not read.
COPIES_MAX: Final = 40_000  # Characters and references that repetitions are unrolled to.

_SHOWN_CHARS_MAX: Final = 60
_STEPS_MAX: Final = 16 * CHARS_MAX  # Never reached: the budget only cuts the work into slices.
_TOKEN: Final = re.compile(
    r"""
    (?P<literal> "(?P<text>(?:[^"\\]++|\\.)*+)"? )
  | (?P<class> \[\^?+(?P<set>(?:[^\]\\]++|\\.)*+)\]? )
  | (?P<comment> \#[^\r\n]*+ )
  | (?P<rule> ::= )
  | (?P<open> \( )
  | (?P<close> \) )
  | (?P<either> \| )
  | (?P<times> \{\s*+(?P<least>\d*+)\s*+(?P<comma>,?)\s*+(?P<most>\d*+)\s*+\} )
  | (?P<name> [A-Za-z0-9_-]++ )
  | (?P<mark> [*+?] )
  | (?P<space> [ \t\r\n]++ )
  | (?P<other> . )
    """,
    re.VERBOSE | re.DOTALL,
)


_MARKS: Final[dict[str, tuple[int, int | None]]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


class _Shape:
    def __init__(self) -> None:
        self.rules = self.alternatives = self.copies = 0
        self._depth = 0
        self._size = 1  # Of what a repetition would repeat.
        self._rule = self._name = ""

    def take(self, token: re.Match[str]) -> None:
        match token.lastgroup:
            case "literal" | "class":
                self._size = max(len(token[0]) - 2, 1)
            case "rule":
                self.rules += 1
                self._rule = self._name
                _within(self.rules, RULES_MAX, "rules")
            case "open":
                self._depth += 1
                self._within(self._depth, NESTING_MAX, "groups within each other")
            case "close":
                self._depth, self._size = max(self._depth - 1, 0), 1
            case "either":
                self.alternatives += 1
                self._within(self.alternatives, ALTERNATIVES_MAX, "alternatives")
            case "times":
                self._repeat(token[0], token["least"], token["most"])
            case "name":
                self._size, self._name = 1, token[0]
            case "mark" | "other":
                self._size = 1

    def _repeat(self, text: str, least: str, most: str) -> None:
        digits = max(least.lstrip("0"), most.lstrip("0"), key=lambda number: (len(number), number))
        if len(digits) > len(str(REPETITIONS_MAX)) or int(digits or 0) > REPETITIONS_MAX:
            raise _too_much(
                REPETITIONS_MAX, f"repetitions of one part, {text[:_SHOWN_CHARS_MAX]}", self._rule
            )
        self.copies += int(digits or 0) * self._size
        what = f"characters when its repetitions are written out, the last of them {text}"
        self._within(self.copies, COPIES_MAX, what)

    def _within(self, count: int, most: int, what: str) -> None:
        if count > most:
            raise _too_much(most, what, self._rule)


def check_grammar(text: str) -> Sliced[None]:
    """Invalid says which bound the grammar is beyond."""
    _within(len(text), CHARS_MAX, "characters")
    if "\0" in text:
        raise Invalid("the grammar has a NUL character", hint="write it as \\x00")
    budget, shape, expansion = Budget("the grammar", _STEPS_MAX), _Shape(), Expansion()
    for token in _TOKEN.finditer(text):
        shape.take(token)
        _expand(expansion, token)
        if budget.spend():
            yield
    costs = yield from expansion.check(budget)
    texts = list(expansion.texts)
    yield from Ambiguity(expansion.rules, expansion.names, texts).check(budget)
    yield from Overlap(expansion.rules, expansion.names, texts, costs).check(budget)


def why_not_parsed(text: str) -> Sliced[str]:
    """What an engine that did not parse the grammar stopped at, with the rule; empty: nothing is found."""
    return (yield from why_refused(text, _TOKEN.finditer(text)))


def canonical(text: str) -> str:
    """The same for grammars that differ only in blanks, comments, the names and the order of their rules, and
    in rules that nothing refers to."""
    tokens = [
        (token.lastgroup == "name", token.lastgroup == "rule", token[0])
        for token in _TOKEN.finditer(text)
        if token.lastgroup not in ("space", "comment")
    ]
    starts = [at - 1 for at, (_, defines, _) in enumerate(tokens) if defines and at and tokens[at - 1][0]]
    bodies: dict[str, list[tuple[bool, bool, str]]] = {}
    for start, end in pairwise([*starts, len(tokens)]):
        bodies.setdefault(tokens[start][2], []).extend(tokens[start + 1 : end])
    if "root" not in bodies:  # No engine can use it.
        return " ".join(word for _, _, word in tokens)
    return " ".join(_reachable(bodies, tokens[: starts[0]]))


def _reachable(
    bodies: dict[str, list[tuple[bool, bool, str]]], before: list[tuple[bool, bool, str]]
) -> Iterator[str]:
    """The words of the rules in the order in which they are referred to, beginning with root."""
    yield from (word for _, _, word in before)
    names = {"root": "root"}
    waiting = deque(["root"])
    while waiting:
        name = waiting.popleft()
        yield names[name]
        for refers, _, word in bodies.get(name, ()):
            if refers and word not in names:
                names[word] = f"r{len(names)}"
                if word in bodies:
                    waiting.append(word)
            yield names[word] if refers else word


def _expand(expansion: Expansion, token: re.Match[str]) -> None:
    match token.lastgroup:
        case "literal" | "class" | "other":
            expansion.text(token[0], empty="" in (token["text"], token["set"]))
        case "name":
            expansion.refer(token[0])
        case "rule":
            expansion.define()
        case "open":
            expansion.open()
        case "close":
            expansion.close()
        case "either":
            expansion.either()
        case "mark":
            expansion.repeat(*_MARKS[token[0]])
        case "times":
            least = _number(token["least"])
            most = _number(token["most"]) if token["most"] else None if token["comma"] else least
            expansion.repeat(least, most)


def _number(digits: str) -> int:
    return int(digits.lstrip("0") or 0)


def _within(count: int, most: int, what: str) -> None:
    if count > most:
        raise _too_much(most, what)


def _too_much(most: int, what: str, rule: str = "") -> Invalid:
    where = f", in the rule {rule[:_SHOWN_CHARS_MAX]}" if rule else ""
    return Invalid(
        f"the grammar has more than {most} {what}{where}",
        hint="simplify it: engines need too long for larger ones, or fail",
    )
