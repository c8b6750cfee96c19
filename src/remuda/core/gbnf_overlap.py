"""How much of a grammar in GBNF an engine expands again for one character that it reads. Pure.

After a part that ended, an engine lists every way in which the text may go on. Where many parts may be left
out one after the other, a character can end each of them, and the list is made once for each and compared
with the others: n optional parts in a row cost about n³. The steps are counted here without being taken.

Parts that begin with different texts of their own, such as the properties of an object, cannot end together.
Of those only the most expensive one counts.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from remuda.core.gbnf_expansion import Cost, Rule, RuleRefused, Times
from remuda.core.slices import Budget, Sliced

# An engine with 49,000 tokens takes about a quarter of a second for a token at this bound, and ten times as
# long at four times the bound: tests/unit/core/test_gbnf_overlap.py has the table.
STEPS_AGAIN_MAX: Final = 9000
_BREADTH_MAX: Final = 20  # Engines try all tokens that a character may begin, so wide classes cost more.
_FEW_ENDINGS: Final = 16  # Those of a number, say, which no text reaches together.
_TAGS_MAX: Final = 4096
_TAG_CHARS_MIN: Final = 5  # As written, with its quotes.
_HEAD_PARTS_MAX: Final = 8
_DESCENT_MAX: Final = 64
_TERMINAL: Final = Cost(0, 1, 1)
_CLASS_CHARS_MAX: Final = 64
_ESCAPES: Final = re.compile(r"\\(?:x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)", re.DOTALL)
_WIDE: Final = "\uffff"  # Stands for any escape, which ends or begins a range of unknown width.
_RANGE: Final = re.compile(r"(.)-(.)", re.DOTALL)


class _Again(NamedTuple):
    """Of one rule. `steps` may all be taken for one character; of the parts that cannot be confused with each
    other only one can, and `tagged` has the most expensive one."""

    endings: int  # How many of its parts the last character may have ended.
    steps: int = 0
    tagged: int = 0
    begins: int = 0  # Steps to begin it, where ways that begin with different texts count once.
    breadth: int = 1  # How many characters there are at its narrowest place.
    tags: int = 0  # Of its parts that may be left out, a bit for each.

    def total(self) -> int:
        return self.steps + self.tagged


_END: Final = _Again(0)
_ONE: Final = _Again(1, begins=1)  # A character, or a rule within itself: engines keep equal ways once.


class Overlap:
    """Of rules whose costs before the first character are known."""

    def __init__(
        self, rules: Sequence[Rule], names: Sequence[str], texts: Sequence[str], costs: Mapping[int, Cost]
    ) -> None:
        self._rules = rules
        self._names = names
        self._texts = texts
        self._costs = costs
        self._named: list[dict[int, None]] = []  # The rules that each one names.
        self._bits: dict[str, int] = {}

    def check(self, budget: Budget) -> Sliced[None]:
        """Invalid names the rule that keeps too many parts open."""
        yield from self._note_names(budget)
        known: dict[int, _Again] = {}
        entered: set[int] = set()
        for start in range(len(self._rules)):
            path = [start]
            while path:
                number = path[-1]
                if number in known:
                    path.pop()
                elif number in entered:
                    path.pop()
                    known[number] = yield from self._of_rule(number, known, budget)
                    if known[number].total() > STEPS_AGAIN_MAX:
                        raise self._too_open(number)
                else:
                    entered.add(number)
                    path += [part for part in self._named[number] if part not in entered]

    def _note_names(self, budget: Budget) -> Sliced[None]:
        for rule in self._rules:
            named: dict[int, None] = {}
            self._named.append(named)
            for way in [[rule.part]] if isinstance(rule, Times) else rule:
                for part in way:
                    if budget.spend():
                        yield
                    if part >= 0:
                        named[part] = None

    def _of_rule(self, number: int, known: Mapping[int, _Again], budget: Budget) -> Sliced[_Again]:
        rule = self._rules[number]
        if isinstance(rule, Times):
            return self._repeated(rule, self._again(rule.part, known))
        groups: dict[tuple[int, ...] | None, _Again] = {}
        for way in rule:
            again = yield from self._in_turn(way, known, budget)
            head = self._head(way)
            groups[head] = _together(groups.get(head, _END), again)
        anywhere = groups.pop(None, _END)
        others = groups.values()
        most = max(others, key=_Again.total, default=_END)
        tags = anywhere.tags
        for group in others:
            tags |= group.tags
        return _Again(
            anywhere.endings + max((group.endings for group in others), default=0),
            anywhere.steps + most.steps,
            max(anywhere.tagged, most.tagged),
            1 + anywhere.begins + max((group.begins for group in others), default=0),
            max(group.breadth for group in (anywhere, *others)),
            tags,
        )

    def _in_turn(self, way: Sequence[int], known: Mapping[int, _Again], budget: Budget) -> Sliced[_Again]:
        whole, ends = _END, True  # Whether all that follows may be left out.
        optional, required = 1, _BREADTH_MAX + 1
        for part in reversed(way):
            if budget.spend():
                yield
            own = self._again(part, known)
            whole = self._before(part, own, whole, ends=ends)
            if self._cost(part).empty:
                optional = max(optional, own.breadth)
            else:
                required, ends = min(required, own.breadth), False
        return whole._replace(breadth=required if required <= _BREADTH_MAX else optional)

    def _before(self, part: int, own: _Again, rest: _Again, *, ends: bool) -> _Again:
        """A sequence with one more part before the rest of it."""
        endings = own.endings if ends else 0
        if not self._cost(part).empty:
            again = own.steps + (own.endings * rest.begins if own.endings > _FEW_ENDINGS else 0)
            larger = _Again(0, again, own.tagged) if again + own.tagged > rest.total() else rest
            return larger._replace(endings=endings + rest.endings, begins=own.begins, tags=0)
        tag, tags = self._bit(self._tag(part)), own.tags
        if tag and not tag & rest.tags:
            return _Again(
                max(endings, rest.endings),
                rest.steps,
                max(rest.tagged, own.total()),
                max(own.begins, rest.begins),
                tags=tag | tags | rest.tags,
            )
        again = own.steps + own.breadth * own.endings * rest.begins
        shared = own.tagged if tags & rest.tags else 0
        return _Again(
            endings + rest.endings,
            rest.steps + again + shared,
            max(rest.tagged, own.tagged),
            own.begins + rest.begins,
            tags=tag | tags | rest.tags,
        )

    def _repeated(self, rule: Times, own: _Again) -> _Again:
        if rule.most == 1:
            return own._replace(begins=own.begins + 2)
        copies = (rule.most or 1) if self._cost(rule.part).empty else 1
        begins = 2 + copies * own.begins
        steps = copies * (own.steps + own.endings * (1 + begins // 2))
        return own._replace(endings=copies * own.endings, steps=steps, begins=begins)

    def _again(self, part: int, known: Mapping[int, _Again]) -> _Again:
        if part >= 0:
            return known.get(part, _ONE)
        text = self._texts[~part]
        return _ONE if text.startswith('"') else _ONE._replace(breadth=_breadth(text))

    def _cost(self, part: int) -> Cost:
        return self._costs[part] if part >= 0 else _TERMINAL

    def _head(self, way: Sequence[int]) -> tuple[int, ...] | None:
        """The texts at its beginning, if it begins with one: other texts mean another way to go on."""
        for _ in range(_DESCENT_MAX):
            first = way[0] if way else -1
            if not way or self._cost(first).empty:
                return None
            if first < 0:
                heads = [part for part in way[:_HEAD_PARTS_MAX] if part < 0]
                return tuple(heads) if self._texts[~first].startswith('"') else None
            rule = self._rules[first]
            if isinstance(rule, Times):
                way = [rule.part]
            elif len(rule) == 1:
                way = rule[0]
            else:
                return (first,)
        return None

    def _tag(self, part: int) -> str:
        """The text that a part which may be left out begins with, after blanks and a comma or so. Empty if
        it has none, which counts as often as it is there."""
        for _ in range(_DESCENT_MAX):
            if part < 0:
                text = self._texts[~part]
                return text if text.startswith('"') and len(text) >= _TAG_CHARS_MIN else ""
            rule = self._rules[part]
            if isinstance(rule, Times):
                part = rule.part
                continue
            ways = [way for way in rule[:3] if way]
            heads = [one for one in ways[0][:_HEAD_PARTS_MAX] if not self._passed_over(one)] if ways else []
            if len(ways) != 1 or not heads:
                return ""
            part = heads[0]
        return ""

    def _bit(self, tag: str) -> int:
        """0 for none, and for those that are too many to tell apart."""
        if not tag or (tag not in self._bits and len(self._bits) >= _TAGS_MAX):
            return 0
        return 1 << self._bits.setdefault(tag, len(self._bits))

    def _passed_over(self, part: int) -> bool:
        if part >= 0:
            return self._costs[part].empty > 0
        text = self._texts[~part]
        return text.startswith('"') and len(text) < _TAG_CHARS_MIN

    def _too_open(self, number: int) -> RuleRefused:
        name = self._names[number]
        return RuleRefused(
            name,
            f"the grammar leaves too much open: in the rule {name} so many parts may be left out or repeated "
            f"one after the other that an engine takes more than {STEPS_AGAIN_MAX} steps for one character",
            hint='make most of them required, write "a"{0,100} instead of "a"? a hundred times, or let each '
            "begin with a text of its own",
        )


def _together(one: _Again, other: _Again) -> _Again:
    """Of ways that begin alike."""
    return _Again(
        one.endings + other.endings,
        one.steps + other.steps,
        max(one.tagged, other.tagged),
        one.begins + other.begins,
        max(one.breadth, other.breadth),
        one.tags | other.tags,
    )


def _breadth(text: str) -> int:
    """How many characters a class has, or the most that counts."""
    if not text.startswith("[") or text[1:2] == "^":
        return _BREADTH_MAX
    chars = _ESCAPES.sub(_WIDE, text[1:_CLASS_CHARS_MAX].removesuffix("]"))
    ranges = (ord(last) - ord(first) for first, last in _RANGE.findall(chars))
    return max(min(len(chars) + sum(map(abs, ranges)), _BREADTH_MAX), 1)
