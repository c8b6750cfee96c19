import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from remuda.core.errors import Misconfigured
from remuda.models import go_template
from remuda.models.go_template import compile_template

DATA: dict[str, JsonValue] = {
    "Input": "in",
    "Empty": "",
    "Count": 2,
    "Yes": True,
    "Nothing": None,
    "Words": ["a", "b"],
    "Tool": {"name": "look", "parameters": {"b": 1, "a": "<ü>"}},
}


def rendered(template: str) -> str:
    return compile_template(template).render(DATA)


def refusal(template: str) -> str:
    with pytest.raises(Misconfigured) as refused:
        rendered(template)
    return refused.value.message


@pytest.mark.parametrize(
    ("template", "output"),
    [
        ("", ""),
        ("plain } } text", "plain } } text"),
        ("{{.Input}}", "in"),
        ("<{{ .Count }}{{.Yes}}{{.Nothing}}>", "<2true>"),
        ("{{ .Tool.Name }}", "look"),
        ('{{ "a\\n\\"b\\"\\u00fc" }}', 'a\n"b"ü'),
        ('{{`{{"raw": \\n}}`}}', '{{"raw": \\n}}'),
        ("a  {{- .Input -}}  b", "ainb"),
        ("a\n{{ .Input -}}\n\nb", "a\ninb"),
        ("a {{-.Input}} b", "ain b"),
        ("a {{/* {{.Odd}} */}} b", "a  b"),
        ("a {{- /* said */ -}} b", "ab"),
        ("{{if .Input}}x{{end}}", "x"),
        ("{{if .Empty}}x{{else}}y{{end}}", "y"),
        ('{{if eq .Input "out"}}x{{else if eq .Input "in"}}y{{else}}z{{end}}', "y"),
        ("{{if .Empty}}x{{else if .Nothing}}y{{end}}z", "z"),
        ('{{ eq .Input "x" "in" }} {{ ne .Input "in" }} {{ not .Empty }}', "true false true"),
        ('{{ and .Input .Count }} {{ or .Empty "x" }} {{ and .Empty .Absent }}', "2 x "),
        ('{{ if and (eq .Input "in") (not (eq .Count 3)) }}x{{ end }}', "x"),
        ("{{ .Tool.parameters | toJson }}", '{"b":1,"a":"<ü>"}'),
        ('{{ .Input | eq "in" }}', "true"),
        ("{{range .Words}}[{{.}}{{$.Input}}]{{end}}", "[ain][bin]"),
        ("{{range $i, $word := .Words}}{{$i}}{{$word}} {{end}}", "0a 1b "),
        ("{{range $word := .Words}}{{$word}}{{end}}", "ab"),
        ("{{range $key, $value := .Tool.parameters}}{{$key}}{{end}}", "ab"),
        ("{{range .Nothing}}x{{else}}none{{end}}", "none"),
        ("{{$x := .Input}}{{range .Words}}{{$x}}{{end}}", "inin"),
        ("{{$x := 1}}{{if true}}{{$x := 2}}{{end}}{{$x}}", "1"),
    ],
)
def test_what_published_templates_use_is_rendered_as_go_does(template: str, output: str) -> None:
    assert rendered(template) == output


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("\n{{with .Input}}{{end}}", "line 2: with is not supported"),
        ("{{ printf .Input }}", "line 1: printf is not supported"),
        ('{{template "x"}}', "line 1: template is not supported"),
        ("{{ $x = 1 }}", "line 1: $x was never set"),
        ("{{ .Input + 1 }}", "line 1: '+ 1 }}' is not understood"),
        ("{{ (.Input }}", "line 1: a parenthesis is not closed"),
        ("{{ .Input ) }}", "line 1: ')' is not understood here"),
        ("{{ .Input .Count }}", "line 1: a value, or a function and its values, is expected"),
        ('{{ eq "a" }}', "line 1: eq cannot have 1 values"),
        ("{{ $x }}", "line 1: $x was never set"),
        ("{{if true}}{{$x := 1}}{{end}}{{$x}}", "line 1: $x was never set"),
        ("{{ }}", "line 1: a value"),
        ("{{ .Input", "line 1: an action does not end"),
        ("a\nb{{/* no end", "line 2: a comment does not end"),
        ("{{if .Input}}", "line 1: {{if}} has no {{end}}"),
        ("{{range .Words}}", "line 1: {{range}} has no {{end}}"),
        ("\n\n{{end}}", "line 3: {{end}} belongs to no if or range"),
        ("{{if true}}{{else}}{{else}}{{end}}", "line 1: a second else for the if of line 1"),
        ("{{ .Absent }}", "line 1: .Absent is not there; there are .Count, .Empty, .Input"),
        ("{{ .Input.More }}", "line 1: .More is asked of what has no fields"),
        ("{{range .Input}}{{end}}", "line 1: range needs a list or a map"),
        ('{{ "\\q" }}', "line 1: \\q stands for nothing"),
        ("{{if true}}" * 60, "line 1: it is nested more than 50 deep"),
        ("{{" + "(" * 60 + "1" + ")" * 60 + "}}", "line 1: it is nested more than 50 deep"),
        ("x" * (go_template.TEMPLATE_CHARS_MAX + 1), "it has more than 256 Ki characters"),
    ],
)
def test_anything_else_is_refused_by_its_name_and_line(template: str, said: str) -> None:
    assert refusal(template).startswith(said)


def test_loops_within_loops_come_to_an_end() -> None:
    many: JsonValue = [0] * 100
    template = "{{range .M}}" + "{{range $.M}}" * 5 + "{{end}}" * 6

    with pytest.raises(Misconfigured, match="steps"):
        compile_template(template).render({"M": many})


def test_output_has_an_end() -> None:
    with pytest.raises(Misconfigured, match="characters"):
        compile_template("{{range .M}}{{$.Text}}{{end}}").render({"M": [0] * 100, "Text": "x" * 1_000_000})


def test_a_template_is_taken_apart_once() -> None:
    assert compile_template("{{.Input}} once") is compile_template("{{.Input}} once")


@given(st.text(alphabet='{}-. $:=|()"`/*aIif end\nrange,1', max_size=60))
def test_any_text_is_compiled_or_refused(text: str) -> None:
    with contextlib.suppress(Misconfigured):
        assert isinstance(rendered(text), str)


@given(st.text().filter(lambda text: "{{" not in text))
def test_text_without_actions_stays_as_it_is(text: str) -> None:
    assert rendered(text) == text
