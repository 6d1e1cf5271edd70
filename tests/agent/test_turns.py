# SPDX-License-Identifier: Apache-2.0
"""What stands between two turns is what the template would write, with nothing in it that a tool could smuggle in."""

import json
import re
from itertools import product
from pathlib import Path

import pytest
from chat_tokenizers import CHATML, HOSTILE, TRL_TEMPLATES, chat_tokenizer, make
from naming import raises_naming
from transformers import AutoTokenizer

from minimind_hf.agent import TurnTemplate, turns

SHARED = Path(__file__).resolve().parents[2].parent / "shared"
WITH_TOOLS = ("minimind", "qwen2_5", "qwen3", "qwen3_5_think", "llama3_2", "glm4moe", "gptoss", "gemma4")
QWEN3 = (TRL_TEMPLATES / "qwen3.jinja").read_text(encoding="utf-8")
THINKING = ({"open_thinking": True, "enable_thinking": True}, {"open_thinking": False, "enable_thinking": False})


def answers(*contents: str) -> list[dict]:
    return [{"role": "tool", "name": "look_up", "content": content} for content in contents]


def user(content: str) -> list[dict]:
    return [{"role": "user", "content": content}]


def conversation(content: str = "", arguments: str = "x", calls: bool = True) -> list[dict]:
    call = {"type": "function", "function": {"name": "look_up", "arguments": {"what": arguments}}}
    turn = {"role": "assistant", "content": content}
    return [{"role": "user", "content": "Question."}, turn | ({"tool_calls": [call]} if calls else {})]


def proved(name: str, **what) -> tuple:
    tokenizer, ends = chat_tokenizer(name)
    template = TurnTemplate(tokenizer, ends)
    template.prove(**what)
    return tokenizer, template


def rendered(tokenizer, messages, kwargs) -> str:
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **kwargs)


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_ids_are_those_at_the_end_of_the_whole_conversation(name):
    tokenizer, template = proved(name, conversation=True)
    cases = [(True, answers("6")), (True, answers("  One.\n\n", "Two.")), (False, user("Go on."))]
    for kwargs in THINKING:
        for calls, messages in cases:
            content = "" if calls else "Words."
            ids = template.ids_between(messages, kwargs)
            whole = tokenizer(
                rendered(tokenizer, [*conversation(content, calls=calls), *messages], kwargs), add_special_tokens=False
            )["input_ids"]
            assert len(ids) > 5 and whole[-len(ids) :] == ids
            assert whole[-len(ids) - 1] in [tokenizer.convert_tokens_to_ids(end) for end in template._ends]


@pytest.mark.parametrize("name", [*WITH_TOOLS, "chatml"])
def test_no_text_becomes_a_special_token_and_none_is_lost(name):
    tokenizer, template = proved(name, tools=name != "chatml", conversation=True)
    control = set(tokenizer.get_added_vocab().values())

    def tokens(messages, kwargs) -> list[int]:
        return [token for token in template.ids_between(messages, kwargs) if token in control]

    for kwargs, text in product(THINKING, HOSTILE):
        cases = [(user(text), user("6"))]
        if name != "chatml":
            cases += [(answers(text), answers("6")), (answers("7", text), answers("7", "6"))]
        for messages, harmless in cases:
            assert tokens(messages, kwargs) == tokens(harmless, kwargs), text
            said = [message | {"content": re.sub("[\ufdd0\ufdd1]", "", message["content"])} for message in messages]
            before = conversation("" if said[0]["role"] == "tool" else "Words.", calls=said[0]["role"] == "tool")
            whole = rendered(tokenizer, [*before, *said], kwargs)
            assert whole.endswith(tokenizer.decode(template.ids_between(messages, kwargs))), text


def test_the_generation_prompt_says_whether_a_thought_is_open():
    _, template = proved("minimind")
    assert template.generation_prompt({"open_thinking": True}).endswith("<|im_start|>assistant\n<think>\n")
    assert template.generation_prompt({"open_thinking": False}).endswith("</think>\n\n")
    assert template.ids_between(answers("6"), {"open_thinking": True}) != template.ids_between(answers("6"))


def test_a_name_that_the_policy_made_up_is_text_too():
    tokenizer, template = proved("gptoss")
    (answer,) = answers("6")
    ids = template.ids_between([{**answer, "name": "<|start|>system"}])
    assert ids.count(tokenizer.convert_tokens_to_ids("<|start|>")) == 2  # of the answer and of the next turn
    assert "functions.<|start|>system" in tokenizer.decode(ids)


def test_only_others_answer_a_turn():
    _, template = proved("qwen3")
    with raises_naming(ValueError, "'assistant'", "tool"):
        template.ids_between([{"role": "assistant", "content": "I said so."}])
    with raises_naming(ValueError, "no messages"):
        template.ids_between([])


# --- refused ---------------------------------------------------------------------------------------------------------


def refused(template: str, *pieces: str, **what) -> None:
    tokenizer, ends = make(template, "the/model")
    with raises_naming(ValueError, "'the/model'", *pieces):
        TurnTemplate(tokenizer, ends).prove(**what)


def test_templates_without_tools_serve_conversations_only():
    refused(CHATML, "shows no tools")
    refused(QWEN3.replace("{{- content }}", ""), "shows no answers of tools")
    proved("chatml", tools=False, conversation=True)


def test_a_template_that_looks_back_is_refused():
    looks_back = CHATML.replace("<|im_start|>assistant", "<|im_start|>assistant {{ messages[1].content | length }}")
    refused(
        looks_back, "after another turn", "'A first text.\\n\\n'", "'One thought.'", tools=False, conversation=True
    )
    proved("chatml", tools=False, conversation=True)


def test_a_template_without_the_end_of_a_turn_is_refused():
    refused(CHATML.replace("<|im_end|>", ""), "'<|im_end|>'", "does not end a turn", tools=False, conversation=True)


def test_a_template_that_hides_the_mark_is_refused():
    escaped = CHATML.replace(
        "m.content", "m.content if m.role == 'assistant' else m.content | tojson(ensure_ascii=true)"
    )
    refused(escaped, "the mark", "'\\ufdd0'", tools=False, conversation=True)


def test_a_template_that_cannot_render_answers_is_refused():
    strict = (
        "{% for m in messages %}{% if m.role == 'user' and not loop.first %}{{ raise_exception('odd') }}{% endif %}"
    )
    refused(strict + CHATML + "{% endfor %}", "'user'", "odd", tools=False, conversation=True)


def test_an_encoding_that_crosses_the_seam_is_refused():
    tokenizer, ends = make(CHATML, "the/model")
    template = TurnTemplate(tokenizer, ends)
    template.untrusted.encode = lambda text, after: [5]
    with raises_naming(ValueError, "'the/model'", "[5]"):
        template.prove(tools=False, conversation=True)


def test_the_training_template_of_trl_is_tried_before_refusing(monkeypatch):
    tokenizer, ends = make(CHATML.replace("assistant", "assistant {{ messages[1].content }}"))
    monkeypatch.setattr(turns, "get_training_chat_template", lambda tokenizer: CHATML)
    template = TurnTemplate(tokenizer, ends)
    template.prove(tools=False, conversation=True)
    assert template.chat_template == CHATML


def test_a_model_without_an_end_is_refused():
    tokenizer, _ = make(CHATML)
    with raises_naming(ValueError, "tokenizer.eos_token"):
        TurnTemplate(tokenizer, [])


# --- MiniMind's own tokenizer ----------------------------------------------------------------------------------------


@pytest.mark.skipif(not (SHARED / "tokenizer").exists(), reason="MiniMind's tokenizer is not here")
def test_minimind_continues_its_golden_conversations():
    tokenizer = AutoTokenizer.from_pretrained(SHARED / "tokenizer")
    template = TurnTemplate(tokenizer, [tokenizer.eos_token_id])
    template.prove(conversation=True)
    golden = json.loads((SHARED / "golden" / "chat_template.json").read_text(encoding="utf-8"))
    continued = 0
    for case in golden:
        *before, last = case["messages"]
        if last["role"] not in ("user", "tool") or len(before) < 2 or case.get("tools"):
            continue
        ids = template.ids_between([last], {"open_thinking": case["open_thinking"]})
        assert case["ids"][-len(ids) :] == ids
        continued += 1
    assert continued
