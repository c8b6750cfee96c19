"""Grammars as llama.cpp reads them, read once more: which texts does one accept?"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_RULE = re.compile(r"(?P<name>[a-zA-Z][a-zA-Z0-9-]*) ::= (?P<body>.*)")
_TOKEN = re.compile(
    r"""[ ]*(?:
    (?P<literal> "(?:[^"\\]|\\.)*" )
  | (?P<chars> \[\^?(?:[^\]\\]|\\.)*\] )
  | (?P<repeat> \{\d+(?:,\d*)?\} | [*+?] )
  | (?P<name> [a-zA-Z][a-zA-Z0-9-]* )
  | (?P<mark> [()|] )
    )""",
    re.VERBOSE,
)
_ESCAPE = re.compile(r"\\(?:x([0-9A-F]{2})|u([0-9A-F]{4})|U([0-9A-F]{8})|(.))", re.DOTALL)
_LETTERS = {"n": "\n", "r": "\r", "t": "\t"}
REPETITIONS_MAX = 2000

Ends = frozenset[int]
Matcher = Callable[[str, int], Ends]


@dataclass(frozen=True)
class Token:
    kind: str
    text: str


class Grammar:
    """Raises ValueError for what is no grammar, a name without a rule included."""

    def __init__(self, text: str) -> None:
        self._rules: dict[str, Matcher] = {}
        self._memo: dict[tuple[str, int], Ends] = {}
        self._named: set[str] = set()
        for line in text.splitlines():
            rule = _RULE.fullmatch(line)
            if rule is None or rule["name"] in self._rules:
                raise ValueError(f"no rule, or a second one: {line}")
            tokens = list(_tokens(rule["body"]))
            self._rules[rule["name"]] = self._choice(tokens)
            if tokens:
                raise ValueError(f"{tokens[0]} is too much in {line}")
        if unknown := self._named - self._rules.keys():
            raise ValueError(f"no rules for {unknown}")

    def accepts(self, text: str) -> bool:
        self._memo = {}
        return len(text) in self._rules["root"](text, 0)

    def _choice(self, tokens: list[Token]) -> Matcher:
        ways = [self._sequence(tokens)]
        while tokens and tokens[0] == Token("mark", "|"):
            del tokens[0]
            ways.append(self._sequence(tokens))
        return lambda text, at: frozenset().union(*(way(text, at) for way in ways))

    def _sequence(self, tokens: list[Token]) -> Matcher:
        parts: list[Matcher] = []
        while tokens and tokens[0].text not in (")", "|"):
            part = self._part(tokens)
            if tokens and tokens[0].kind == "repeat":
                part = _repeated(part, tokens.pop(0).text)
            parts.append(part)

        def match(text: str, at: int) -> Ends:
            ends = frozenset({at})
            for part in parts:
                ends = frozenset().union(*(part(text, end) for end in ends))
            return ends

        return match

    def _part(self, tokens: list[Token]) -> Matcher:
        token = tokens.pop(0)
        match token.kind:
            case "literal":
                literal = _plain(token.text[1:-1])
                return lambda text, at: frozenset({at + len(literal)} if text.startswith(literal, at) else ())
            case "chars":
                allowed = _chars(token.text)
                return lambda text, at: frozenset({at + 1} if at < len(text) and allowed(text[at]) else ())
            case "name":
                return self._by_name(token.text)
        if token.text != "(":
            raise ValueError(f"{token} cannot stand here")
        inner = self._choice(tokens)
        if not tokens or tokens.pop(0).text != ")":
            raise ValueError("a parenthesis is not closed")
        return inner

    def _by_name(self, name: str) -> Matcher:
        self._named.add(name)

        def match(text: str, at: int) -> Ends:
            if (name, at) not in self._memo:
                self._memo[name, at] = self._rules[name](text, at)
            return self._memo[name, at]

        return match


def _tokens(body: str) -> Iterator[Token]:
    at = 0
    while at < len(body.rstrip()):
        token = _TOKEN.match(body, at)
        if token is None or token.lastgroup is None:
            raise ValueError(f"not understood: {body[at:]}")
        yield Token(token.lastgroup, token[token.lastgroup])
        at = token.end()


def _repeated(part: Matcher, bounds: str) -> Matcher:
    least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(bounds, (0, None))
    if bounds.startswith("{"):
        low, comma, high = bounds[1:-1].partition(",")
        least, most = int(low), int(high or low) if high or not comma else None
    if max(least, most or 0) > REPETITIONS_MAX:
        raise ValueError(f"{bounds} is more than llama.cpp counts to")

    def match(text: str, at: int) -> Ends:
        ends, found, count = frozenset({at}), set[int](), 0
        while ends and (most is None or count <= most):
            if count >= least:
                if ends <= found:
                    break
                found |= ends
            ends = frozenset().union(*(part(text, end) for end in ends))
            count += 1
        return frozenset(found)

    return match


def _plain(text: str) -> str:
    def meant(escape: re.Match[str]) -> str:
        code = escape[1] or escape[2] or escape[3]
        return chr(int(code, 16)) if code else _LETTERS.get(escape[4], escape[4])

    return _ESCAPE.sub(meant, text)


def _chars(text: str) -> Callable[[str], bool]:
    inner = text[1:-1]
    negated = inner.startswith("^")
    items = [(m[0], _plain(m[0])) for m in re.finditer(_ESCAPE.pattern + "|.", inner[negated:], re.DOTALL)]
    ranges: list[tuple[str, str]] = []
    at = 0
    while at < len(items):
        if at + 2 < len(items) and items[at + 1][0] == "-":
            ranges.append((items[at][1], items[at + 2][1]))
            at += 3
        else:
            ranges.append((items[at][1], items[at][1]))
            at += 1
    return lambda char: negated != any(low <= char <= high for low, high in ranges)
