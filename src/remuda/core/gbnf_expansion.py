"""How far a grammar in GBNF expands before a character is read. Pure.

An engine expands rules until each way in which a text may go on begins with a character. A rule that matches
the empty text lets it go on to whatever follows, so a few short rules can double the work at each level.
The steps are counted here without being taken.
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final, NamedTuple

from remuda.core.errors import Invalid
from remuda.core.slices import Budget, Sliced

# For one rule; an engine may repeat it all for each token that it writes. An object of 4000 optional
# properties needs 64,000 steps and has 12,000 beginnings, for which an engine takes about a second.
STEPS_MAX: Final = 80_000
BEGINNINGS_MAX: Final = 12_500

_Sequence = list[int]  # Of rules. Numbers below 0 stand for texts and classes, which are not empty.


class Times(NamedTuple):
    """A repetition, which is a rule of its own. `most` is None for one without an upper bound."""

    part: int
    least: int
    most: int | None


class Cost(NamedTuple):
    empty: int  # In how many ways it matches the empty text.
    steps: int
    beginnings: int  # Characters that can come first, each counted as often as it is reached.

    def too_much(self) -> bool:
        return max(self.empty, self.steps) > STEPS_MAX or self.beginnings > BEGINNINGS_MAX


class RuleRefused(Invalid):
    """An engine should not be given the grammar because of this rule."""

    def __init__(self, rule: str, message: str, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.rule = rule


_NOTHING: Final = -1
Rule = list[_Sequence] | Times
_FREE: Final = Cost(1, 0, 0)
_TERMINAL: Final = Cost(0, 1, 1)


class Expansion:
    """Takes the parts of a grammar in their order. What makes no sense is left for the engine to refuse."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self.names: list[str] = []  # A group or repetition has the name of the rule that it is in.
        self.rules: list[Rule] = []
        self._ways: list[_Sequence] = []  # Of the rule or group that is being read.
        self._sequence: _Sequence = []
        self._around: list[tuple[list[_Sequence], _Sequence]] = []
        self.texts: dict[str, int] = {}
        self._name = ""

    def define(self) -> None:
        """The reference before this was the name of a rule that begins here."""
        number = self._sequence.pop() if self._sequence else _NOTHING
        rule = self.rules[number] if number >= 0 else None
        if not isinstance(rule, list):
            raise Invalid("the grammar has ::= without the name of a rule before it")
        self._name, self._ways = self.names[number], rule
        self._around.clear()
        self.either()

    def refer(self, name: str) -> None:
        if name not in self._numbers:
            self._numbers[name] = self._new([], name)
        self._sequence.append(self._numbers[name])

    def text(self, text: str, *, empty: bool) -> None:
        self._sequence.append(self._new([[]]) if empty else self.texts.setdefault(text, ~len(self.texts)))

    def open(self) -> None:
        group: list[_Sequence] = []
        self._sequence.append(self._new(group))
        self._around.append((self._ways, self._sequence))
        self._ways = group
        self.either()

    def close(self) -> None:
        if self._around:
            self._ways, self._sequence = self._around.pop()

    def either(self) -> None:
        self._sequence = []
        self._ways.append(self._sequence)

    def repeat(self, least: int, most: int | None) -> None:
        if self._sequence:
            self._sequence[-1] = self._new(Times(self._sequence[-1], least, most))

    def check(self, budget: Budget) -> Sliced[Mapping[int, Cost]]:
        """What each rule costs. RuleRefused for one that expands too far, or without end, or is ambiguous."""
        yield from self._check_ambiguity(budget)
        empty = yield from self._empty_rules(budget)
        costs: dict[int, Cost] = {}
        entered: set[int] = set()
        for start in range(len(self.rules)):
            path = [start]
            while path:
                rule = path[-1]
                first = [] if rule in costs else list(islice(self._first(rule, empty), STEPS_MAX + 1))
                if len(first) > STEPS_MAX:
                    raise self._too_far(rule)
                if budget.spend(1 + len(first)):
                    yield
                if rule in costs or rule in entered:
                    path.pop()
                    costs.setdefault(rule, self._cost(rule, costs))
                    continue
                entered.add(rule)
                ahead = [part for part in first if part not in costs]
                if not entered.isdisjoint(ahead):
                    raise self._endless(rule)
                path += ahead
        return costs

    def _check_ambiguity(self, budget: Budget) -> Sliced[None]:
        """Alternatives that begin alike, up to and with the rule itself, and end differently: each level is
        another choice that stays open, so that the ways double with each. Those that reach the rule through
        others are found by gbnf_ambiguity."""
        for number, rule in enumerate(self.rules):
            if isinstance(rule, Times):
                continue
            endings: dict[tuple[int, ...], tuple[int, ...]] = {}
            for way in rule:
                if budget.spend(1 + len(way)):
                    yield
                at = way.index(number) + 1 if number in way else len(way)
                rest = tuple(way[at:])
                if rest and endings.setdefault(tuple(way[:at]), rest) != rest:
                    raise ambiguous(self.names[number])

    def _new(self, rule: Rule, name: str | None = None) -> int:
        self.rules.append(rule)
        self.names.append(self._name if name is None else name)
        return len(self.rules) - 1

    def _empty_rules(self, budget: Budget) -> Sliced[set[int]]:
        """Those that match the empty text."""
        sequences = yield from self._maybe_empty(budget)
        missing = [len(way) for _, way in sequences]
        users: dict[int, list[int]] = {}
        for index, (_, way) in enumerate(sequences):
            for part in way:
                users.setdefault(part, []).append(index)
                if budget.spend():
                    yield
        found: set[int] = set()
        ready = [number for number, way in sequences if not way]
        while ready:
            number = ready.pop()
            if number in found:
                continue
            found.add(number)
            for index in users.get(number, ()):
                missing[index] -= 1
                if not missing[index]:
                    ready.append(sequences[index][0])
                if budget.spend():
                    yield
        return found

    def _maybe_empty(self, budget: Budget) -> Sliced[list[tuple[int, _Sequence]]]:
        """Rules, each with a sequence that makes it match the empty text if all its parts do."""
        sequences: list[tuple[int, _Sequence]] = []
        for number, rule in enumerate(self.rules):
            ways = [[rule.part] if rule.least else []] if isinstance(rule, Times) else rule
            sequences += [(number, way) for way in ways if min(way, default=0) >= 0]
            if budget.spend(1 + len(ways)):
                yield
        return sequences

    def _first(self, number: int, empty: set[int]) -> Iterator[int]:
        """The rules that this one can begin with, itself included when it repeats what may be empty."""
        rule = self.rules[number]
        if isinstance(rule, Times):
            if rule.part in empty and rule.most is None:
                yield number
            if rule.part >= 0:
                yield rule.part
            return
        for way in rule:
            for part in way:
                if part >= 0:
                    yield part
                if part not in empty:
                    break

    def _cost(self, number: int, costs: dict[int, Cost]) -> Cost:
        rule = self.rules[number]
        if isinstance(rule, Times):
            part = costs[rule.part] if rule.part >= 0 else _TERMINAL
            cost = _repeated(part, rule.least, rule.most)
        else:
            ways = [_in_turn(way, costs) for way in rule]
            cost = Cost(
                sum(way.empty for way in ways),
                1 + sum(1 + way.steps for way in ways),
                sum(way.beginnings for way in ways),
            )
        if cost.too_much():
            raise self._too_far(number)
        return cost

    def _too_far(self, number: int) -> RuleRefused:
        return RuleRefused(
            self.names[number],
            f"the grammar expands too far: the rule {self.names[number]} takes an engine more than "
            f"{STEPS_MAX} steps before it reads a character, or has more than {BEGINNINGS_MAX} beginnings",
            hint="make fewer parts of it optional, above all rules that are named twice in one place",
        )

    def _endless(self, number: int) -> RuleRefused:
        return RuleRefused(
            self.names[number],
            f"the grammar expands without end: the rule {self.names[number]} can repeat or name itself "
            "before it reads a character",
            hint="put what must be read first, and repeat only what cannot be empty",
        )


def ambiguous(name: str) -> RuleRefused:
    return RuleRefused(
        name,
        f"the grammar is too ambiguous: two alternatives of the rule {name} begin alike and contain "
        f"{name} itself, so that the ways in which a text may go on double each time",
        hint="let them share their beginning, as in a ::= x a (y | z) instead of a ::= x a y | x a z",
    )


def _in_turn(way: _Sequence, costs: dict[int, Cost]) -> Cost:
    total = _FREE
    for part in way:
        total = _then(total, costs[part] if part >= 0 else _TERMINAL)
        if not total.empty or total.too_much():
            break
    return total


def _repeated(part: Cost, least: int, most: int | None) -> Cost:
    """As engines write it: so many copies, then each further one within an optional group."""
    total = _FREE
    for _ in range(least):
        total = _then(total, part)
        if not total.empty or total.too_much():
            return total
    rest = Cost(1, 1, 0)
    for _ in range(1 if most is None else most - least):
        longer = _then(part, rest)
        rest = Cost(1 + longer.empty, 2 + longer.steps, longer.beginnings)
        if not part.empty or rest.too_much():
            break
    return _then(total, rest)


def _then(first: Cost, second: Cost) -> Cost:
    return Cost(
        first.empty * second.empty,
        first.steps + first.empty * second.steps,
        first.beginnings + first.empty * second.beginnings,
    )
