# SPDX-License-Identifier: Apache-2.0
"""Tools in a chat: calls are made once they are allowed, shown with their answers, and read by the model."""

import io
import json

import pytest
import torch
from chat_tokenizers import HOSTILE, chat_tokenizer
from naming import assert_names
from rich.console import Console
from tiny import make_policy, make_tokenizer

from minimind_hf.agent import calculate
from minimind_hf.chat import Chat, ChatSettings, ChatTools, ToolSettings
from minimind_hf.chat.tools import REFUSAL
from minimind_hf.cli import main

TEMPLATES = ("qwen3", "qwen2_5", "minimind")


class Scripted:
    """Stands for a model: says given texts, an EOS after each but those that end in `...`."""

    device = torch.device("cpu")

    def __init__(self, tokenizer, end: int, *texts: str):
        self.tokenizer, self.end, self.texts, self.prompts = tokenizer, end, list(texts), []

    def generate(self, input_ids, attention_mask, streamer, **kwargs):
        self.prompts.append(input_ids[0].tolist())
        streamer.put(input_ids)
        text = self.texts.pop(0)
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        for token in ids if text.endswith("...") else [*ids, self.end]:
            streamer.put(torch.tensor([token]))
        streamer.end()


def call(name: str = "calculate", **arguments) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def search(query: str) -> str:
    """Searches.

    Args:
        query: For what.
    """
    return HOSTILE[3]


def make_chat(*texts: str, template="qwen3", allow=lambda call: True, chat=None, **bounds):
    tokenizer, ends = chat_tokenizer(template)
    tools = ChatTools([calculate, search], tokenizer, tuple(ends), ToolSettings(**bounds), allow)
    shown = io.StringIO()
    model = Scripted(tokenizer, ends[0], *texts)
    console = Console(file=shown, width=200, highlight=False)
    return Chat(model, tokenizer, ChatSettings(**chat or {}), None, console, tools), model, shown


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_call_is_made_shown_and_read(template):
    turn = "Let me see. " + call(expression="6*7")
    chat, model, shown = make_chat(turn, "It is 42.", template=template)
    assert chat.say("6 times 7?") == "It is 42."
    first, second = model.prompts
    assert '"name": "calculate"' in chat.tokenizer.decode(first)  # the schema
    drawn = [*chat.tokenizer(turn, add_special_tokens=False)["input_ids"], model.end]
    assert second[: len(first) + len(drawn)] == first + drawn  # what was drawn is appended, not encoded again
    assert "<tool_response>\n42\n</tool_response>" in chat.tokenizer.decode(second[len(first) + len(drawn) :])
    lines = shown.getvalue().splitlines()
    assert lines[-3:] == ['→ calculate(expression="6*7")', "← 42", "It is 42."]
    assert lines[0] == "Let me see. <tool_call>"  # streamed as it was written
    assert [message["role"] for message in chat.messages] == ["user", "assistant", "tool", "assistant"]


def test_a_call_that_is_not_allowed_is_an_observation():
    asked = []

    def allow(text: str) -> bool:
        asked.append(text)
        return "2" in text

    turn = call(expression="1+1") + call(expression="2+2")
    chat, model, shown = make_chat(turn, "Sorry.", allow=allow)
    chat.say("?")
    assert asked == ['calculate(expression="1+1")', 'calculate(expression="2+2")']
    assert [message["content"] for message in chat.messages[2:4]] == [f"Error: {REFUSAL}", "4"]
    assert f"Error: {REFUSAL}" in chat.tokenizer.decode(model.prompts[1])
    assert f"← Error: {REFUSAL}\n" in shown.getvalue() and "← 2\n" not in shown.getvalue()


@pytest.mark.parametrize(
    ("turn", "shown_call", "piece"),
    [
        (call("nothing", a=1), "→ nothing(a=1)", "'nothing'"),
        (call(expression=3), "→ calculate(expression=3)", "'expression'"),
        ("<tool_call>{nonsense}</tool_call>", "", "JSON"),
        (call(expression="1/0"), '→ calculate(expression="1/0")', "zero"),
    ],
)
def test_what_goes_wrong_is_shown_and_read(turn, shown_call, piece):
    allowed = []
    chat, model, shown = make_chat(turn, "I see.", allow=lambda text: allowed.append(text) or True)
    assert chat.say("?") == "I see."
    (line,) = [line for line in shown.getvalue().splitlines() if line.startswith("←")]
    assert "Error: " in line and piece in line and shown_call in shown.getvalue()
    assert line.removeprefix("← ") in chat.tokenizer.decode(model.prompts[1])
    assert len(allowed) == (piece == "zero")  # nobody is asked about what cannot be run


@pytest.mark.parametrize("template", TEMPLATES)
def test_nothing_that_a_tool_said_leaves_its_message_in_later_answers(template):
    """The conversation is rendered again for the next question, answers of tools included."""
    turns = ("Hm. " + call("search", query="x"), "Found.", "Yes.")
    chat, model, _ = make_chat(*turns, template=template)
    chat.say("What is there?")
    chat.say("Really?")
    start = chat.tokenizer.convert_tokens_to_ids("<|im_start|>")
    text = chat.tokenizer.decode(model.prompts[2])
    assert "Obey." in text and text.count("<|im_start|>") == model.prompts[2].count(start) + 2  # its two are text
    assert text.index("Found.") < text.index("Really?")


def test_an_answer_stops_at_max_turns_and_the_chat_goes_on():
    chat, model, shown = make_chat(call(expression="1"), call(expression="2"), "Done.", max_turns=2)
    chat.say("?")
    assert "← 1\n" in shown.getvalue() and "← 2\n" not in shown.getvalue()
    assert_names(shown.getvalue(), 2, "--max_turns")
    assert chat.say("And?") == "Done."


def test_a_call_cut_by_length_is_not_made():
    chat, model, shown = make_chat(call(expression="1") + "...")
    chat.say("?")
    assert "→" not in shown.getvalue() and len(model.prompts) == 1


def test_thoughts_are_shown_or_hidden_in_every_turn():
    turns = ("<think>first</think>" + call(expression="1"), "<think>second</think>Done.")
    chat, _, shown = make_chat(*turns)
    assert chat.say("?") == "Done." and "first" in shown.getvalue() and "second" in shown.getvalue()
    chat, _, shown = make_chat(*turns, chat={"show_thinking": False})
    assert chat.say("?") == "Done." and "first" not in shown.getvalue() and "second" not in shown.getvalue()
    assert [message.get("reasoning_content") for message in chat.messages[1:]] == ["first", None, "second"]


def test_a_long_answer_is_cut_with_a_mark():
    chat, _, shown = make_chat(call(expression="10**300"), "Long.", max_observation_length=8)
    chat.say("?")
    assert "more characters]" in shown.getvalue()


@pytest.fixture
def folder(tmp_path):
    tokenizer, _ = chat_tokenizer("qwen3")
    make_policy(vocab_size=len(tokenizer)).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def chat_in_a_terminal(monkeypatch, capsys, typed: str, *flags: str) -> str:
    tokenizer, ends = chat_tokenizer("qwen3")
    model = Scripted(tokenizer, ends[0], call(expression="6*7"), "Well.")
    monkeypatch.setattr("minimind_hf.inference.load_for_inference", lambda path, **_: (model, tokenizer))
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    arguments = ["chat", "model", "--prompt", "hi", "--tools", "minimind_hf.agent:calculate", *flags]
    assert main(arguments) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("typed", "flags", "answer"),
    [
        ("y\n", (), "← 42"),
        ("n\n", (), f"← Error: {REFUSAL}"),
        ("\n", (), f"← Error: {REFUSAL}"),
        ("", (), f"← Error: {REFUSAL}"),  # the end of input
        ("", ("--yes",), "← 42"),
    ],
)
def test_command_asks_unless_it_is_told_not_to(monkeypatch, capsys, typed, flags, answer):
    shown = chat_in_a_terminal(monkeypatch, capsys, typed, *flags)
    assert answer in shown and "Well." in shown
    assert ("[y/N]" in shown) == (not flags)


def test_command_with_a_model_that_draws(folder, capsys):
    arguments = ["chat", str(folder), "--prompt", "hi", "--tools", "minimind_hf.agent:calculate", "--yes"]
    assert main([*arguments, "--max_new_tokens", "5", "--device", "cpu", "--seed", "1"]) == 0
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--yes"], ["--yes", "--tools"]),
        (["--max_turns", "3"], ["max_turns", 3, "--tools"]),
        (["--tools", "calculate"], ["--tools", "'calculate'"]),
        (["--tools", "minimind_hf.agent:nothing"], ["'nothing'"]),
        (["--tools", "minimind_hf.agent:calculate", "--max_turns", "0"], ["max_turns", 0]),
    ],
)
def test_command_refuses_calls_that_cannot_be(folder, flags, named, capsys):
    assert main(["chat", str(folder), "--prompt", "hi", *flags]) == 1
    assert_names(capsys.readouterr().err, *named)


def test_a_template_without_tools_is_refused(folder, capsys):
    make_tokenizer().save_pretrained(folder)
    assert main(["chat", str(folder), "--prompt", "hi", "--tools", "minimind_hf.agent:calculate"]) == 1
    assert_names(capsys.readouterr().err, folder, "tools")
