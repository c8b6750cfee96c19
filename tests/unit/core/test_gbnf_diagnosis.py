"""Grammars that llama.cpp does not parse, and the rule and the part that are to blame."""

import pytest

from remuda.core.errors import Invalid
from remuda.core.gbnf import check_grammar, why_not_parsed
from remuda.core.slices import Sliced


def whole(steps: Sliced[str]) -> str:
    try:
        while True:
            next(steps)
    except StopIteration as end:
        return str(end.value)


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        (
            r'root ::= ([a-z ]+ "\n"){200,2000}',
            r'in the rule root, ([a-z ]+ "\n") is repeated {200,2000}, which the engine counts as 4000',
        ),
        ('root ::= line{0,2000}\nline ::= "x"', "in the rule root, line is repeated {0,2000}"),
        ('root ::= a\na ::= (("x"{1,40}){1,40}){1,40}', "in the rule a, "),
        ("root ::= foo", "the rule root names foo, which is not defined"),
        ('first ::= "x"', "no rule named root"),
        ("hello ((((", "the line that begins with hello begins no rule"),
        ('root ::= "a"\n | "b"', "in the rule root, the line that begins with |"),
        ('root ::= "a"\n "b"', 'in the rule root, the line that begins with "b"'),
        ('root ::= "a" b ::= "b"', "in the rule root, ::= has no name before it"),
        ('root ::= ("a" "b"', "in the rule root, a ( is not closed"),
        ('root ::= ("a"\nb ::= "b"', "in the rule root, a ( is not closed"),
        ('root ::= "a")', "in the rule root, a ) has no ("),
        ('root ::= "a', 'in the rule root, "a has no end'),
        ("root ::= [a-", "in the rule root, [a- has no end"),
        (r"root ::= [\d]+", r"in the rule root, [\d] has \d, which is no escape"),
        ("root ::= *", "in the rule root, * has nothing before it to repeat"),
        ('root ::= a_b\na_b ::= "x"', "in the rule a_b, the name has _ in it"),
    ],
)
def test_rule_and_part_are_named(grammar: str, words: str) -> None:
    assert words in whole(why_not_parsed(grammar))


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= a |\n  b\na ::= "x"\nb ::= "y"',
        'root ::=\n  "{" (\n a\n b )+ # more\n\na ::= "x"?\nb ::= [^"\\\\] .',
        'root ::= "a"{0,1999}',
        r'root ::= ([a-z ]+ "\n"){200,}',
        'root ::= "x" |',
    ],
)
def test_nothing_is_found_in_what_engines_parse(grammar: str) -> None:
    assert whole(why_not_parsed(grammar)) == ""


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ('"x"{3000}', "repetitions of one part, {3000}"),
        (f'"{"x" * 50}"{{2000}}', "the last of them {2000}"),
        (f'{"(" * 65}"x"{")" * 65}', "groups within each other"),
        ("|".join(['"x"'] * 5000), "alternatives"),
    ],
)
def test_bound_is_told_with_the_rule_that_is_beyond_it(body: str, what: str) -> None:
    with pytest.raises(Invalid) as refused:
        list(check_grammar(f"root ::= number\nnumber ::= {body}"))
    assert f"{what}, in the rule number" in refused.value.message
