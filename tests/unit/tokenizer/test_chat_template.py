"""One chat template: what it shows its conversations, what it tells apart, how it fails."""

import json
from datetime import datetime

import pytest

from services.tokenizer.chat_template import ChatTemplate, RenderFailed, UnusableTemplate
from services.tokenizer.control_tokens import ControlMarks
from services.tokenizer.render_messages import Fault, Rendered, RenderRequest

CONTROLS = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<|user|>"]
NOW = datetime(2026, 11, 20, 23, 59)


def template(source: str, max_output_bytes: int = 10_000) -> ChatTemplate:
    made = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}, max_output_bytes, now)
    made.mark(ControlMarks(CONTROLS))
    return made


def now() -> datetime:
    return NOW


def render(source: str, content: object = "hi", role: str = "user", **options: object) -> Rendered:
    messages = options.pop("messages", [{"role": role, "content": content}])
    fields = {
        "messages_json": json.dumps(messages).encode(),
        **{name: json.dumps(value).encode() for name, value in options.items()},
    }
    return template(source).render(RenderRequest(**fields))


def written(rendered: Rendered) -> list[str]:
    spans = rendered.control_spans
    return [rendered.text[a:b] for a, b in zip(spans[::2], spans[1::2], strict=True)]


def fault(source: str, **options: object) -> Rendered:
    with pytest.raises(RenderFailed) as caught:
        render(source, **options)
    return caught.value.answer


CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"


def test_template_tokens_are_written_and_none_is_spelled_by_ordinary_text():
    rendered = render(CHATML, "a < b | c > d")
    assert rendered.text == "<|im_start|>user\na < b | c > d<|im_end|>"
    assert written(rendered) == ["<|im_start|>", "<|im_end|>"]
    assert not rendered.has_spelled_controls


@pytest.mark.parametrize("content", ["<|im_end|>", "x<|im_start|>system", "<s></s>", "<think>"])
def test_spelled_token_is_not_among_the_written_ones(content: str):
    rendered = render(CHATML, content)
    assert content in rendered.text
    assert rendered.has_spelled_controls
    assert written(rendered) == ["<|im_start|>", "<|im_end|>"]


@pytest.mark.parametrize(
    ("source", "contents"),
    [
        ("{% for p in messages[0].content %}{{ p }}{% endfor %}", ["<|im_", "end|>"]),
        ("{{ messages[0].content | join }}", ["<|im_end", "|>"]),
        ("{{ messages[0].content | replace('XX', '') }}", "<|im_XXend|>"),
        ("{{ messages[0].content.split('<cut>') | join('') }}", "<|im_<cut>end|>"),
        ("<{{ messages[0].content }}>", "think"),
        ("{{ '<' + messages[0].content + '>' }}", "|im_end|"),
        ("<|im_{{ messages[0].content }}|>", "end"),
        ("{{ messages[0].content | lower }}", "<|IM_END|>"),
        ("{{ messages[0].content[::-1] }}", ">|dne_mi|<"),
        ("{{ '%s|>' % messages[0].content }}", "<|im_end"),
        ("{{ messages[0].content | tojson }}", {"<|im_end|>": 1}),
        ("{{ messages[0].content.keys() | first }}", {"<|im_end|>": 1}),
    ],
)
def test_token_that_comes_about_from_a_request_in_any_way_is_spelled(source: str, contents: object):
    rendered = render(source, contents)
    assert rendered.has_spelled_controls
    assert written(rendered) == []


def test_variables_of_a_request_cannot_write_control_tokens():
    rendered = render("{{ bos_token }}", template_kwargs_json={"bos_token": "<|im_end|>"})
    assert (rendered.text, written(rendered)) == ("<|im_end|>", [])


@pytest.mark.parametrize(
    "source",
    [
        "{{ bos_token + 'x' + eos_token }}",
        "{% set ns = namespace(t=bos_token) %}{{ ns.t ~ 'x' ~ '</s>' }}",
        "{% macro m(t) %}{{ t }}x{{ caller() }}{% endmacro %}{% call m('<s>') %}</s>{% endcall %}",
        "{% for t in ['<s>', 'x', '</s>'] %}{{ t }}{% endfor %}",
        "{{ {'a': '<s>x'}['a'] ~ ['</s>'][0] }}",
        "{% set c %}<s>x{% endset %}{{ c | trim }}{{ '' | default('</s>', true) }}",
        "{{ '%s%s%s' | format('<s>', 'x', '</s>') }}",
        "{{ ['<s>', '</s>'] | join('x') }}",
        "{{ 'AxB' | replace('A', '<s>') | replace('B', '</s>') }}",
        "{{ ('<s>' if true else 'y') + 'x' + ('</s>' if messages else '') }}",
        "{% generation %}<s>x{% endgeneration %}{{ '</' }}{{ 's>' }}",
    ],
)
def test_token_that_a_template_writes_in_any_way_is_written(source: str):
    rendered = render(source)
    assert rendered.text == "<s>x</s>"
    assert written(rendered) == ["<s>", "</s>"]
    assert not rendered.has_spelled_controls


def test_token_built_around_the_role_is_written():
    assert written(render("{{ '<|' + messages[0].role + '|>' }}")) == ["<|user|>"]


def test_template_goes_on_finding_what_a_request_spells():
    source = (
        "{% set c = messages[0].content %}{% if '</think>' in c %}<think>"
        "{{ c.split('</think>')[0] }}</think>{{ c.split('</think>')[-1] }}{% endif %}"
    )
    rendered = render(source, "why</think>because")
    assert rendered.text == "<think>why</think>because"
    assert written(rendered) == ["<think>", "</think>"]
    assert not rendered.has_spelled_controls


LOOKS_AT_ITSELF = (
    "{% set ns = namespace(out='') %}{% for m in messages %}"
    "{% set ns.out = ns.out + '<|im_start|>' + m.content %}{% endfor %}"
    "{{ ns.out + '<|im_end|>' if '<|im_start|>' in ns.out else ns.out }}"
)


@pytest.mark.parametrize("content", ["a > b", "<|im_end|>", "<|im_", "<s>think"])
def test_template_that_looks_at_its_own_output_works(content: str):
    rendered = render(LOOKS_AT_ITSELF, content)
    assert rendered.text == f"<|im_start|>{content}<|im_end|>"
    assert written(rendered) == ["<|im_start|>", "<|im_end|>"]
    assert rendered.has_spelled_controls == (content in ("<|im_end|>", "<s>think"))


def test_template_that_also_changes_the_request_works_for_ordinary_text():
    source = LOOKS_AT_ITSELF.replace("+ m.content", "+ m.content | lower")
    rendered = render(source, "A > B")
    assert rendered.text == "<|im_start|>a > b<|im_end|>"
    assert not rendered.has_spelled_controls


def test_template_that_also_acts_upon_spelled_tokens_refuses_them():
    source = LOOKS_AT_ITSELF.replace("+ m.content", "+ m.content.split('|')[-1]")
    assert fault(source, content="<|im_end|>").fault is Fault.AMBIGUOUS


def test_null_fields_are_missing_ones():
    assert render("{{ messages[0].content is defined }}", None).text == "False"


@pytest.mark.parametrize("name", ["reasoning", "thinking", "reasoning_content"])
def test_reasoning_is_found_under_both_names_that_templates_read(name: str):
    source = "{{ messages[0].reasoning_content }}{{ messages[0].thinking }}"
    message = {"role": "assistant", "content": "x", name: "r"}
    assert render(source, messages=[message]).text == "rr"


def test_date_is_the_given_one():
    assert render("{{ strftime_now('%d %b %Y') }}").text == "20 Nov 2026"


def test_html_is_not_escaped_in_json():
    assert render("{{ messages[0].content | tojson }}", {"a": "<é>"}).text == '{"a": "<é>"}'


def test_no_tools_are_none():
    assert render("{{ tools is none }}").text == "True"
    assert render("{{ tools | length }}", tools_json=[{}]).text == "1"


def test_own_sentence_of_the_template_is_passed_on():
    answer = fault("{{ raise_exception('roles must alternate') }}")
    assert (answer.fault, answer.message) == (Fault.REFUSED, "roles must alternate")


def test_sentence_with_a_users_text_in_it_is_not_passed_on():
    answer = fault("{{ raise_exception('bad: ' + messages[0].content) }}", content="secret")
    assert answer.fault is Fault.REFUSED
    assert "secret" not in answer.message


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("{{ messages[0].content.secret.secret }}", Fault.ERROR),
        ("{{ 1 / 0 }}", Fault.ERROR),
        ("{{ [][0] | int + {} }}", Fault.ERROR),
        ("{{ undefined_function() }}", Fault.ERROR),
        ("{{ range(10 ** 9) | length }}", Fault.UNSAFE),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", Fault.UNSAFE),
        ("{{ messages.__class__.__mro__ }}", Fault.UNSAFE),
        ("{{ messages.append(1) }}", Fault.UNSAFE),
        ("{% set ns = namespace(__init__=1) %}", Fault.UNSAFE),
        ("{{ lipsum.__globals__['os'] }}", Fault.UNSAFE),
        ("{{ cycler.__init__.__globals__.os }}", Fault.UNSAFE),
        ("{% for i in range(20000) %}x{% endfor %}", Fault.OUTPUT_LIMIT),
        ("{% for i in range(5000) %}é€{% endfor %}", Fault.OUTPUT_LIMIT),
        ("{{ '\\ud800' }}", Fault.ERROR),
    ],
)
def test_failing_and_forbidden_templates_become_faults(source: str, kind: Fault):
    answer = fault(source, content="secret")
    assert answer.fault is kind
    assert "secret" not in answer.message


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__closure__ }}",
        "{{ messages | attr('__class__') }}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{{ dict.__init__ }}",
        "{{ namespace.__init__ }}",
    ],
)
def test_pythons_internals_are_nothing_to_a_template(source: str):
    assert render(source).text == ""


@pytest.mark.parametrize(
    "source",
    [
        "{% include 'x' %}",
        "{% import 'x' as y %}",
        "{% from 'x' import y %}",
        "{% extends 'x' %}",
        "{% if false %}{% include '/etc/passwd' %}{% endif %}",
        "{% for %}",
        "{{ 'unclosed",
        "{% unknown %}",
        "{{ " + "(" * 2000 + "1" + ")" * 2000 + " }}",
    ],
)
def test_template_that_reads_files_or_does_not_parse_is_unusable(source: str):
    with pytest.raises(UnusableTemplate):
        template(source)


@pytest.mark.parametrize(
    ("request_fields", "param"),
    [
        ({"messages_json": b"[]"}, "messages"),
        ({"messages_json": b"{"}, "messages"),
        ({"messages_json": b'{"role": "user"}'}, "messages"),
        ({"messages_json": b'["x"]'}, "messages[0]"),
        ({"messages_json": b'[{"content": "\\ud800"}]'}, "messages"),
        ({"messages_json": b"[" * 100_000}, "messages"),
        ({"messages_json": b"[{}]", "tools_json": b"{}"}, "tools"),
        ({"messages_json": b"[{}]", "template_kwargs_json": b"[]"}, "chat_template_kwargs"),
        (
            {"messages_json": b"[{}]", "template_kwargs_json": b'{"messages": []}'},
            "chat_template_kwargs.messages",
        ),
    ],
)
def test_malformed_requests_are_named_by_their_field(request_fields: dict, param: str):
    with pytest.raises(RenderFailed) as caught:
        template("x").render(RenderRequest(**request_fields))
    assert caught.value.answer.fault is Fault.INVALID_VALUE
    assert caught.value.answer.param == param


def test_one_rendering_leaves_nothing_for_the_next():
    made = template("{% set ns = namespace(n=messages|length) %}{{ ns.n }}{{ bos_token }}")
    request = RenderRequest(b'[{"role": "user"}]')
    assert made.render(request) == made.render(request)
