# SPDX-License-Identifier: Apache-2.0
"""Thought and answer are told apart however the text arrives."""

import time
from pathlib import Path

import pytest
from naming import assert_names, raises_naming

from minimind_hf.cli import main
from minimind_hf.inference import ThoughtSplitter, load_for_inference, opens_thought
from minimind_hf.paths import check_loadable

# At the port where nobody listens
HUB_URL = "http://127.0.0.1:9/{repo_id}/resolve/{revision}/{filename}"


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
    with raises_naming(ValueError, "minimind-hf convert full_sft_512.pth"):
        load_for_inference("full_sft_512.pth")


@pytest.mark.parametrize("name", ["/no/such", "./such", "~/no_such", "no/such/folder"])
def test_a_path_without_a_folder_is_named(name, capsys):
    for command in (["chat", name], ["estimate", name]):
        assert main(command) == 1
        assert_names(capsys.readouterr().err, repr(name), "exist")


@pytest.mark.parametrize("offline", [True, False])
def test_a_name_that_no_hub_can_be_asked_for_is_named_at_once(offline, monkeypatch, capsys):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", HUB_URL)
    start = time.perf_counter()
    for command in (["chat", "nothere"], ["estimate", "nothere"]):
        assert main(command) == 1
        error = capsys.readouterr().err
        assert_names(error, "'nothere'", Path.cwd(), "Hub")
    assert time.perf_counter() - start < 10


def test_a_name_that_was_downloaded_before_is_not_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr("minimind_hf.paths.get_hf_file_metadata", lambda url: pytest.fail("the hub was asked"))
    (tmp_path / "models--owner--name" / "snapshots" / "0123").mkdir(parents=True)
    check_loadable("owner/name", cache_dir=tmp_path)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ('{"base_model_name_or_path": "/moved/away"}', ["'/moved/away'", "exist"]),
        ('{"base_model_name_or_path": "nothere"}', ["'nothere'", "Hub"]),
        ('{"base_model_name_or_path": null}', ["base_model_name_or_path"]),
        ("[]", ["adapter_config.json", "JSON"]),
        ("{", ["adapter_config.json", "JSON"]),
    ],
)
def test_the_base_of_adapters_is_looked_for_first(tmp_path, config, named, monkeypatch, capsys):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (tmp_path / "adapter_config.json").write_text(config)
    prompts = ["--dataset_name", "none.jsonl", "--exact_match"]
    for command in (["chat", str(tmp_path)], ["estimate", str(tmp_path)], ["eval", str(tmp_path), *prompts]):
        assert main(command) == 1
        assert_names(capsys.readouterr().err, tmp_path, *named)
