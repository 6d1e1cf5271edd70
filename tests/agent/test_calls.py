# SPDX-License-Identifier: Apache-2.0
"""A turn is read as it was meant: thoughts, text, calls, and a sentence for each call that cannot be read."""

import pytest
from chat_tokenizers import CHATML, chat_tokenizer, make
from naming import assert_names, raises_naming

from minimind_hf.agent import TurnReader, TurnTemplate, opens_thought, read_turn


def call(name: str, **arguments) -> dict:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def tagged(json_text: str) -> str:
    return f"<tool_call>\n{json_text}\n</tool_call>"


ADD = tagged('{"name": "add", "arguments": {"a": 1}}')
STOP = tagged('{"name": "stop"}')


def test_text_thought_and_calls_are_told_apart():
    turn = read_turn(f"I add.\n</think>\n\nLet me see.\n{ADD}\n{STOP}", opens_thought=True)
    assert turn.message == {
        "role": "assistant",
        "content": "Let me see.",
        "reasoning_content": "I add.",
        "tool_calls": [call("add", a=1), call("stop")],
    }
    assert turn.calls == [("add", {"a": 1}), ("stop", {})]
    assert turn.faults == []
    assert read_turn("Four.", opens_thought=False).message == {"role": "assistant", "content": "Four."}


def test_a_call_inside_a_thought_is_none():
    never_closed = read_turn(f"I think {ADD}", opens_thought=True)
    assert never_closed.message == {"role": "assistant", "content": "", "reasoning_content": f"I think {ADD}"}
    opened_by_policy = read_turn(f"<think>{ADD}</think>Four.", opens_thought=False)
    assert opened_by_policy.message == {"role": "assistant", "content": "Four.", "reasoning_content": ADD}
    second_thought = read_turn(f"</think>Hm. <think>{ADD}</think> {ADD}", opens_thought=True)
    assert second_thought.calls == [("add", {"a": 1})]
    assert never_closed.faults == opened_by_policy.faults == second_thought.faults == []


def test_tags_inside_a_string_are_text():
    text = "a <tool_call>{}</tool_call> </think> <think> \\n"
    turn = read_turn(tagged(f'{{"name": "say", "arguments": {{"text": "{text}"}}}}') + ADD, opens_thought=False)
    assert turn.calls == [("say", {"text": text.replace("\\n", "\n")}), ("add", {"a": 1})]


def test_arguments_may_be_json_text():
    turn = read_turn(tagged('{"name": "add", "arguments": "{\\"a\\": 1}"}'), opens_thought=False)
    assert turn.calls == [("add", {"a": 1})]


@pytest.mark.parametrize(
    ("text", "piece"),
    [
        ("<tool_call>add(1)</tool_call>", "no JSON"),
        ("<tool_call></tool_call>", "no JSON"),
        ("<tool_call>", "no JSON"),
        ('<tool_call>{"name": "add", "arguments": {"a": 1}}', "not closed"),
        (tagged('{"name": "add"}\n{"name": "add"}'), "more than one"),
        (tagged('{"arguments": {"a": 1}}'), "no name"),
        (tagged('{"name": 3}'), "no name"),
        (tagged('{"name": " "}'), "no name"),
        (tagged("[1]"), "no name"),
        (tagged('{"name": "add", "arguments": [1]}'), "'add'"),
        (tagged('{"name": "add", "arguments": "1"}'), "'add'"),
        (tagged('{"name": "add", "arguments": "{"}'), "'add'"),
        (tagged('{"name": "add", "arguments": {"a": NaN}}'), "NaN"),
        (tagged('{"name": "add", "arguments": {"a": -Infinity}}'), "-Infinity"),
        (tagged('{"name": "add", "arguments": {"a": 1e999}}'), "1e999"),
        (tagged('{"name": "add", "arguments": {"a": "\\ud83d"}}'), "'add'"),
        (tagged('{"name": "add", "arguments": {"a": ' + "[" * 5000 + "}}"), "no JSON"),
        (tagged('{"name": "add", "arguments": {"a": ' + "9" * 5000 + "}}"), "no JSON"),
    ],
)
def test_what_cannot_be_read_is_a_fault_and_stays_in_the_content(text, piece):
    turn = read_turn(f"So: {text}", opens_thought=False)
    (fault,) = turn.faults
    assert_names(fault, piece)
    assert turn.calls == []
    assert turn.message["content"] == f"So: {text}"


def test_a_fault_does_not_hide_the_calls_around_it():
    for fault in ("<tool_call>{oops}</tool_call>", '<tool_call>{"name": "add"}', "<tool_call>add"):
        turn = read_turn(f"{ADD}{fault}{ADD}", opens_thought=False)
        assert turn.calls == [("add", {"a": 1})] * 2 and len(turn.faults) == 1


def test_without_tools_a_call_is_text():
    assert read_turn(f" {ADD} ", opens_thought=False, tools=False).message["content"] == ADD


def test_whether_a_thought_is_open():
    assert opens_thought("<think>\n\n</think>\n\n...<think>\n")
    assert not opens_thought("<think>\n\n</think>\n\n")
    assert not opens_thought("")


# --- by tokenizer ----------------------------------------------------------------------------------------------------


def read(name: str, text: str, prompt: str = "", **what):
    tokenizer, ends = chat_tokenizer(name)
    return TurnReader(tokenizer, ends, **what).read(tokenizer(text, add_special_tokens=False)["input_ids"], prompt)


@pytest.mark.parametrize("name", ["minimind", "qwen2_5", "qwen3"])
@pytest.mark.parametrize("end", ["", "<|im_end|>"])
def test_the_built_in_form_is_seen_in_the_template(name, end):
    tokenizer, ends = chat_tokenizer(name)
    assert TurnReader(tokenizer, ends).response_template is None
    turn = read(name, f"Hm.\n</think>\n\n{ADD}{end}", "<|im_start|>assistant\n<think>\n")
    assert turn.message == {
        "role": "assistant",
        "content": "",
        "reasoning_content": "Hm.",
        "tool_calls": [call("add", a=1)],
    }


def test_llama_is_read_by_the_template_of_trl():
    turn = read("llama3_2", '{"name": "add", "parameters": {"a": 1}}<|eot_id|>')
    assert turn.message == {"role": "assistant", "content": "", "tool_calls": [call("add", a=1)]}
    assert read("llama3_2", 'Just {"a": 1}.<|eot_id|>').message == {"role": "assistant", "content": 'Just {"a": 1}.'}
    for arguments in ('{"a": }', '"x"', '{"a": NaN}', '{"a": 1}; {"name": "b", "parameters": {}}'):
        turn = read("llama3_2", f'{{"name": "add", "parameters": {arguments}}}<|eot_id|>')
        assert len(turn.faults) == 1 and turn.calls == []


@pytest.mark.parametrize("name", ["qwen3_5_think", "glm4moe"])
def test_forms_without_json_take_their_types_from_the_schema(name):
    tokenizer, ends = chat_tokenizer(name)
    parameters = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}
    schema = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": parameters}}
    template = TurnTemplate(tokenizer, ends)
    written = {
        "qwen3_5_think": "\n<function=add>\n<parameter=a>\n1\n</parameter>\n"
        "<parameter=b>\n2\n</parameter>\n</function>",
        "glm4moe": "add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n"
        "<arg_key>b</arg_key>\n<arg_value>2</arg_value>",
    }[name]
    ids = tokenizer(f"Hm.</think>\n\n<tool_call>{written}\n</tool_call>", add_special_tokens=False)["input_ids"]
    prompt = template.generation_prompt({"enable_thinking": True})
    prompt = prompt if opens_thought(prompt) else f"{prompt}<think>"
    turn = TurnReader(tokenizer, ends).read([*ids, ends[0]], prompt, [schema])
    assert turn.calls == [("add", {"a": 1, "b": "2"})]
    assert turn.message["reasoning_content"] == "Hm."


def test_a_tokenizer_s_own_response_template_comes_first():
    tokenizer, ends = chat_tokenizer("qwen3")
    tokenizer.response_template = {
        "defaults": {"role": "assistant"},
        "fields": {"content": {"close_pattern": r"<\|im_end\|>", "content": "text"}},
    }
    ids = tokenizer(f"{ADD}<|im_end|>", add_special_tokens=False)["input_ids"]
    assert TurnReader(tokenizer, ends).read(ids).message == {"role": "assistant", "content": ADD}


def test_an_unknown_form_is_refused_unless_there_are_no_tools():
    tokenizer, ends = make(CHATML, "the/model")
    with raises_naming(ValueError, "'the/model'", "tokenizer.response_template"):
        TurnReader(tokenizer, ends)
    assert read("chatml", f"{ADD}<|im_end|>", tools=False).message["content"] == ADD
