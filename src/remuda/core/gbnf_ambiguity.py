"""Recursive rules in a grammar in GBNF whose ways to go on double with each text that is read. Pure.

An engine keeps a stack for each way in which a text may go on. Where two alternatives of a rule read the same
text and come back to the rule, each with something else still to follow, there are twice as many stacks each
time. It does not matter how many other rules and groups lie between, so two stacks are followed side by side,
as an engine would, through all texts that both of them accept.

The search is bounded, so not all such grammars are found; the code that runs an engine has to look how long
it takes.
"""

import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, islice
from typing import Final, NamedTuple

from remuda.core.gbnf_expansion import Rule, RuleRefused, Times, ambiguous
from remuda.core.slices import Budget, Sliced

_PAIRS_MAX: Final = 2000  # Of stacks, for one rule.
_STEPS_MAX: Final = 100_000  # For all rules: 0.3 to 0.5 s for grammars made to use it up.
_EXPANSIONS_MAX: Final = 400  # Before one character.
_STACK_MAX: Final = 24
_COPIES_MAX: Final = 8  # Of a repetition that is counted exactly.
_PAIR_STEPS: Final = 4

_LAST: Final = 0x10FFFF
_CHAR: Final = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))|(.)", re.DOTALL)
_ESCAPED: Final = {"n": "\n", "r": "\r", "t": "\t"}

_Ranges = tuple[tuple[int, int], ...]
_ANY: Final[_Ranges] = ((0, _LAST),)


class _Frame(NamedTuple):
    """A place in an alternative of a rule, before one of its parts."""

    rule: int
    way: int
    at: int


_Stack = tuple[_Frame, ...]  # The last one is to be matched first.


class _Leaf(NamedTuple):
    """A stack before a character of a text or class."""

    below: _Stack
    text: int
    offset: int
    again: bool = False  # It entered the rule anew before this character.


class _Pair(NamedTuple):
    one: _Leaf
    other: _Leaf
    wide: bool  # Each character so far could be one of several.
    tail: bool  # The alternatives that they began with are one, and the same with something after it.


@dataclass(slots=True)
class _Reached:
    leaves: list[_Leaf] = field(default_factory=list)
    again: list[_Stack] = field(default_factory=list)  # What follows where the rule itself is reached.


class Ambiguity:
    """Of rules that do not name themselves before a character is read."""

    def __init__(self, rules: Sequence[Rule], names: Sequence[str], texts: Sequence[str]) -> None:
        self._names = names
        self._texts = texts
        self._ways = [_ways(number, rule) for number, rule in enumerate(rules)]
        self._repeats = [isinstance(rule, Times) for rule in rules]
        self._chars: dict[int, Sequence[_Ranges]] = {}
        self._left = _STEPS_MAX

    def check(self, budget: Budget) -> Sliced[None]:
        """RuleRefused names a rule whose ways double."""
        circle_of = yield from _circles(self._ways, budget)
        members: dict[int, set[int]] = {}
        for number, key in circle_of.items():
            members.setdefault(key, set()).add(number)
        for number, ways in enumerate(self._ways):
            if budget.spend(1 + sum(map(len, ways))):
                yield
            if self._repeats[number]:
                continue
            circle = members[circle_of[number]]
            back = [index for index, way in enumerate(ways) if not circle.isdisjoint(way)]
            if len(back) > 1:
                yield from _Search(self, number, circle).run(back, budget)
                if self._left <= 0:
                    return

    def spend(self, steps: int) -> bool:
        """Whether there is something left to spend."""
        self._left -= steps
        return self._left > 0

    def way(self, frame: _Frame) -> Sequence[int]:
        return self._ways[frame.rule][frame.way]

    def ways(self, number: int) -> Sequence[Sequence[int]]:
        return self._ways[number]

    def chars(self, text: int) -> Sequence[_Ranges]:
        if text not in self._chars:
            self._chars[text] = _chars_of(self._texts[text])
        return self._chars[text]

    def refusal(self, number: int) -> RuleRefused:
        return ambiguous(self._names[number])


class _Search:
    """For two alternatives of one rule that lead back to it."""

    def __init__(self, grammar: Ambiguity, start: int, circle: set[int]) -> None:
        self._grammar = grammar
        self._start = start
        self._circle = circle
        self._last: dict[tuple[int, int], int] = {}
        self._seen: set[_Pair] = set()
        self._queue: deque[_Pair] = deque()

    def run(self, back: Sequence[int], budget: Budget) -> Sliced[None]:
        begun: dict[int, _Reached] = {}
        ways = self._grammar.ways(self._start)
        for one, other in islice(combinations(back, 2), _PAIRS_MAX):
            for index in (one, other):
                if index not in begun:
                    begun[index] = self._expand((_Frame(self._start, index, 0),), budget)
            tail = _optional_tail(ways[one], ways[other])
            self._meet(begun[one].leaves, begun[other].leaves, wide=True, tail=tail)
            if budget.spend(_PAIR_STEPS):
                yield
        while self._queue and self._grammar.spend(_PAIR_STEPS):
            if budget.spend(_PAIR_STEPS):
                yield
            self._advance(self._queue.popleft(), budget)

    def _advance(self, pair: _Pair, budget: Budget) -> None:
        count = _shared(self._next(pair.one), self._next(pair.other))
        if not count:
            return
        wide = pair.wide and count > 1
        one, other = self._after(pair.one, budget), self._after(pair.other, budget)
        for first in one.again:
            for second in other.again:
                # In any order they make ever more different stacks, unless the order makes no difference.
                if (wide or not pair.tail) and first + second != second + first:
                    raise self._grammar.refusal(self._start)
        self._meet(one.leaves, other.leaves, wide=wide, tail=pair.tail)

    def _meet(self, some: Sequence[_Leaf], others: Sequence[_Leaf], *, wide: bool, tail: bool) -> None:
        for one in some:
            if len(self._seen) >= _PAIRS_MAX or not self._grammar.spend(len(others)):
                return
            for other in others:
                pair = _Pair(one, other, wide, tail)
                if (one.again and other.again) or one[:3] == other[:3] or pair in self._seen:
                    continue
                self._seen.add(pair)
                self._queue.append(pair)

    def _next(self, leaf: _Leaf) -> _Ranges:
        return self._grammar.chars(leaf.text)[leaf.offset]

    def _after(self, leaf: _Leaf, budget: Budget) -> _Reached:
        if leaf.offset + 1 < len(self._grammar.chars(leaf.text)):
            return _Reached([leaf._replace(offset=leaf.offset + 1, again=False)])
        return self._expand(leaf.below, budget)

    def _expand(self, stack: _Stack, budget: Budget) -> _Reached:
        """Up to the next character, in all ways."""
        reached, todo = _Reached(), [(stack, False)]
        for _ in range(_EXPANSIONS_MAX):
            if not todo:
                break
            stack, again = todo.pop()
            if not self._grammar.spend(1):
                break
            budget.charge(1)
            if not stack or len(stack) > _STACK_MAX or not self._leads_back(stack):
                continue
            top, below = stack[-1], stack[:-1]
            way = self._grammar.way(top)
            if top.at >= len(way):
                todo.append((below, again))
                continue
            if top.at + 1 < len(way):
                below = (*below, top._replace(at=top.at + 1))
            part = way[top.at]
            if part < 0:
                reached.leaves.append(_Leaf(below, ~part, 0, again))
                continue
            if part == self._start:
                reached.again.append(below)
            inner = again or part == self._start
            todo += (
                ((*below, _Frame(part, index, 0)), inner) for index in range(len(self._grammar.ways(part)))
            )
        return reached

    def _leads_back(self, stack: _Stack) -> bool:
        return any(frame.at <= self._last_back(frame) for frame in stack)

    def _last_back(self, frame: _Frame) -> int:
        """Where the alternative leads back for the last time; below 0 if it does not."""
        key = frame.rule, frame.way
        if key not in self._last:
            way = self._grammar.way(frame)
            self._last[key] = max((at for at, part in enumerate(way) if part in self._circle), default=-1)
        return self._last[key]


def _optional_tail(one: Sequence[int], other: Sequence[int]) -> bool:
    """As in `e ::= t | t "+" e`, which is how people write lists and sums: it is ordinary where brackets or
    other texts of its own lead back to the rule, and refused where any letter does."""
    shorter, longer = sorted((one, other), key=len)
    return min(shorter, default=0) >= 0 and list(longer[: len(shorter)]) == list(shorter)


def _ways(number: int, rule: Rule) -> Sequence[Sequence[int]]:
    """A repetition as alternatives; the number of its copies is counted only if it is small and fixed."""
    if not isinstance(rule, Times):
        return rule
    if rule.most == rule.least and rule.least <= _COPIES_MAX:
        return [[rule.part] * rule.least]
    least: Sequence[int] = [rule.part] if rule.least else []
    return [least, [rule.part] if rule.most == 1 else [rule.part, number]]


def _circles(ways: Sequence[Sequence[Sequence[int]]], budget: Budget) -> Sliced[Mapping[int, int]]:
    """Each rule with the number of its circle: the rules that lead to it and that it leads to (Tarjan)."""
    order: dict[int, int] = {}
    low: dict[int, int] = {}
    open_rules: list[int] = []
    done: dict[int, int] = {}
    for start in range(len(ways)):
        path = [] if start in order else [(start, _named(ways[start]))]
        while path:
            if budget.spend():
                yield
            number, parts = path[-1]
            if number not in order:
                order[number] = low[number] = len(order)
                open_rules.append(number)
            part = next((part for part in parts if part not in done), None)
            if part is None:
                path.pop()
                if path:
                    above = path[-1][0]
                    low[above] = min(low[above], low[number])
                if low[number] == order[number]:
                    _close(number, open_rules, done)
            elif part in order:
                low[number] = min(low[number], order[part])
            else:
                path.append((part, _named(ways[part])))
    return done


def _named(ways: Sequence[Sequence[int]]) -> Iterator[int]:
    return (part for way in ways for part in way if part >= 0)


def _close(number: int, open_rules: list[int], done: dict[int, int]) -> None:
    while open_rules:
        member = open_rules.pop()
        done[member] = number
        if member == number:
            return


def _chars_of(text: str) -> Sequence[_Ranges]:
    """What each character of a text or class may be."""
    if text.startswith('"'):
        return [((code, code),) for code in _codes(text[1:].removesuffix('"'))] or [_ANY]
    if not text.startswith("["):
        return [_ANY]
    inner = text[1:].removesuffix("]")
    ranges = _ranges(inner.removeprefix("^"))
    return [_others(ranges) if inner.startswith("^") else ranges]


def _ranges(inner: str) -> _Ranges:
    found = list[tuple[int, int]]()
    chars = [(match[0], code) for match, code in zip(_CHAR.finditer(inner), _codes(inner), strict=True)]
    at = 0
    while at < len(chars):
        first = last = chars[at][1]
        at += 1
        if at + 1 < len(chars) and chars[at][0] == "-":
            last = chars[at + 1][1]
            at += 2
        found.append((first, last))
    return tuple(found)


def _codes(text: str) -> list[int]:
    codes = []
    for match in _CHAR.finditer(text):
        digits = match[1] or match[2] or match[3]
        escaped = match[4]
        codes.append(
            int(digits, 16) if digits else ord(_ESCAPED.get(escaped, escaped) if escaped else match[5])
        )
    return codes


def _others(ranges: _Ranges) -> _Ranges:
    found, begin = list[tuple[int, int]](), 0
    for first, last in sorted(ranges):
        if first > begin:
            found.append((begin, first - 1))
        begin = max(begin, last + 1)
    return (*found, (begin, _LAST)) if begin <= _LAST else tuple(found)


def _shared(one: _Ranges, other: _Ranges) -> int:
    """How many characters are in both."""
    return sum(max(min(last, end) - max(first, begin) + 1, 0) for first, last in one for begin, end in other)
