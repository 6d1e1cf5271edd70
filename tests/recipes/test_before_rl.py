# SPDX-License-Identifier: Apache-2.0
"""From an untrained model to a reward model and a policy trained on preferences: the recipes in short."""

import json
import re
import shutil
from pathlib import Path

import dpo
import new_model
import pytest
import reward
import sft
import torch
from before_rl import Recipe
from journey import small_world
from naming import raises_naming
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from minimind_hf import MiniMindForSequenceClassification
from minimind_hf.data import PromptError
from minimind_hf.rewards import RewardModel, RewardModelError

SHORT = [
    "--max_steps", "3", "--per_device_train_batch_size", "4", "--learning_rate", "1e-2", "--use_cpu",
    "--bf16", "false", "--activation_checkpointing", "false", "--report_to", "none", "--save_strategy", "no",
    "--disable_tqdm", "true",
]  # fmt: skip
SMALL = ["hidden_size=32", "num_hidden_layers=2", "num_attention_heads=4", "num_key_value_heads=2"]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Some data of the small world, since encoding all takes seconds, and an untrained model with its tokenizer."""
    folder = tmp_path_factory.mktemp("world")
    small_world.write(folder / "data")
    for path in (folder / "data").iterdir():
        rows = path.read_text().splitlines(keepends=True)
        path.write_text("".join(rows[: 60 if "held_out" in path.name else 300]))
    corpus = [str(folder / "data" / f"{name}.jsonl") for name in ("pretrain", "sft")]
    new_model.main([str(folder / "new"), "--corpus", *corpus, "--vocab_size", "400", "--config", *SMALL])
    return folder


def train(recipe, world, start: str, data: str, out, *more: str) -> None:
    places = ["--model_name_or_path", str(world / start), "--dataset_name", str(world / "data" / f"{data}.jsonl")]
    recipe.main([*SHORT, *places, "--output_dir", str(out), *more])


def last_line(capsys) -> dict:
    return json.loads(capsys.readouterr().out.strip().splitlines()[-1])


def embeddings(folder):
    return AutoModelForCausalLM.from_pretrained(folder).get_input_embeddings().weight


def test_untrained_model_and_its_tokenizer(world):
    tokenizer = AutoTokenizer.from_pretrained(world / "new")
    assert len(tokenizer) <= 400
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)
    ids = tokenizer("<think>星期一 42<|im_end|>")["input_ids"]
    assert tokenizer.decode(ids) == "<think>星期一 42<|im_end|>"
    assert ids[0] == tokenizer.convert_tokens_to_ids("<think>") and ids[-1] == 2
    assert embeddings(world / "new").shape == (len(tokenizer), 32)


@pytest.mark.parametrize("data", ["pretrain", "sft"])
def test_supervised(world, tmp_path, capsys, data):
    train(sft, world, "new", data, tmp_path / "out", "--system_prompt_ratio", "0.5")
    result = last_line(capsys)
    assert result["recipe"] == "sft" and result["steps"] == 3
    assert not torch.equal(embeddings(tmp_path / "out"), embeddings(world / "new"))
    assert len(AutoTokenizer.from_pretrained(tmp_path / "out")) == embeddings(tmp_path / "out").shape[0]


@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "data"), [(sft, "sft"), (dpo, "preferences")])
def test_a_generation_config_that_cannot_be_saved_loses_no_training(world, tmp_path, recipe, data):
    start = Path(shutil.copytree(world / "new", tmp_path / "start"))
    (start / "generation_config.json").write_text('{"temperature": 0.6, "top_k": 20}')  # no do_sample, no EOS
    train(recipe, world, start, data, tmp_path / "out", "--max_steps", "1")
    saved = GenerationConfig.from_pretrained(tmp_path / "out")
    assert saved.eos_token_id in (2, [2]) and saved.temperature is None
    assert (tmp_path / "out" / "model.safetensors").is_file()


def test_checkpointing_may_be_given_by_either_name(world, tmp_path, recwarn):
    places = ["--model_name_or_path", str(world / "new"), "--dataset_name", "x.jsonl", "--output_dir", str(tmp_path)]
    flags = [*places, "--bf16", "false"]
    expected = {(): True, ("--gradient_checkpointing", "false"): False, ("--activation_checkpointing", "false"): False}
    for given, checkpoints in expected.items():
        recwarn.clear()
        assert Recipe("sft", sft.SFTConfig, [*flags, *given]).args.activation_checkpointing is checkpoints
        warned = any("gradient_checkpointing" in str(warning.message) for warning in recwarn)
        assert warned == ("--gradient_checkpointing" in given)


def test_supervised_mixture_of_experts(world, tmp_path, capsys):
    new_model.main([str(tmp_path / "moe"), "--tokenizer", str(world / "new"), "--config", *SMALL, "use_moe=true"])
    train(sft, world, tmp_path / "moe", "sft", tmp_path / "out")
    assert last_line(capsys)["steps"] == 3
    config = AutoModelForCausalLM.from_pretrained(tmp_path / "out").config
    assert config.router_aux_loss_coef == 5e-4
    assert config.output_router_logits is None  # as before: trl's switch for training is not kept


def test_supervised_with_adapters(world, tmp_path, capsys):
    train(sft, world, "new", "sft", tmp_path / "out", "--use_peft", "--lora_target_modules", "all-linear")
    assert (tmp_path / "out" / "adapter_model.safetensors").is_file()
    with raises_naming(RewardModelError, tmp_path / "out", "['score.weight']"):
        RewardModel.from_pretrained(str(tmp_path / "out"))


def test_preferences_train_the_policy(world, tmp_path, capsys):
    held_out = ["--eval_dataset_name", str(world / "data" / "preferences_held_out.jsonl"), "--eval_strategy", "steps"]
    train(dpo, world, "new", "preferences", tmp_path / "out", *held_out, "--eval_steps", "3")
    result = last_line(capsys)
    assert result["recipe"] == "dpo" and 0 <= result["eval_rewards/accuracies"] <= 1
    assert not torch.equal(embeddings(tmp_path / "out"), embeddings(world / "new"))


@pytest.mark.parametrize("adapters", [[], ["--use_peft", "--lora_target_modules", "all-linear"]])
def test_preferences_train_a_reward_model_that_the_rewards_can_load(world, tmp_path, capsys, adapters):
    train(reward, world, "new", "preferences", tmp_path / "out", "--max_steps", "25", *adapters)
    assert last_line(capsys)["recipe"] == "reward"
    assert (tmp_path / "out" / "adapter_config.json").is_file() == bool(adapters)
    judge = RewardModel.from_pretrained(str(tmp_path / "out"))
    assert isinstance(judge.model, MiniMindForSequenceClassification) and judge.name == "out"
    question = [{"role": "user", "content": "12 + 30 = ?"}]
    curt, courteous = judge(
        [question] * 2,
        [[{"role": "assistant", "content": text}] for text in ("42", "12 plus 30 is 42. Glad to help!")],
    )
    assert courteous > curt


def test_data_of_the_wrong_kind_is_named_before_training(world, tmp_path):
    with raises_naming(PromptError, world / "data" / "pretrain.jsonl", "line 1", "chosen", "missing"):
        train(dpo, world, "new", "pretrain", tmp_path / "out")
    for asked in (["--eval_strategy", "steps"], ["--eval_on_start", "true"]):
        with raises_naming(PromptError, "'test'", asked[0], "--eval_dataset_name", "--dataset_test_split"):
            train(sft, world, "new", "sft", tmp_path / "out", *asked)
    with raises_naming(ValueError, "--system_prompt_ratio", 7.0):
        train(sft, world, "new", "sft", tmp_path / "out", "--system_prompt_ratio", "7")


@pytest.mark.parametrize(
    ("recipe", "name", "content", "named"),
    [
        (sft, "header.csv", "text\n", ["header.csv", "header", "['text']"]),
        (dpo, "blank.jsonl", "\n \n", ["blank.jsonl", "empty"]),
        (reward, "empty.parquet", "", ["empty.parquet", "is empty"]),
        (sft, "gap.csv", "text,source\na,b\n,c\n", ["row 1", "conversations", "['text', 'source']"]),
    ],
)
def test_files_without_rows_are_named_before_training(world, tmp_path, recipe, name, content, named):
    (tmp_path / name).write_text(content)
    places = ["--model_name_or_path", str(world / "new"), "--output_dir", str(tmp_path / "out")]
    with raises_naming(PromptError, *named):
        recipe.main([*SHORT, *places, "--dataset_name", str(tmp_path / name)])


@pytest.mark.parametrize(("recipe", "data"), [(sft, "sft"), (dpo, "preferences"), (reward, "preferences")])
def test_rows_that_are_all_cut_away(world, tmp_path, recipe, data):
    with raises_naming(ValueError, 8, "train_dataset", "max_length=4", "--max_length"):
        train(recipe, world, "new", data, tmp_path / "out", "--max_length", "4", "--dataset_train_split", "train[:8]")


@pytest.mark.parametrize("recipe", [sft, dpo, reward])
@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["--model_name_or_path", "full_sft_512.pth"], ["minimind-hf convert full_sft_512.pth"]),
        ([], ["--model_name_or_path FOLDER"]),
        (["--model_name_or_path", "./none"], ["model", "'./none'", "exist"]),
        (
            ["--model_name_or_path", "m", "--resume_from_checkpoint", "/no/such"],
            ["--resume_from_checkpoint /no/such", "folder"],
        ),
        (
            ["--model_name_or_path", "m", "--resume_from_checkpoint", "true"],
            ["--resume_from_checkpoint true", "out", "--output_dir"],
        ),
        (["--config", "none.yaml"], ["--config", "'none.yaml'"]),
    ],
)
def test_refused_before_anything_is_loaded(recipe, given, named):
    with raises_naming(ValueError, *named):
        recipe.main([*SHORT, "--dataset_name", "x.jsonl", "--output_dir", "out", *given])


@pytest.mark.parametrize(
    ("place", "flags", "named"),
    [
        ("bad.jsonl", [], ["bad.jsonl", "folder"]),
        (".", [], [".", "--overwrite"]),
        ("new", ["--config", "foo=1"], ["foo", "vocab_size"]),
        ("new", ["--config", "vocab_size=5"], ["vocab_size", "tokenizer"]),
        ("new", [], ["bad.jsonl", "line 2", "JSON"]),
        ("new", ["--corpus", "empty.jsonl"], ["empty.jsonl", "is empty"]),
        ("new", ["--corpus", "none.jsonl"], ["none.jsonl", "no such file"]),
        ("new", ["--corpus", "blank.jsonl"], ["blank.jsonl", "text"]),
    ],
)
def test_new_model_refuses(place, flags, named, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n{\n')
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "blank.jsonl").write_text('\n{"text": " "}\n\n')
    with raises_naming(ValueError, *named):
        new_model.main([place, "--corpus", "bad.jsonl", *flags])
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("recipe", "data"), [(sft, "sft"), (dpo, "preferences")])
def test_a_model_whose_turns_do_not_end_with_its_eos_stops_at_both(world, tmp_path, capsys, recipe, data):
    start = Path(shutil.copytree(world / "new", tmp_path / "start"))
    tokenizer = AutoTokenizer.from_pretrained(start)
    tokenizer.eos_token = tokenizer.pad_token  # as of a base model; its turns end with <|im_end|>
    tokenizer.save_pretrained(start)
    (start / "generation_config.json").write_text('{"eos_token_id": 0}')
    train(recipe, world, start, data, tmp_path / "out", "--max_steps", "1")
    assert GenerationConfig.from_pretrained(tmp_path / "out").eos_token_id == [0, 2]
    assert "ends turns with '<|im_end|>'" in capsys.readouterr().out


def test_the_eos_of_the_flag_ends_turns(world, tmp_path, capsys):
    start = Path(shutil.copytree(world / "new", tmp_path / "start"))
    tokenizer = AutoTokenizer.from_pretrained(start)
    tokenizer.eos_token = tokenizer.pad_token
    tokenizer.save_pretrained(start)
    train(sft, world, start, "sft", tmp_path / "out", "--max_steps", "1", "--eos_token", "<|im_end|>")
    assert AutoTokenizer.from_pretrained(tmp_path / "out").eos_token == "<|im_end|>"
    assert "ends turns with" not in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "data"), [(sft, "sft"), (dpo, "preferences")])
def test_rows_that_are_cut_are_counted_and_can_be_left_out(world, tmp_path, capsys, recipe, data):
    flags = ["--max_length", "60", "--max_steps", "1"]
    train(recipe, world, "new", data, tmp_path / "cut", *flags)
    said = re.search(r"(\d+) of the (\d+) rows of .* longer than 60 tokens and are cut", capsys.readouterr().out)
    assert said and 0 < int(said[1]) < int(said[2])
    train(recipe, world, "new", data, tmp_path / "dropped", *flags, "--drop_longer", "true")
    assert f"{said[1]} of the {said[2]} rows" in (out := capsys.readouterr().out) and "are left out" in out
    with raises_naming(ValueError, "max_length=3", "drop_longer"):
        train(recipe, world, "new", data, tmp_path / "none", "--max_length", "3", "--drop_longer", "true")
