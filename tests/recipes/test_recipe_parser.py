# SPDX-License-Identifier: Apache-2.0
"""The command line of the recipes: what `--help` shows, and how a flag that does not exist is answered."""

import re
from dataclasses import fields

import agent
import before_rl
import common
import distill
import dpo
import grpo
import ppo
import pytest
import reward
import sft
from flag_groups import GROUPS
from naming import assert_names, raises_naming
from recipe_parser import RecipeParser
from transformers import TrainingArguments
from trl import DPOConfig, ModelConfig, RewardConfig, SFTConfig

from minimind_hf import DistillConfig, GRPOConfig, PPOConfig
from minimind_hf.trainer.settings.trl_fields import fields_without_effect, unsupported_fields

CLASSES = {
    grpo: (common.ScriptArguments, GRPOConfig, ModelConfig),
    ppo: (common.ScriptArguments, PPOConfig, ModelConfig),
    distill: (common.ScriptArguments, DistillConfig, ModelConfig),
    agent: (agent.AgentArguments, GRPOConfig, ModelConfig),
    sft: (sft.SFTArguments, SFTConfig, ModelConfig),
    dpo: (before_rl.DataArguments, DPOConfig, ModelConfig),
    reward: (reward.RewardArguments, RewardConfig, ModelConfig),
}
RL = (grpo, ppo, distill, agent)


@pytest.fixture(params=CLASSES, ids=lambda recipe: recipe.__name__)
def recipe(request):
    return request.param


@pytest.fixture
def parser(recipe) -> RecipeParser:
    return RecipeParser(recipe.__name__, CLASSES[recipe], recipe.__doc__)


def shown(text: str) -> list[str]:
    return re.findall(r"^  --(\S+)", text, re.MULTILINE)


def test_help_begins_with_the_docstring_and_its_examples(recipe, parser):
    usage, *rest = parser.format_help().split("\n\n")
    assert usage.startswith("usage: ") and usage.count("\n") == 0
    assert "\n\n".join(rest).startswith(recipe.__doc__.strip())
    assert f"python recipes/{recipe.__name__}.py" in recipe.__doc__


def test_every_flag_stands_once_and_none_that_is_refused(recipe, parser):
    usual, every = shown(parser.format_help()), shown(parser.format_help(everything=True))
    assert len(set(every)) == len(every) and set(usual) < set(every)
    refused = {name for kind in CLASSES[recipe] for name in (*unsupported_fields(kind), *fields_without_effect(kind))}
    known = {each.name for kind in CLASSES[recipe] for each in fields(kind) if each.init}
    assert set(every) - {"help-all", "config"} == known - refused


def test_the_usual_flags_are_those_of_the_groups(recipe, parser):
    named = {name for names in GROUPS.values() for name in names.split()}
    assert set(shown(parser.format_help())) - {"help-all", "config", "debug"} <= named
    assert len(parser.format_help().splitlines()) < 500


def test_settings_of_ours_are_in_a_group(recipe, parser):
    """So a new setting is seen; the further ones are settings of trl that hardly anybody needs."""
    if recipe in RL:
        inherited = {each.name for kind in (TrainingArguments, ModelConfig) for each in fields(kind)}
        sections = dict(parser._sections(everything=True))
        further = {action.dest for action in sections["further settings"]} - inherited
        assert recipe is agent or further == set(GROUPS["tools and environments"].split()) & further
        assert recipe is not agent or further == set()


def test_every_group_is_used(request):
    used = {title for name, classes in CLASSES.items() for title, _ in RecipeParser("", classes, "")._sections(False)}
    assert used == {"this command", *GROUPS}
    known = {each.name for classes in CLASSES.values() for kind in classes for each in fields(kind)}
    assert {name for names in GROUPS.values() for name in names.split()} <= known


def test_the_help_names_the_kind_of_value_and_the_default():
    text = " ".join(RecipeParser("", CLASSES[grpo], "").format_help().split())
    for flag in ("beta X", "num_generations N", "health [true|false]", "max_turn_length", "eval_steps X"):
        assert (f"--{flag} " in text) == (flag != "max_turn_length"), flag
    assert "(default: 0.1)" in text and "(default: None)" not in text and "(default: False)" not in text


def test_examples_are_as_the_command_is_called(monkeypatch):
    monkeypatch.setattr("sys.argv", ["minimind-hf grpo"])
    text = RecipeParser("", CLASSES[grpo], grpo.__doc__).format_help()
    assert text.startswith("usage: minimind-hf grpo ")
    assert "    minimind-hf grpo --config grpo_minimind.yaml --model_name_or_path FOLDER" in text
    assert "    minimind-hf grpo --accelerate_config zero2 --config ..." in text
    assert "recipes/" not in text


def test_help_ends_the_command(capsys):
    for flag in ("--help", "--help-all"):
        with pytest.raises(SystemExit) as stopped:
            grpo.main([flag])
        assert stopped.value.code == 0
    assert_names(capsys.readouterr().out, "TrainingArguments", "--ddp_timeout")


@pytest.mark.parametrize(
    ("recipe", "flags", "named"),
    [
        (grpo, ["--batch_size", "8"], ["--batch_size", "MiniMind", "--per_device_train_batch_size", "completions"]),
        (grpo, ["--max-gen-len=8"], ["--max-gen-len", "--max_completion_length"]),
        (grpo, ["--epochs", "1", "--hidden_size", "512"], ["--num_train_epochs", "--hidden_size", "config.json"]),
        (grpo, ["--save_dir", "out"], ["--save_dir", "--output_dir"]),
        (agent, ["--max_gen_len", "8"], ["--max_gen_len", "--max_turn_length"]),
        (sft, ["--batch_size", "8", "--max_seq_len", "9"], ["rows", "--max_seq_len", "--max_length"]),
        (ppo, ["--beta", "1"], ["There is no flag --beta", "--help"]),
        (grpo, ["--lerning_rate", "1"], ["--lerning_rate", "--learning_rate"]),
        (grpo, ["--learn", "1"], ["--learn", "--learning_rate"]),
        (grpo, ["stray"], ["argument stray"]),
    ],
)
def test_a_flag_that_does_not_exist_is_answered(recipe, flags, named):
    with raises_naming(ValueError, *named):
        recipe.main([*flags, "--use_cpu"])


def test_a_line_of_the_file_that_does_not_exist_is_answered(tmp_path):
    (tmp_path / "run.yaml").write_text("batch_size: 8\nlerning_rate: 1\nenv: {A_VARIABLE: '1'}\n")
    with raises_naming(ValueError, "batch_size", "--per_device_train_batch_size", "setting lerning_rate"):
        grpo.main(["--config", str(tmp_path / "run.yaml")])


def test_what_was_given(tmp_path):
    (tmp_path / "run.yaml").write_text("beta: 0\nreward_weights: null\nseed: 3\n")
    parser = RecipeParser("", CLASSES[grpo], "")
    flags = ["--config", str(tmp_path / "run.yaml"), "--max-steps=3", "--use_cpu", "--no_health"]
    assert parser.given_names(flags) == {"beta", "seed", "max_steps", "use_cpu", "health"}


def test_a_file_beside_the_recipes_is_found_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = ["--model_name_or_path", "absent", "--use_cpu"]
    for name in ("grpo_minimind.yaml", "recipes/grpo_minimind.yaml"):
        script, _, _ = common.parse_arguments(GRPOConfig, {}, ["--config", name, *model])
        assert script.reward_funcs == ["length", "thinking", "format", "repetition"]
    (tmp_path / "grpo_minimind.yaml").write_text("reward_funcs: [length]\noutput_dir: out\n")
    script, _, _ = common.parse_arguments(GRPOConfig, {}, ["--config=grpo_minimind.yaml", *model])
    assert script.reward_funcs == ["length"]
