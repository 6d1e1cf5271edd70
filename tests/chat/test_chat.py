# SPDX-License-Identifier: Apache-2.0
"""Chat: what the model sees, what is shown, what is kept."""

import io

import pytest
import torch
from naming import assert_names, raises_naming
from rich.console import Console
from tiny import make_policy, make_tokenizer

from minimind_hf.chat import NO_SWITCH, Chat, ChatSettings, converse
from minimind_hf.cli import main

TEMPLATE = (
    "{% for m in messages %}{{ m.role[0] }}:{{ '(' + m.reasoning_content + ')' if m.reasoning_content else '' }}"
    "{{ m.content }};{% endfor %}{{ 'a:<think>' if open_thinking else 'a:' }}"
)


class Scripted:
    """Stands for a model: says given texts, byte by byte."""

    device = torch.device("cpu")

    def __init__(self, tokenizer, *texts: str):
        self.tokenizer, self.texts, self.prompts = tokenizer, list(texts), []

    def generate(self, input_ids, attention_mask, streamer, **kwargs):
        assert attention_mask.shape == input_ids.shape
        self.prompts.append(self.tokenizer.decode(input_ids[0]))
        self.kwargs = kwargs
        streamer.put(input_ids)
        for token in self.tokenizer(self.texts.pop(0) + "<|im_end|>")["input_ids"]:
            streamer.put(torch.tensor([token]))
        streamer.end()


@pytest.fixture
def make_chat():
    def make(*texts: str, system: str | None = None, **settings) -> tuple[Chat, Scripted, io.StringIO]:
        tokenizer = make_tokenizer()
        tokenizer.chat_template = TEMPLATE
        model, shown = Scripted(tokenizer, *texts), io.StringIO()
        console = Console(file=shown, width=200, highlight=False)
        return Chat(model, tokenizer, ChatSettings(**settings), system, console), model, shown

    return make


def test_turns_are_kept_with_their_thoughts(make_chat):
    chat, model, shown = make_chat("hm</think>two", "three", system="S", thinking=True)
    assert chat.say("1+1?") == "two"
    chat.settings = ChatSettings(thinking=False)
    assert chat.say("and 1?") == "three"
    assert model.prompts == ["s:S;u:1+1?;a:<think>", "s:S;u:1+1?;a:(hm)two;u:and 1?;a:"]
    assert shown.getvalue() == "hmtwo\nthree\n"


def test_hidden_thought_is_kept_but_not_shown(make_chat):
    chat, _, shown = make_chat("secret</think>two", thinking=True, show_thinking=False)
    assert chat.say("1+1?") == "two"
    assert shown.getvalue() == "two\n"
    assert chat.messages[-1] == {"role": "assistant", "content": "two", "reasoning_content": "secret"}


def test_tags_that_are_special_tokens_part_thought_and_answer(make_chat):
    chat, _, shown = make_chat("<|im_start|>hm</think>two", "<tool_call>x", thinking=True, show_thinking=False)
    chat.tokenizer.add_special_tokens({"additional_special_tokens": ["<think>", "</think>", "<tool_call>"]})
    assert chat.say("1+1?") == "two"
    chat.settings = ChatSettings(thinking=False)
    assert chat.say("call") == "<tool_call>x"
    assert shown.getvalue() == "two\n<tool_call>x\n"
    assert chat.messages[1] == {"role": "assistant", "content": "two", "reasoning_content": "hm"}


def test_what_looks_like_markup_is_shown_as_it_is(make_chat):
    chat, _, shown = make_chat("[bold]x[/bold] [0]")
    chat.say("?")
    assert shown.getvalue() == "[bold]x[/bold] [0]\n"


def test_commands(make_chat):
    chat, model, shown = make_chat("one", "two", system="S")
    converse(chat, ["first", "", "/clear", "/think", "second", "/nothink", "/jump", "/exit", "never"])
    assert model.prompts == ["s:S;u:first;a:", "s:S;u:second;a:<think>"]
    shown = shown.getvalue()
    assert shown.index("thinking is on\n") < shown.index("two\n") < shown.index("thinking is off\n")
    assert_names(shown, "/jump", "/exit")


def test_a_template_without_a_switch_for_thinking_is_told(make_chat, folder, capsys):
    chat, _, shown = make_chat()
    chat.tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    converse(chat, ["/think"])
    assert shown.getvalue() == f"{NO_SWITCH}\n"
    chat.tokenizer.save_pretrained(folder)
    assert main(["chat", str(folder), "--prompt", "hi", "--max_new_tokens", "2", "--thinking"]) == 0
    assert capsys.readouterr().err == f"--thinking: {NO_SWITCH}\n"


def test_sampling_flags_reach_generate(make_chat):
    chat, model, _ = make_chat("x", temperature=0.5, top_p=0.9, top_k=3, max_new_tokens=7)
    chat.say("?")
    assert model.kwargs["do_sample"] is True and model.kwargs["max_new_tokens"] == 7
    assert (model.kwargs["temperature"], model.kwargs["top_p"], model.kwargs["top_k"]) == (0.5, 0.9, 3)
    greedy = ChatSettings(temperature=0).generate_kwargs()
    assert greedy["do_sample"] is False and "temperature" not in greedy


def test_tokenizer_without_template(make_chat):
    chat, model, _ = make_chat()
    chat.tokenizer.chat_template = None
    with raises_naming(ValueError, "tokenizer.chat_template"):
        Chat(model, chat.tokenizer, ChatSettings())


@pytest.fixture
def folder(tmp_path):
    make_policy().save_pretrained(tmp_path / "model")
    make_tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_command_line_answers_and_repeats_itself(folder, capsys):
    arguments = [
        "chat",
        str(folder),
        "--prompt",
        "hi",
        "--prompt",
        "again",
        "--max_new_tokens",
        "5",
        "--device",
        "cpu",
    ]
    assert main([*arguments, "--seed", "3"]) == 0
    first = capsys.readouterr().out
    assert main([*arguments, "--seed", "3"]) == 0
    assert capsys.readouterr().out == first and first.strip()


def test_command_line_takes_prompts_and_switches_wherever_they_stand(folder, capsys):
    arguments = ["--thinking", str(folder), "--max_new_tokens", "2", "--seed", "3", "--top-k", "1"]
    assert main(["chat", "--prompt", "hi", "--prompt", "again", *arguments]) == 0
    expected = capsys.readouterr().out
    assert main(["chat", *arguments, "--prompt", "hi", "--prompt", "again"]) == 0
    assert capsys.readouterr().out == expected


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--max_new_tokens", "0"], ["max_new_tokens", 0]),
        (["--temperature", "-1"], ["temperature", -1.0]),
        (["--temperature", "nan"], ["temperature", "nan"]),
        (["--top_p", "0"], ["top_p", 0.0]),
        (["--top_p", "7"], ["top_p", 7.0]),
        (["--top_k", "-1"], ["top_k", -1]),
        (["--min_p", "2"], ["min_p", 2.0]),
        (["--repetition_penalty", "0"], ["repetition_penalty", 0.0]),
        (["--device", "cuda:77"], ["'cuda:77'"]),
    ],
)
def test_command_line_refuses(folder, flags, named, capsys):
    assert main(["chat", str(folder), "--prompt", "hi", *flags]) == 1
    assert_names(capsys.readouterr().err, *named)


def say_once(model, tokenizer, text: str = "abc", **settings) -> str:
    shown = Console(file=io.StringIO(), width=200)
    return Chat(model, tokenizer, ChatSettings(max_new_tokens=8, temperature=0, **settings), None, shown).say(text)


def test_chat_decodes_by_its_flags():
    inherited = {
        "num_beams": 2, "no_repeat_ngram_size": 1, "suppress_tokens": list(range(3, 130)), "stop_strings": ["a"],
        "min_new_tokens": 5, "do_sample": True, "temperature": 5.0,
    }  # fmt: skip
    model = make_policy()
    plain = say_once(make_policy(), make_tokenizer())
    model.generation_config.update(**inherited)
    assert say_once(model, make_tokenizer()) == plain
    model.generation_config.update(**inherited)
    chat = Chat(model, make_tokenizer(), ChatSettings())
    assert chat.ignored == {name: inherited[name] for name in inherited if name not in ("do_sample", "temperature")}


@pytest.mark.parametrize("template", ["{{ messages[0].nothing.at.all }}", "{{ 1 + 'a' }}", "{% for %}"])
def test_a_template_that_cannot_render_is_one_line(template):
    tokenizer = make_tokenizer()
    tokenizer.chat_template = template
    with raises_naming(ValueError, "chat template"):
        say_once(make_policy(), tokenizer)


def test_a_token_that_the_model_does_not_embed_is_named():
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(["<more>"])
    with raises_naming(ValueError, "token id 259", 259):
        say_once(make_policy(), tokenizer, "<more>")


def test_weights_that_are_not_finite_end_in_one_line(tmp_path, capsys):
    model = make_policy()
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[0, 0] = float("nan")
    model.save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    assert main(["chat", str(tmp_path), "--prompt", "a"]) == 1
    assert "layers.1.mlp.up_proj.weight holds NaN" in capsys.readouterr().err
