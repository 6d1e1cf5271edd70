# SPDX-License-Identifier: Apache-2.0
"""Thought and answer are told apart however the text arrives."""

import pytest

from minimind_hf.cli import main
from minimind_hf.inference import ThoughtSplitter, load_for_inference, opens_thought


def split(parts: list[str], inside: bool) -> tuple[str, str]:
    splitter = ThoughtSplitter(inside)
    pieces = [piece for part in parts for piece in splitter.feed(part)] + list(splitter.end())
    return tuple("".join(piece.text for piece in pieces if piece.is_thought == wanted) for wanted in (True, False))


WHOLE = "one < two</think>2 <3"


@pytest.mark.parametrize("width", [1, 2, 3, 5, 8, 100])
def test_split_into_parts_of_any_width(width):
    parts = [WHOLE[i : i + width] for i in range(0, len(WHOLE), width)]
    assert split(parts, inside=True) == ("one < two", "2 <3")


def test_thought_that_the_answer_opens_itself():
    assert split(["<thi", "nk>hm</think>yes<th"], inside=False) == ("hm", "yes<th")


def test_what_is_certain_is_not_held_back():
    splitter = ThoughtSplitter(inside=False)
    assert [piece.text for piece in splitter.feed("hello <")] == ["hello "]
    assert [piece.text for piece in splitter.feed("b>")] == ["<b>"]


@pytest.mark.parametrize(
    ("prompt", "opened"),
    [("a<think>\n", True), ("a<think>\n\n</think>\n\n", False), ("a", False), ("<think>x</think>b<think>", True)],
)
def test_opens_thought(prompt, opened):
    assert opens_thought(prompt) is opened


def test_pth_is_refused():
    with pytest.raises(ValueError, match="Convert it first"):
        load_for_inference("full_sft_512.pth")


@pytest.mark.parametrize("name", ["/no/such", "./such", "~/no_such", "no/such/folder"])
def test_a_path_without_a_folder_is_named(name, capsys):
    for command in (["chat", name], ["estimate", name]):
        assert main(command) == 1
        assert f"{name!r}, does not exist" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ('{"base_model_name_or_path": "/moved/away"}', "'/moved/away', does not exist"),
        ('{"base_model_name_or_path": null}', "does not say of which model"),
        ("[]", "is no JSON object"),
        ("{", "is no JSON object"),
    ],
)
def test_the_base_of_adapters_is_looked_for_first(tmp_path, config, message, capsys):
    (tmp_path / "adapter_config.json").write_text(config)
    prompts = ["--dataset_name", "none.jsonl", "--exact_match"]
    for command in (["chat", str(tmp_path)], ["estimate", str(tmp_path)], ["eval", str(tmp_path), *prompts]):
        assert main(command) == 1
        assert message in capsys.readouterr().err
