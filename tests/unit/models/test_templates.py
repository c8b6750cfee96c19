import json
from collections.abc import Sequence

import pytest

from remuda.core.errors import Invalid, Misconfigured
from remuda.core.slices import at_once
from remuda.models import templates
from remuda.models.config import ModelConfig, Template
from remuda.models.templates import (
    ChatMessage,
    check_ollamas,
    is_ollamas,
    render_completion,
)

CHATML = Template(
    chat="{{.Input -}}\n<|im_start|>assistant\n",
    chat_message="""\
<|im_start|>{{if eq .RoleName "tool"}}user{{else}}{{.RoleName}}{{end}}
{{- if .Content}}
{{.Content }}
{{- end }}
{{- if .FunctionCall}}
<tool_call>
{{toJson .FunctionCall}}
</tool_call>
{{- end }}<|im_end|>
""",
    function="""\
<tools>
{{- range .Functions}}
{'name': '{{.Name}}', 'about': '{{.Description}}', 'parameters': {{toJson .Parameters}} }
{{- end}}
</tools>
{{.Input -}}
<|im_start|>assistant
""",
    completion="Complete: {{.Input}}\n",
)
HELLO = ChatMessage("user", "Hello {{.Input}}")
LOOK = {"name": "look", "description": None, "parameters": {"type": "object"}}


def model(template: Template = CHATML, **more: object) -> ModelConfig:
    return ModelConfig.model_validate({"name": "m", "template": template, **more})


def render_chat(
    config: ModelConfig, messages: Sequence[ChatMessage], functions_json: str = "", system_prompt: str = ""
) -> str:
    return at_once(templates.render_chat(config, messages, functions_json, system_prompt))


def test_messages_are_rendered_one_by_one_and_then_together() -> None:
    prompt = render_chat(model(), [ChatMessage("system", "Be kind."), HELLO])

    assert prompt == (
        "<|im_start|>system\nBe kind.<|im_end|>\n\n"
        "<|im_start|>user\nHello {{.Input}}<|im_end|>\n<|im_start|>assistant\n"
    )


def test_messages_are_joined_as_the_model_file_says() -> None:
    template = Template(chat="{{.Input}}", chat_message="{{.Content}}", join_chat_messages_by_character="")

    assert render_chat(model(template), [ChatMessage("user", "a"), ChatMessage("user", "b")]) == "ab"


def test_calls_of_tools_are_handed_to_the_template() -> None:
    calls = [{"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]

    prompt = render_chat(model(), [ChatMessage("assistant", tool_calls_json=json.dumps(calls))])

    written = '[{"id":"1","type":"function","function":{"name":"look","arguments":"{}"}}]'
    assert f"<|im_start|>assistant\n<tool_call>\n{written}\n</tool_call><|im_end|>" in prompt


@pytest.mark.parametrize("tools", [[LOOK], [{"type": "function", "function": LOOK}]])
def test_with_tools_the_template_for_functions_is_used(tools: list[object]) -> None:
    prompt = render_chat(model(), [HELLO], json.dumps(tools))

    assert prompt.startswith(
        "<tools>\n{'name': 'look', 'about': '', 'parameters': {\"type\":\"object\"} }\n</tools>\n"
    )
    assert prompt.endswith("<|im_start|>assistant\n")


def test_without_a_template_for_functions_the_usual_one_is_used() -> None:
    template = CHATML.model_copy(update={"function": ""})

    assert render_chat(model(template), [HELLO], json.dumps([LOOK])) == render_chat(model(template), [HELLO])


def test_a_message_of_which_nothing_is_left_is_left_out() -> None:
    template = Template(chat_message='{{if eq .RoleName "user"}}{{.Content}}{{end}}')

    assert render_chat(model(template), [ChatMessage("tool", "x"), HELLO, HELLO]) == "\n".join(
        [HELLO.content] * 2
    )


def test_roles_stand_before_messages_that_have_no_template() -> None:
    config = model(
        Template(chat="{{.Input}}\nASSISTANT:"), roles={"user": "USER: ", "assistant": "ASSISTANT: "}
    )
    messages = [HELLO, ChatMessage("assistant", "Hi", tool_calls_json="[{}]")]

    assert (
        render_chat(config, messages) == "USER: Hello {{.Input}}\nASSISTANT: Hi\nASSISTANT:  [{}]\nASSISTANT:"
    )


def test_an_assistant_that_calls_may_have_a_role_of_its_own() -> None:
    config = model(
        Template(chat_message="{{.RoleName}} {{.Role}}"), roles={"assistant_function_call": "Call:"}
    )

    calling = ChatMessage("assistant", tool_calls_json="[{}]")
    assert render_chat(config, [calling]) == "assistant_function_call Call:"


def test_a_template_may_ask_which_message_it_is() -> None:
    template = Template(chat_message="{{.MessageIndex}}{{if .LastMessage}}.{{end}}{{.FunctionName}}")

    assert render_chat(model(template), [HELLO, ChatMessage("tool", name="look")]) == "0\n1.look"


def test_the_system_prompt_goes_where_the_template_wants_it() -> None:
    template = Template(chat="{{.SystemPrompt}}|{{.Input}}", chat_message="{{.Content}}")

    assert render_chat(model(template), [HELLO], system_prompt="Be kind.") == "Be kind.|Hello {{.Input}}"


def test_a_template_that_has_no_place_for_a_system_prompt_gets_a_message() -> None:
    assert render_chat(model(), [HELLO], system_prompt="Be kind.").startswith("<|im_start|>system\nBe kind.")


def test_the_answer_may_be_begun_for_the_model() -> None:
    template = CHATML.model_copy(update={"reply_prefix": "<think>"})

    assert render_chat(model(template), [HELLO]).endswith("assistant\n<think>")


def test_a_model_of_which_nothing_is_known_is_talked_to_plainly() -> None:
    messages = [HELLO, ChatMessage("assistant", "Hi"), ChatMessage("user", "Bye")]

    assert render_chat(model(Template()), messages, system_prompt="Be kind.") == (
        "System: Be kind.\nUser: Hello {{.Input}}\nAssistant: Hi\nUser: Bye\nAssistant:"
    )


def test_a_model_of_which_nothing_is_known_is_told_of_functions() -> None:
    assert '"look"' in render_chat(model(Template()), [HELLO], json.dumps([LOOK]))


def test_a_prompt_is_put_into_its_template() -> None:
    assert render_completion(model(), "a {{b}}") == "Complete: a {{b}}\n"
    assert render_completion(model(Template()), "a {{b}}") == "a {{b}}"


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (Template(chat="\n{{.RoleName}}"), "m: template.chat: line 2: .RoleName is not there"),
        (Template(chat_message="{{.Odd}}"), "m: template.chat_message: line 1: .Odd is not there"),
        (Template(chat="chatml"), "m: template.chat: it is no template"),
    ],
)
def test_a_template_that_cannot_be_used_is_named(template: Template, said: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        render_chat(model(template), [HELLO])

    assert refused.value.message.startswith(said)


@pytest.mark.parametrize("functions", ["{", "{}", "[1]", "[" * 100_000])
def test_functions_that_are_none_are_refused(functions: str) -> None:
    with pytest.raises(Invalid):
        render_chat(model(), [HELLO], functions)


LLAMA = """{{ if .System }}<|system|>
{{ .System }}<|end|>{{ end }}{{ if .Prompt }}<|user|>
{{ .Prompt }}<|end|>{{ end }}<|assistant|>
{{ .Response }}<|end|>"""
QWEN = """{{- if .Messages }}
{{- if or .System .Tools }}<|im_start|>system
{{- if .System }}
{{ .System }}
{{- end }}
{{- if .Tools }}

# Tools
<tools>
{{- range .Tools }}
{"type": "function", "function": {{ .Function }}}
{{- end }}
</tools>
{{- end }}<|im_end|>
{{ end }}
{{- range $i, $_ := .Messages }}
{{- $last := eq (len (slice $.Messages $i)) 1 -}}
{{- if eq .Role "user" }}<|im_start|>user
{{ .Content }}<|im_end|>
{{ else if eq .Role "assistant" }}<|im_start|>assistant
{{ if .Content }}{{ .Content }}
{{- else if .ToolCalls }}<tool_call>
{{ range .ToolCalls }}{"name": "{{ .Function.Name }}", "arguments": {{ .Function.Arguments }}}
{{ end }}</tool_call>
{{- end }}{{ if not $last }}<|im_end|>
{{ end }}
{{- else if eq .Role "tool" }}<|im_start|>user
<tool_response>
{{ .Content }}
</tool_response><|im_end|>
{{ end }}
{{- if and (ne .Role "assistant") $last }}<|im_start|>assistant
{{ end }}
{{- end }}
{{- else }}
{{- if .System }}<|im_start|>system
{{ .System }}<|im_end|>
{{ end }}{{ if .Prompt }}<|im_start|>user
{{ .Prompt }}<|im_end|>
{{ end }}<|im_start|>assistant
{{ end }}{{ .Response }}{{ if .Response }}<|im_end|>{{ end }}"""
CHAT = [ChatMessage("user", "hi"), ChatMessage("assistant", "yo"), ChatMessage("user", "more")]


def _ollamas(
    template: str, messages: Sequence[ChatMessage], functions_json: str = "", system: str = ""
) -> str:
    config = ModelConfig(name="m", template=Template(chat=template))
    return render_chat(config, messages, functions_json, system)


def test_a_template_of_ollama_is_given_question_and_answer() -> None:
    assert _ollamas(LLAMA, CHAT, system="Be brief.") == (
        "<|system|>\nBe brief.<|end|><|user|>\nhi<|end|><|assistant|>\nyo<|end|>"
        "<|user|>\nmore<|end|><|assistant|>\n"
    )


def test_a_template_of_ollama_is_given_all_messages() -> None:
    assert _ollamas(QWEN, CHAT, system="Be brief.") == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
        "<|im_start|>assistant\nyo<|im_end|>\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n"
    )


def test_tools_and_calls_reach_a_template_of_ollama() -> None:
    called = '[{"type":"function","function":{"name":"weather","arguments":"{\\"in\\":\\"Rome\\"}"}}]'
    messages = [CHAT[0], ChatMessage("assistant", tool_calls_json=called), ChatMessage("tool", "sunny")]

    prompt = _ollamas(QWEN, messages, '[{"name":"weather"}]')

    assert '{"name": "weather", "arguments": {"in":"Rome"}}' in prompt
    assert '"function": {"name":"weather"' in prompt
    assert "<tool_response>\nsunny\n</tool_response>" in prompt


@pytest.mark.parametrize("text", ["{{ .Prompt | title }}", "{{ .Response }}", "{{ .Messages.Last }}"])
def test_a_template_of_ollama_that_cannot_be_used_is_told(text: str) -> None:
    with pytest.raises(Misconfigured):
        check_ollamas(text)


def test_templates_of_ollama_are_told_from_those_of_localai() -> None:
    check_ollamas(LLAMA)
    check_ollamas(QWEN)
    assert is_ollamas(LLAMA)
    assert not is_ollamas("{{.Input}} {{.Prompt}}")
