# SPDX-License-Identifier: Apache-2.0
"""Prompts become the ids that the chat template and the limits say, with choices that never depend on the order."""

import json
import logging
import pickle
from pathlib import Path

import datasets
import pytest
from naming import assert_names, raises_naming
from torch.utils.data import DataLoader

from minimind_hf.data import DEFAULT_SYSTEM_PROMPTS, PromptDataset, PromptError, load_prompts, prompt_choices
from minimind_hf.data.prompts import say_how_many_think
from minimind_hf.data.tokenizers import say_plain_prompts

SHARED = Path(__file__).resolve().parents[2].parent / "shared"


def chat(*texts: str) -> list[dict]:
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]


def rows(count: int, **columns) -> list[dict]:
    return [{"prompt": chat(f"question {i}"), **columns} for i in range(count)]


def text_of(tokenizer, item) -> str:
    return tokenizer.decode(item["prompt_ids"])


# --- rendering -------------------------------------------------------------------------------------------------------


def test_minimind_rows_lose_the_last_assistant_turn_only(tokenizer):
    data = [{"conversations": chat("a", "b", "c", "dropped")}, {"conversations": chat("a", "b", "c")}]
    dataset = PromptDataset(data, tokenizer, thinking_ratio=1.0)
    for item in (dataset[0], dataset[1]):
        assert item["prompt"] == chat("a", "b", "c")
        assert text_of(tokenizer, item) == (
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\nc<|im_end|>\n"
            "<|im_start|>assistant\n<think>\n"
        )


@pytest.mark.parametrize("argument", ["open_thinking", "enable_thinking"])
def test_thinking_reaches_the_template_under_its_own_name(make_tokenizer, argument):
    tokenizer = make_tokenizer(argument)
    on = PromptDataset(rows(1), tokenizer, thinking_ratio=1.0)[0]
    off = PromptDataset(rows(1), tokenizer, thinking_ratio=0.0)[0]
    assert text_of(tokenizer, on).endswith("assistant\n<think>\n")
    assert text_of(tokenizer, off).endswith("assistant\n<think>\n\n</think>\n\n")


def test_a_template_without_thinking_is_served_too(make_tokenizer):
    tokenizer = make_tokenizer("no_such_argument")
    first, second = (PromptDataset(rows(1), tokenizer, thinking_ratio=ratio)[0] for ratio in (0.0, 1.0))
    assert first == second


def test_how_many_think_is_said_once_where_the_template_asks(make_tokenizer, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("minimind_hf"), "propagate", True)

    def said(argument: str, ratio: float, **settings) -> list[str]:
        caplog.clear()
        prompts = PromptDataset(rows(1), make_tokenizer(argument), thinking_ratio=ratio, **settings)
        say_how_many_think(prompts, ratio)
        say_how_many_think(prompts, ratio)
        return caplog.messages

    (message,) = said("enable_thinking", 0.37)
    assert_names(message, "37%", "enable_thinking=True", "thinking_ratio")
    assert said("enable_thinking", 0.37) == []
    assert said("enable_thinking", 0.0) == said("no_such_argument", 0.36) == []
    assert said("enable_thinking", 0.35, chat_template_kwargs={"enable_thinking": False}) == []


def test_plain_prompts_for_a_model_with_a_chat_template_are_said_once(make_tokenizer, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("minimind_hf"), "propagate", True)
    with_template, without = make_tokenizer("one_argument"), make_tokenizer("one_argument")
    with_template.name_or_path, without.chat_template = "a model with a template", None
    for tokenizer, conversational in ((without, False), (with_template, True)):
        say_plain_prompts(tokenizer, conversational)
        assert caplog.messages == []
    for _ in range(2):
        say_plain_prompts(with_template, False)
    (message,) = caplog.messages
    assert "'a model with a template'" in message and '"role": "user"' in message


def test_user_arguments_win_and_row_arguments_win_over_them(tokenizer):
    data = rows(1) + rows(1, chat_template_kwargs={"open_thinking": True})
    dataset = PromptDataset(data, tokenizer, thinking_ratio=1.0, chat_template_kwargs={"open_thinking": False})
    assert text_of(tokenizer, dataset[0]).endswith("</think>\n\n")
    assert text_of(tokenizer, dataset[1]).endswith("<think>\n")


def test_last_assistant_turn_of_a_prompt_is_gone_on_from(tokenizer):
    dataset = PromptDataset([{"prompt": chat("2+2?", "The sum is")}], tokenizer)
    assert text_of(tokenizer, dataset[0]) == "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\nThe sum is"


def test_choices_follow_seed_epoch_and_row(tokenizer):
    dataset = PromptDataset(rows(40), tokenizer, thinking_ratio=0.5, system_prompt_ratio=0.5, seed=3)
    for epoch in (0, 1):
        dataset.set_epoch(epoch)
        for i in range(40):
            choices, item = prompt_choices(3, epoch, i), dataset[i]
            assert text_of(tokenizer, item).endswith("<think>\n" if choices.thinking < 0.5 else "</think>\n\n")
            has_system = item["prompt"][0]["role"] == "system"
            assert has_system == (choices.system < 0.5)
            if has_system:
                assert item["prompt"][0]["content"] == choices.pick(DEFAULT_SYSTEM_PROMPTS)
                assert text_of(tokenizer, item).startswith("<|im_start|>system\n" + item["prompt"][0]["content"])


def test_order_workers_and_copies_change_nothing(tokenizer):
    dataset = PromptDataset(rows(20), tokenizer, thinking_ratio=0.5, system_prompt_ratio=0.5)
    dataset.set_epoch(2)
    expected = [dataset[i] for i in range(20)]
    assert [dataset[i] for i in reversed(range(20))] == expected[::-1]
    copy = pickle.loads(pickle.dumps(dataset))
    assert [copy[i] for i in range(20)] == expected


def test_living_workers_see_the_next_epoch(tokenizer, monkeypatch):
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")  # said before forking, else the library warns
    dataset = PromptDataset(rows(20), tokenizer, thinking_ratio=0.5)
    loader = DataLoader(dataset, batch_size=None, num_workers=1, persistent_workers=True)
    for epoch in (0, 1):
        dataset.set_epoch(epoch)
        assert [item["prompt_ids"] for item in loader] == [dataset[i]["prompt_ids"] for i in range(20)]


def test_a_conversation_with_a_system_message_keeps_it(tokenizer):
    messages = [{"role": "system", "content": "mine"}, *chat("q")]
    dataset = PromptDataset([{"prompt": messages}], tokenizer, system_prompt_ratio=1.0)
    assert dataset[0]["prompt"] == messages


def test_own_system_prompts(tokenizer):
    dataset = PromptDataset(rows(30), tokenizer, system_prompt_ratio=1.0, system_prompts=["one", "two"])
    assert {dataset[i]["prompt"][0]["content"] for i in range(30)} == {"one", "two"}


def test_row_is_not_changed_by_rendering(tokenizer):
    data = [{"conversations": chat("a", "b")}]
    PromptDataset(data, tokenizer, system_prompt_ratio=1.0)[0]
    assert data == [{"conversations": chat("a", "b")}]


# --- string prompts --------------------------------------------------------------------------------------------------


def add_bos(tokenizer, eos: bool = False):
    from tokenizers.processors import TemplateProcessing

    single = "<|im_start|> $A <|im_end|>" if eos else "<|im_start|> $A"
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=single, special_tokens=[("<|im_start|>", 1), ("<|im_end|>", 2)]
    )
    return tokenizer


@pytest.mark.parametrize("eos", [False, True])
def test_string_prompts_get_one_bos_and_no_eos(tokenizer, eos):
    add_bos(tokenizer, eos)
    dataset = PromptDataset([{"prompt": "ab"}, {"prompt": "<|im_start|>ab"}], tokenizer)
    letters = tokenizer.convert_tokens_to_ids(["a", "b"])
    assert not dataset.conversational
    assert dataset[0]["prompt_ids"] == dataset[1]["prompt_ids"] == [1, *letters]
    assert dataset[0]["prompt"] == "ab" and dataset[1]["prompt"] == "<|im_start|>ab"


def test_string_prompts_that_are_rendered_chats_keep_their_last_special_token(tokenizer):
    dataset = PromptDataset([{"prompt": "a<|im_end|>"}], add_bos(tokenizer, eos=True))
    assert dataset[0]["prompt_ids"][-1] == 2


def test_chat_prompts_do_not_get_a_second_bos(tokenizer):
    dataset = PromptDataset(rows(1), add_bos(tokenizer), thinking_ratio=1.0)
    assert dataset[0]["prompt_ids"].count(1) == 2  # one opens the user turn, one the assistant's


# --- length ----------------------------------------------------------------------------------------------------------


def test_truncation_keeps_the_last_ids_and_counts(tokenizer, caplog):
    data = [{"prompt": chat("x" * 50)}, {"prompt": chat("y")}]
    whole = PromptDataset(data, tokenizer, thinking_ratio=1.0)
    cut = PromptDataset(data, tokenizer, thinking_ratio=1.0, max_prompt_length=40)
    # 1 + 5 ("user\n") + 1 letter + 1 + 1 + 1 + 10 ("assistant\n") + 8 ("<think>\n") = 28 ids: fits.
    assert len(whole[1]["prompt_ids"]) == 28
    with caplog.at_level(logging.WARNING):
        assert cut[0]["prompt_ids"] == whole[0]["prompt_ids"][-40:]
    assert_names(caplog.text, "row 0", 77, 40)  # 28 + 49 further letters
    assert cut[1]["prompt_ids"] == whole[1]["prompt_ids"]
    assert (cut.num_truncated, cut.num_dropped, len(cut)) == (1, 0, 2)


def test_truncation_keeps_special_tokens_whole(tokenizer):
    # The last 1 + 10 ("assistant\n") + 8 ("<think>\n") ids begin with the special token of the assistant's turn.
    dataset = PromptDataset(rows(1), tokenizer, thinking_ratio=1.0, max_prompt_length=19)
    assert dataset[0]["prompt_ids"][0] == 1
    assert text_of(tokenizer, dataset[0]) == "<|im_start|>assistant\n<think>\n"


def test_dropping_is_decided_by_the_longest_form(tokenizer, caplog):
    # 28 ids with thinking on, 28 + 11 ("\n</think>\n\n") = 39 with thinking off; a second letter makes it 40.
    data = [{"prompt": chat("a")}, {"prompt": chat("bb")}, {"prompt": chat("c")}]
    settings = dict(max_prompt_length=39, overlong_prompts="drop")
    with caplog.at_level(logging.WARNING):
        dataset = PromptDataset(data, tokenizer, thinking_ratio=0.5, **settings)
    assert_names(caplog.text, 1, 3, 39)
    assert (dataset.num_dropped, len(dataset)) == (1, 2)
    assert [dataset[i]["index"] for i in range(2)] == [0, 2]
    assert dataset[1]["prompt"] == chat("c")
    assert PromptDataset(data, tokenizer, thinking_ratio=1.0, **settings).num_dropped == 0


@pytest.mark.parametrize("ratio", [0.0, 0.3, 1.0])
def test_what_is_kept_fits_in_every_epoch(tokenizer, ratio):
    data = [{"prompt": chat("q" * (i % 30 + 1))} for i in range(60)]
    dataset = PromptDataset(
        data, tokenizer, thinking_ratio=0.5, system_prompt_ratio=ratio, max_prompt_length=130, overlong_prompts="drop",
        system_prompts=["short", "a system prompt that is as long as this one, which is quite long"],
    )  # fmt: skip
    assert len(dataset) > 0
    for epoch in range(3):
        dataset.set_epoch(epoch)
        for i in range(len(dataset)):
            assert len(dataset[i]["prompt_ids"]) <= 130
    assert dataset.num_truncated == 0
    if ratio:
        assert dataset.num_dropped > 0


def test_choices_belong_to_the_source_row_after_dropping(tokenizer):
    data = [{"prompt": chat("x" * 60)}, *rows(30)]
    settings = dict(thinking_ratio=0.5, seed=5)
    everything = PromptDataset(data, tokenizer, **settings)
    kept = PromptDataset(data, tokenizer, max_prompt_length=60, overlong_prompts="drop", **settings)
    assert [kept[i]["prompt_ids"] for i in range(30)] == [everything[i]["prompt_ids"] for i in range(1, 31)]


# --- columns and sources ---------------------------------------------------------------------------------------------


def test_other_columns_travel_and_the_prompt_itself_does_not(tokenizer):
    data = [{"prompt": chat("a"), "conversations": chat("b"), "messages": chat("c"), "answer": "4", "level": 2}]
    item = PromptDataset(data, tokenizer)[0]
    assert item["columns"] == {"answer": "4", "level": 2}
    assert set(item) == {"prompt", "prompt_ids", "index", "columns", "answer", "thinking", "template_kwargs", "tools"}
    assert item["prompt"] == chat("a")


def test_ragged_rows_give_none(tokenizer):
    dataset = PromptDataset([{"prompt": "a"}, {"prompt": "b", "answer": 1}], tokenizer)
    assert [dataset[i]["columns"] for i in range(2)] == [{"answer": None}, {"answer": 1}]


def test_dataset_and_list_are_equal(tokenizer):
    data = [{"prompt": chat("a", "b", "c"), "answer": "1"}, {"prompt": chat("d"), "answer": "2"}]
    from_list, from_arrow = (PromptDataset(d, tokenizer) for d in (data, datasets.Dataset.from_list(data)))
    assert [from_list[i] for i in range(2)] == [from_arrow[i] for i in range(2)]


def test_fields_that_arrow_filled_with_none_do_not_reach_the_template(tokenizer):
    data = datasets.Dataset.from_list([{"prompt": [{"role": "user", "content": "a", "reasoning_content": None}]}])
    assert PromptDataset(data, tokenizer)[0]["prompt"] == chat("a")


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "settings", "named"),
    [
        ([], {}, ["list", "empty"]),
        ([{"text": "a", "label": 1}], {}, ["prompt", "conversations", "['text', 'label']"]),
        ([{"prompt": "a"}, {"prompt": chat("b")}], {}, ["row 1", "prompt", "list", "string"]),
        ([{"prompt": "a"}, {"prompt": None}], {}, ["row 1", "prompt", "missing"]),
        ([{"prompt": "a"}, {"prompt": ""}], {}, ["row 1", "prompt", "empty"]),
        ([{"prompt": [{"role": "bot", "content": "a"}]}], {}, ["row 0", "prompt[0]", "'bot'", "'user'"]),
        ([{"prompt": "a", "completions": "b"}], {}, ["'completions'", "rename_column"]),
        ([{"prompt": "a", 5: "b"}], {}, ["column", 5, "int"]),
        ([{"prompt": "a"}, {"prompt": "b\ud800"}], {}, ["row 1", "prompt", "surrogate"]),
        ([{"prompt": chat("\ud800")}], {}, ["row 0", "prompt[0]", "content", "surrogate"]),
        ([{"prompt": [{"role": "system", "content": "", "tools": 5}, *chat("a")]}], {}, ["row 0", "tools", 5]),
        ([{"prompt": [{"role": "user", "content": "", "tool_calls": "7"}]}], {}, ["row 0", "tool_calls", 7]),
        (
            [{"prompt": [{"role": "user", "content": "", "reasoning_content": 7}]}],
            {},
            ["row 0", "reasoning_content", 7],
        ),
        ([{"prompt": chat("a"), "chat_template_kwargs": "x"}], {}, ["row 0", "chat_template_kwargs", "'x'"]),
        (rows(1), {"chat_template_kwargs": {"tokenize": True}}, ["chat_template_kwargs", "'tokenize'", True]),
        (["a"], {}, ["row 0", "str", "dict"]),
        ({"train": []}, {}, ["['train']", "dataset['train']"]),
        (3, {}, ["datasets.Dataset", "int", "load_prompts"]),
        ([{"prompt": "a"}], {"thinking_ratio": 1.5}, ["thinking_ratio", 1.5]),
        ([{"prompt": "a"}], {"thinking_ratio": float("nan")}, ["thinking_ratio", "nan"]),
        ([{"prompt": "a"}], {"system_prompt_ratio": -0.1}, ["system_prompt_ratio", -0.1]),
        ([{"prompt": "a"}], {"overlong_prompts": "cut"}, ["overlong_prompts", "'cut'", "'truncate'", "'drop'"]),
        ([{"prompt": "a"}], {"max_prompt_length": 0}, ["max_prompt_length", 0, 1]),
        ([{"prompt": "a"}], {"system_prompt_ratio": 0.5, "system_prompts": []}, ["system_prompts", "[]"]),
        ([{"prompt": "a"}], {"system_prompts": "be kind"}, ["system_prompts", "'be kind'"]),
        (
            [{"prompt": "aaaa"}, {"prompt": "bbbbb"}],
            {"max_prompt_length": 3, "overlong_prompts": "drop"},
            [2, "max_prompt_length", 3, "overlong_prompts='truncate'"],
        ),
    ],
)
def test_what_cannot_be_used_is_refused(tokenizer, data, settings, named):
    with raises_naming(PromptError, *named):
        PromptDataset(data, tokenizer, **settings)


def test_a_template_that_refuses_a_conversation_names_its_row(tokenizer):
    alternate = "{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "{% for m in messages %}", "{% for m in messages %}" + alternate
    )
    with raises_naming(PromptError, "row 0", "['system', 'user']", "no system role", "tokenizer.chat_template"):
        PromptDataset(rows(2), tokenizer, system_prompt_ratio=0.1)  # found at once, whichever rows are to get one
    dataset = PromptDataset([*rows(1), {"prompt": [{"role": "system", "content": "s"}, *chat("a")]}], tokenizer)
    assert dataset[0]["prompt_ids"]
    with raises_naming(PromptError, "row 1", "no system role", "tokenizer.chat_template"):
        dataset[1]


def test_streams_are_refused_by_name(tokenizer):
    stream = datasets.Dataset.from_dict({"prompt": ["a"]}).to_iterable_dataset()
    with raises_naming(PromptError, "IterableDataset", "streaming=True"):
        PromptDataset(stream, tokenizer)


def test_tokenizer_without_chat_template(tokenizer):
    tokenizer.chat_template = None
    with raises_naming(PromptError, "tokenizer.chat_template"):
        PromptDataset(rows(1), tokenizer)
    assert len(PromptDataset([{"prompt": "strings need none"}], tokenizer)) == 1


def test_tokenizer_without_pad_token(tokenizer):
    tokenizer.pad_token = None
    with raises_naming(PromptError, "pad_token", "'<|im_end|>'", "tokenizer.pad_token = tokenizer.eos_token"):
        PromptDataset(rows(1), tokenizer)


def test_prompt_without_tokens(tokenizer):
    from tokenizers.normalizers import Replace

    tokenizer.backend_tokenizer.normalizer = Replace(" ", "")
    with raises_naming(PromptError, "row 0", "prompt", "' '", "tokens"):
        PromptDataset([{"prompt": " "}], tokenizer)[0]


# --- the real tokenizer, where it is at hand -------------------------------------------------------------------------


@pytest.fixture
def minimind_tokenizer():
    if not (SHARED / "tokenizer").is_dir():
        pytest.skip("MiniMind's tokenizer is not at hand")
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(SHARED / "tokenizer")


def test_chat_template_golden_values(minimind_tokenizer, golden_dir):
    for case in json.loads((golden_dir / "chat_template.json").read_text(encoding="utf-8")):
        ratio = 1.0 if case["open_thinking"] else 0.0
        item = PromptDataset([{"prompt": case["messages"]}], minimind_tokenizer, thinking_ratio=ratio)[0]
        assert item["prompt_ids"] == case["ids"]
        assert text_of(minimind_tokenizer, item) == case["text"]


def test_chat_template_values_copied_from_there(minimind_tokenizer):
    data = [
        {
            "conversations": [
                {"role": "user", "content": "请解释什么是机器学习。"},
                {"role": "assistant", "content": "空"},
            ]
        }
    ]
    user = [1, 832, 311, 234, 960, 2093, 1403, 357, 2683, 302, 2, 234]
    on = PromptDataset(data, minimind_tokenizer, thinking_ratio=1.0)[0]["prompt_ids"]
    off = PromptDataset(data, minimind_tokenizer, thinking_ratio=0.0)[0]["prompt_ids"]
    assert on == [*user, 1, 1388, 570, 811, 234, 25, 234]
    assert off == [*user, 1, 1388, 570, 811, 234, 25, 234, 234, 26, 234, 234]


def test_real_prompts(minimind_tokenizer):
    source = SHARED / "data" / "rlaif_zh_1000.jsonl"
    if not source.is_file():
        pytest.skip("the RLAIF sample is not at hand")
    dataset = PromptDataset(load_prompts(str(source)), minimind_tokenizer, max_prompt_length=40)
    lengths = [len(dataset[i]["prompt_ids"]) for i in range(len(dataset))]
    assert len(lengths) == 1000 and max(lengths) == 40 and dataset.num_truncated > 0


def test_fields_that_the_template_leaves_out_are_said_once(tokenizer, caplog):
    call = {"function": {"name": "f", "arguments": {"a": 1}}}
    history = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "reasoning_content": "c"}]
    called = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    given = [*rows(2), {"prompt": [*history, *chat("d")]}, {"prompt": [*called, *chat("d")], "tools": [call]}] * 2
    with caplog.at_level("WARNING", "minimind_hf"):
        PromptDataset(given, tokenizer)
    assert [record.getMessage().split(", so")[0] for record in caplog.records] == [
        "row 2: the chat template leaves out the field 'reasoning_content' of messages of role 'assistant'",
        "row 3: the chat template leaves out the tools of a prompt",
        "row 3: the chat template leaves out the field 'tool_calls' of messages of role 'assistant'",
    ]
    caplog.clear()
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "{{ m.content }}", "{{ m.reasoning_content }}{{ m.tool_calls }}{{ m.content }}{{ tools }}"
    )
    with caplog.at_level("WARNING", "minimind_hf"):
        PromptDataset(given, tokenizer)
    assert not caplog.records
