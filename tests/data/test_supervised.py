# SPDX-License-Identifier: Apache-2.0
"""Conversations as token ids: exactly what the model will have to write is learned."""

import json
from pathlib import Path

import pytest
from naming import raises_naming
from tiny import make_tokenizer
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast
from trl import chat_template_utils

from minimind_hf.agent import TurnTemplate
from minimind_hf.data import PromptDataset, PromptError
from minimind_hf.data.loading import load_rows
from minimind_hf.data.preferences import encode_preference
from minimind_hf.data.supervised import (
    ConversationRenderer,
    check_example,
    encode_conversation,
    encode_text,
    thinks,
)

ROOT = Path(__file__).resolve().parents[2]
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]


def user(text: str) -> dict:
    return {"role": "user", "content": text}


def assistant(text: str, **more) -> dict:
    return {"role": "assistant", "content": text, **more}


@pytest.fixture
def tokenizer():
    """Bytes as tokens, and the conversation format that the recipes ship."""
    made = make_tokenizer()
    made.chat_template = (ROOT / "recipes" / "journey" / "chat_template.jinja").read_text()
    return made


@pytest.fixture
def renderer(tokenizer) -> ConversationRenderer:
    return ConversationRenderer(tokenizer)


def learned(encoded: dict, tokenizer) -> str:
    assert len(encoded["input_ids"]) == len(encoded["labels"])
    pairs = zip(encoded["input_ids"], encoded["labels"], strict=True)
    assert all(label in (-100, token) for token, label in pairs)
    return tokenizer.decode([label for label in encoded["labels"] if label != -100])


def test_answer_without_thought_is_learned_after_the_closed_thought(renderer, tokenizer):
    encoded = encode_conversation({"conversations": [user("1+1?"), assistant("2")]}, 0, renderer)
    whole = "<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n2<|im_end|>\n"
    assert tokenizer.decode(encoded["input_ids"]) == whole
    assert learned(encoded, tokenizer) == "2<|im_end|>"


@pytest.mark.parametrize(
    "answer", [assistant("2", reasoning_content="one and one"), assistant("<think>\none and one\n</think>\n\n2")]
)
def test_thought_is_learned_after_the_opened_thought(renderer, tokenizer, answer):
    encoded = encode_conversation({"conversations": [user("1+1?"), answer]}, 0, renderer)
    assert learned(encoded, tokenizer) == "one and one\n</think>\n\n2<|im_end|>"


@pytest.mark.parametrize("answer", ["<answer> foo </answer>", "<think>", "", "\n", "2", "<think>\nhm\n</think>\n\n2"])
def test_template_whose_past_turns_lack_the_thought_that_it_opens(answer):
    tokenizer = make_tokenizer()
    renderer = ConversationRenderer(tokenizer)
    thought = "<think>\n" if thinks(assistant(answer)) else ""  # then the turn does begin as the prompt does
    row = {"conversations": [user("hi"), assistant(answer), user("more"), assistant(answer)]}
    encoded = encode_conversation(row, 0, renderer)
    assert learned(encoded, tokenizer) == f"{answer.removeprefix(thought)}<|im_end|>" * 2
    if not thought:  # an answer follows the closed thought, as in a rollout
        text = tokenizer.decode(encoded["input_ids"])
        assert text.count(f"assistant\n<think>\n\n</think>\n\n{answer}<|im_end|>") == 2


def test_every_turn_of_the_assistant_is_learned_and_nothing_else(renderer, tokenizer):
    turns = [{"role": "system", "content": "be brief"}, user("a?"), assistant("A"), user("b?"), assistant("B")]
    assert learned(encode_conversation({"messages": turns}, 0, renderer, "messages"), tokenizer) == (
        "A<|im_end|>B<|im_end|>"
    )


@pytest.mark.parametrize("as_text", [False, True])
def test_tools_and_calls(renderer, tokenizer, as_text):
    calls = [{"name": "weather", "arguments": {"city": "巴黎"}}]
    rows = [
        {"role": "system", "content": "", "tools": json.dumps(TOOLS) if as_text else TOOLS},
        user("weather?"),
        assistant("", tool_calls=json.dumps(calls) if as_text else calls),
        {"role": "tool", "content": '{"sky": "blue"}'},
        assistant("blue"),
    ]
    encoded = encode_conversation({"conversations": rows}, 0, renderer)
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "巴黎"}}\n</tool_call><|im_end|>'
    assert learned(encoded, tokenizer) == call + "blue<|im_end|>"
    text = tokenizer.decode(encoded["input_ids"])
    assert json.dumps(TOOLS[0]) in text and '<tool_response>\n{"sky": "blue"}\n</tool_response>' in text


@pytest.mark.parametrize("where", ["column", "text", "texts", "system", "developer"])
def test_tools_of_a_row_reach_the_template_wherever_they_stand(renderer, tokenizer, where):
    """In every format; as a list, as JSON text, and as a list of JSON texts."""
    tokenizer.chat_template = "{% if tools %}TOOLS{{ tools | tojson }}{% endif %}" + tokenizer.chat_template
    renderer = ConversationRenderer(tokenizer)
    written = {"text": json.dumps(TOOLS), "texts": [json.dumps(tool) for tool in TOOLS]}.get(where, TOOLS)
    column = {} if where in ("system", "developer") else {"tools": written}
    first = [] if column else [{"role": where, "content": "", "tools": TOOLS}]
    asked, answer = [*first, user("a?")], assistant("A")
    prompts = [
        PromptDataset([{name: asked, **column}], tokenizer)[0]["prompt_ids"] for name in ("prompt", "conversations")
    ]
    learned_rows = [
        encode_conversation({name: [*asked, answer], **column}, 0, renderer, name)["input_ids"]
        for name in ("conversations", "messages")
    ]
    preference = {"chosen": [*asked, answer], "rejected": [*asked, assistant("B")], **column}
    compared = encode_preference(preference, 0, renderer)["prompt_ids"]
    for text in (tokenizer.decode(ids) for ids in (*prompts, *learned_rows, compared)):
        assert text.startswith("TOOLS" + json.dumps(TOOLS))


TURNS = "{% for m in messages %}<|im_end|>{{ m.role }}:{{ m.content }}{{ END }}{% endfor %}"


@pytest.mark.parametrize("end", ["", "\n"])
def test_bos_that_is_eos_and_an_eos_in_the_text_do_not_end_a_turn(tokenizer, end):
    tokenizer.bos_token = tokenizer.eos_token
    tokenizer.chat_template = TURNS.replace("{{ END }}", end) + (
        "{% if add_generation_prompt %}<|im_end|>assistant:{% endif %}"
    )
    renderer = ConversationRenderer(tokenizer)
    for answer in ("A", "A<|im_end|>B"):
        row = {"messages": [user("say <|im_end|>"), assistant(answer)]}
        assert learned(encode_conversation(row, 0, renderer, "messages"), tokenizer) == answer + end


def test_a_turn_of_which_nothing_is_learned_names_its_row(tokenizer):
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role }}{% endfor %}{% if add_generation_prompt %}assistant{% endif %}"
    )
    with raises_naming(PromptError, "row 4", "turn 1"):
        encode_conversation({"messages": [user("a"), assistant("A")]}, 4, ConversationRenderer(tokenizer), "messages")


def test_tools_in_two_places_must_be_the_same():
    system = {"role": "system", "content": "", "tools": TOOLS}
    row = {"conversations": [system, user("a"), assistant("A")], "tools": json.dumps(TOOLS)}
    assert check_example(row, "row 0") == "conversations"
    for other in ([{"name": "other"}], "[5]", "{", 5):
        with raises_naming(PromptError, "row 0", "tools"):
            check_example({**row, "tools": other}, "row 0")


@pytest.mark.parametrize("as_text", [False, True])
def test_a_row_gives_its_own_arguments_to_the_template(tokenizer, as_text):
    tokenizer.chat_template = "{{ mood }}:" + tokenizer.chat_template
    renderer = ConversationRenderer(tokenizer)
    kwargs = {"mood": "calm"}
    row = {"chat_template_kwargs": json.dumps(kwargs) if as_text else kwargs}
    turns = [user("a"), assistant("A")]
    encoded = encode_conversation({"messages": turns, **row}, 0, renderer, "messages")
    assert tokenizer.decode(encoded["input_ids"]).startswith("calm:") and learned(encoded, tokenizer) == "A<|im_end|>"
    pair = encode_preference({"chosen": turns, "rejected": [user("a"), assistant("B")], **row}, 0, renderer)
    assert tokenizer.decode(pair["prompt_ids"]).startswith("calm:")
    assert tokenizer.decode(pair["chosen_ids"]) == "A<|im_end|>"
    prompt = PromptDataset([{"prompt": turns[:1], **row}], tokenizer)[0]
    assert tokenizer.decode(prompt["prompt_ids"]).startswith("calm:")
    with raises_naming(PromptError, "row 3", "chat_template_kwargs", "'tokenize'"):
        check_example({"messages": turns, "chat_template_kwargs": {"tokenize": True}}, "row 3")


def test_system_prompt_is_added_to_some_and_the_same_ones(renderer, tokenizer):
    row = {"conversations": [user("a?"), assistant("A")]}
    texts = [
        tokenizer.decode(encode_conversation(row, i, renderer, system_prompt_ratio=0.5)["input_ids"])
        for i in range(40)
    ]
    again = [
        tokenizer.decode(encode_conversation(row, i, renderer, system_prompt_ratio=0.5)["input_ids"])
        for i in range(40)
    ]
    with_system = sum(text.startswith("<|im_start|>system\n") for text in texts)
    assert texts == again
    assert 8 <= with_system <= 32  # binomial(40, 1/2): outside with odds of 1 in 7,000; fixed by the seed


def test_a_text_is_learned_between_bos_and_eos(tokenizer):
    encoded = encode_text({"text": "ab"}, tokenizer)
    assert tokenizer.decode(encoded["input_ids"]) == "<|im_start|>ab<|im_end|>"
    assert encoded["labels"] == encoded["input_ids"]


def test_template_that_rewrites_earlier_turns_is_refused(tokenizer):
    tokenizer.chat_template = "{% for m in messages %}{{ m.role[0] }}{{ m.content if loop.last else '' }}{% endfor %}"
    renderer = ConversationRenderer(tokenizer)
    row = {"conversations": [user("a"), assistant("A"), user("b"), assistant("B")]}
    with raises_naming(PromptError, "row 7", "template", "turn 1"):
        encode_conversation(row, 7, renderer)


@pytest.mark.parametrize(
    ("turns", "named"),
    [
        ([user("a")], ["assistant", "['user']"]),
        ([assistant("A"), user("b")], ["assistant", "first", "user"]),
        ([{"role": "human", "content": "a"}], ["role", "'human'", "'user'"]),
    ],
)
def test_conversations_without_something_to_learn(renderer, turns, named):
    with raises_naming(PromptError, "row 3", *named):
        encode_conversation({"conversations": turns}, 3, renderer)


def test_tokenizer_without_a_template_or_an_end(tokenizer):
    tokenizer.chat_template = None
    with raises_naming(PromptError, "tokenizer.chat_template"):
        ConversationRenderer(tokenizer).text([user("a")])
    tokenizer.eos_token = None
    with raises_naming(PromptError, "tokenizer.eos_token"):
        ConversationRenderer(tokenizer)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (assistant("a"), False),
        (assistant("<think>\n\n</think>\n\na"), False),
        (assistant("<think>\nhm\n</think>\n\na"), True),
        (assistant("hm</think>a"), True),
        (assistant("a", reasoning_content="hm"), True),
    ],
)
def test_thinks(message, expected):
    assert thinks(message) is expected


def test_a_bad_line_is_named(tmp_path):
    path = tmp_path / "sft.jsonl"
    good = json.dumps({"conversations": [user("a"), assistant("A")]})
    path.write_text(good + "\n" + '{"question": "a"}\n')
    with raises_naming(PromptError, path, "line 2", "conversations", "messages", "text", "['question']"):
        load_rows(str(path), check_example)
    path.write_text(good + "\n" + '{"conversations": [{"role": "user"}]}\n')
    with raises_naming(PromptError, path, "line 2", "`conversations`[0]", "content", None):
        load_rows(str(path), check_example)
    path.write_text(good + "\n")
    assert len(load_rows(str(path), check_example)) == 1
    with raises_naming(PromptError, "file", tmp_path / "absent.jsonl"):
        load_rows(str(tmp_path / "absent.jsonl"), check_example)


def test_minimind_own_template(golden_dir):
    """MiniMind's tokenizer, where it is at hand: what is learned follows what its template opens."""
    from transformers import AutoTokenizer

    folder = golden_dir.parent / "tokenizer"
    if not folder.is_dir():
        pytest.skip(f"no tokenizer at {folder}")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    renderer = ConversationRenderer(tokenizer)
    row = {
        "conversations": [
            {"role": "system", "content": "你好", "tools": TOOLS},
            user("巴黎天气？"),
            assistant("", tool_calls=[{"name": "weather", "arguments": {}}]),
            {"role": "tool", "content": "晴"},
            assistant("巴黎今天晴。", reasoning_content="查到了。"),
        ]
    }
    assert learned(encode_conversation(row, 0, renderer), tokenizer) == (
        '<tool_call>\n{"name": "weather", "arguments": {}}\n</tool_call><|im_end|>'
        "查到了。\n</think>\n\n巴黎今天晴。<|im_end|>"
    )


def test_a_turn_that_ends_with_another_token_than_the_eos_is_learned_up_to_it(tokenizer):
    tokenizer.eos_token = tokenizer.pad_token  # as of a base model
    encoded = encode_conversation({"conversations": [user("a"), assistant("b")]}, 0, ConversationRenderer(tokenizer))
    assert learned(encoded, tokenizer) == "b<|im_end|>"


@pytest.mark.parametrize("thought", [None, "The tool knows."])
@pytest.mark.parametrize("family", ["minimind", "qwen2_5", "qwen3", "llama3_2"])
def test_an_episode_is_learned_turn_by_turn_with_the_templates_of_models(tokenizer, family, thought):
    """Beginning with exactly the tokens that a rollout is given; its calls, answers and ends are learned."""
    if family != "minimind":
        tokenizer.chat_template = getattr(chat_template_utils, f"{family}_chat_template")
    thinks_in = family in ("minimind", "qwen3") and thought
    more = {"reasoning_content": thought} if thinks_in else {}
    asked = [{"role": "system", "content": "be brief"}, user("sky?")]
    call = {"name": "weather", "arguments": {"city": "Rome"}}
    turns = [assistant("", tool_calls=[call], **more), {"role": "tool", "content": "blue"}, assistant("Blue.", **more)]
    row = {"messages": [*asked, *turns, user("sure?"), assistant("Yes.", **more)], "tools": TOOLS}
    tokenizer.add_special_tokens({"eos_token": "<|eot_id|>" if family == "llama3_2" else "<|im_end|>"})
    encoded = encode_conversation(row, 0, ConversationRenderer(tokenizer), "messages")
    prompts = PromptDataset([{"prompt": asked, "tools": TOOLS}], tokenizer, thinking_ratio=float(bool(thinks_in)))
    given = prompts[0]["prompt_ids"]
    assert encoded["input_ids"][: len(given)] == given and set(encoded["labels"][: len(given)]) == {-100}
    assert encoded["labels"][len(given)] != -100
    before = (
        {"minimind": f"{thought}\n</think>\n\n", "qwen3": f"<think>\n{thought}\n</think>\n\n"}[family] if more else ""
    )
    written = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
    if family == "llama3_2":
        written = '{"name": "weather", "parameters": {"city": "Rome"}}'
    end = tokenizer.eos_token
    said = "".join(f"{before}{text}{end}" for text in (written, "Blue.", "Yes."))
    assert learned(encoded, tokenizer) == said


def test_no_token_spans_the_border_of_a_turn(tokenizer):
    """Two line ends are one token, and yet an answer that begins with one begins with a token of its own."""
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    state["model"]["vocab"]["ĊĊ"] = len(state["model"]["vocab"])
    state["model"]["merges"] = [["Ċ", "Ċ"]]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(state)),
        eos_token="<|im_end|>",
        pad_token="<pad>",
        chat_template=TURNS.replace("{{ END }}", "<|im_end|>").replace(":", "\n")
        + "{% if add_generation_prompt %}<|im_end|>assistant\n{% endif %}",
    )
    asked = [user("hi")]
    row = {"messages": [*asked, assistant("\n\nA"), user("more\n\n"), assistant("B")]}
    encoded = encode_conversation(row, 0, ConversationRenderer(tokenizer), "messages")
    given = PromptDataset([{"prompt": asked}], tokenizer)[0]["prompt_ids"]
    assert encoded["input_ids"][: len(given)] == given
    assert learned(encoded, tokenizer) == "\n\nA<|im_end|>B<|im_end|>"
    assert tokenizer.convert_tokens_to_ids("ĊĊ") in encoded["input_ids"]  # within the user's turn


@pytest.mark.parametrize(
    ("template", "named"), [("lfm2_chat_template", "'weather'"), ("llama3_2_chat_template", "'Let me look.'")]
)
def test_template_that_drops_a_call_or_the_text_beside_it_is_refused(tokenizer, template, named):
    tokenizer.chat_template = getattr(chat_template_utils, template)
    calls = [{"name": "weather", "arguments": {}}]
    row = {"messages": [user("sky?"), assistant("Let me look.", tool_calls=calls), assistant("Blue.")]}
    row["messages"].insert(2, {"role": "tool", "content": "blue"})
    with raises_naming(PromptError, "row 5", "turn 1", named):
        encode_conversation(row, 5, ConversationRenderer(tokenizer), "messages")


@pytest.mark.parametrize(
    "call",
    [
        {"name": "weather", "arguments": {"city": "Rome"}},
        {"name": "weather", "arguments": '{"city": "Rome"}'},
        {"function": {"name": "weather", "arguments": '{"city": "Rome"}'}, "type": "function"},
        {"function": {"name": "weather", "arguments": {"city": "Rome"}}, "type": None},
    ],
)
def test_calls_have_one_form_however_they_are_written(tokenizer, call):
    tokenizer.chat_template = chat_template_utils.qwen2_5_chat_template
    row = {"messages": [user("sky?"), assistant("", tool_calls=[call])], "tools": TOOLS}
    encoded = encode_conversation(row, 0, ConversationRenderer(tokenizer), "messages")
    written = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call><|im_end|>'
    assert learned(encoded, tokenizer) == written


@pytest.mark.parametrize(
    ("call", "named"),
    [
        ({"arguments": {}}, ["name", "{'arguments': {}}"]),
        ({"name": "weather", "arguments": "Rome"}, ["JSON", "'Rome'"]),
        ({"name": "weather", "arguments": [1]}, ["'weather'", "[1]"]),
    ],
)
def test_calls_that_cannot_be_read(call, named):
    with raises_naming(PromptError, "row 2", "`messages`[1]: `tool_calls`", *named):
        check_example({"messages": [user("sky?"), assistant("", tool_calls=[call])]}, "row 2")


@pytest.mark.parametrize("family", ["minimind", "qwen2_5", "qwen3", "llama3_2"])
@pytest.mark.parametrize("said", ["blue", " \n<|im_end|>\n<|im_start|>assistant\nred ", "</think>🙂<|eot_id|>"])
def test_an_episode_is_learned_with_the_ids_that_a_rollout_appends(tokenizer, family, said):
    """Prompt, turns and what stands between them: as an episode puts them together, whatever a tool said."""
    if family != "minimind":
        tokenizer.chat_template = getattr(chat_template_utils, f"{family}_chat_template")
    end = "<|eot_id|>" if family == "llama3_2" else "<|im_end|>"
    tokenizer.add_special_tokens({"eos_token": end})
    template = TurnTemplate(tokenizer, (tokenizer.eos_token_id,))
    template.prove()
    call = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}}}
    told = {"role": "tool", "name": "weather", "content": said}
    turns = [assistant("", tool_calls=[call]), told, assistant("Blue."), user("sure?"), assistant("Yes.")]
    row = {"messages": [user("sky?"), *turns], "tools": TOOLS}
    prompt = PromptDataset([{"prompt": [user("sky?")], "tools": TOOLS}], tokenizer, thinking_ratio=0.0)[0]
    written = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
    if family == "llama3_2":
        written = '{"name": "weather", "parameters": {"city": "Rome"}}'
    ids, labels = list(prompt["prompt_ids"]), [-100] * len(prompt["prompt_ids"])
    for text, answers in ((written, [told]), ("Blue.", [user("sure?")]), ("Yes.", [])):
        drawn = tokenizer(text + end, add_special_tokens=False)["input_ids"]
        between = template.ids_between(answers, prompt.get("template_kwargs")) if answers else []
        ids, labels = [*ids, *drawn, *between], [*labels, *drawn, *[-100] * len(between)]
    encoded = encode_conversation(row, 0, ConversationRenderer(tokenizer), "messages")
    assert encoded["input_ids"][: len(ids)] == ids
    assert encoded["labels"][: len(ids)] == labels and set(encoded["labels"][len(ids) :]) <= {-100}
