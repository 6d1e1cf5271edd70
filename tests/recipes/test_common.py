# SPDX-License-Identifier: Apache-2.0
"""What the recipes understand of their flags, and what they refuse before anything is loaded."""

import common
import pytest
from common import ScriptArguments, parse_arguments, prepare_task
from naming import raises_naming
from trl import ModelConfig

from minimind_hf import GRPOConfig
from minimind_hf.trainer.settings.given import given_settings

DEFAULTS = {"output_dir": "outputs/embedded", "max_steps": 7, "num_generations": 4, "report_to": "none"}


def parse(*flags: str):
    return parse_arguments(GRPOConfig, DEFAULTS, ["--use_cpu", *flags])


def test_embedded_defaults_hold_without_model_and_data():
    _, args, _ = parse()
    assert (args.output_dir, args.max_steps, args.num_generations) == ("outputs/embedded", 7, 4)


def test_flags_win_over_embedded_defaults():
    _, args, _ = parse("--max_steps", "3", "--seed", "1")
    assert (args.max_steps, args.seed, args.num_generations) == (3, 1, 4)


def test_yaml_wins_over_embedded_defaults_and_flags_over_yaml(tmp_path):
    config = tmp_path / "settings.yaml"
    config.write_text("max_steps: 5\nseed: 9\n")
    _, args, _ = parse("--config", str(config), "--seed", "2")
    assert (args.max_steps, args.seed, args.num_generations) == (5, 2, 4)


@pytest.mark.parametrize(
    "flags, weights",
    [
        ([], [0.25, 0.5]),
        (["--reward_weights", "1", "2"], [1, 2]),
        (["--reward_funcs", "length"], None),
        (["--reward_model_name_or_path", "somewhere"], None),
        (["--reward_funcs", "length", "--reward_weights", "3"], [3]),
        (["--config", "{yaml}"], None),
    ],
)
def test_the_weights_of_the_embedded_task_are_for_its_own_rewards(tmp_path, flags, weights):
    config = tmp_path / "settings.yaml"
    config.write_text("reward_funcs: [length, format]\n")
    flags = [flag.format(yaml=config) for flag in flags]
    _, args, _ = parse_arguments(GRPOConfig, DEFAULTS | {"reward_weights": [0.25, 0.5]}, ["--use_cpu", *flags])
    assert (args.max_steps, args.reward_weights) == (7, weights)


@pytest.mark.parametrize("between", [["--sglang_base_url"], []], ids=["flag repeated", "one flag"])
def test_several_servers(between):
    servers = ["http://a:30000", "http://b:30000"]
    _, args, _ = parse("--rollout_engine", "sglang", "--sglang_base_url", servers[0], *between, servers[1])
    assert args.sglang_base_url == servers


@pytest.mark.parametrize("written", ["http://y:1", "[http://y:1]", "[http://y:1, http://z:2]", ""])
def test_the_flag_replaces_the_servers_of_the_yaml(tmp_path, written):
    config = tmp_path / "settings.yaml"
    config.write_text("rollout_engine: sglang\n" + (f"sglang_base_url: {written}\n" if written else ""))
    flags = ["--sglang_base_url", "http://a:3", "--sglang_base_url", "http://b:4"]
    for number in (1, 2):
        _, args, _ = parse("--config", str(config), *flags[: 2 * number])
        assert args.sglang_base_url == ["http://a:3", "http://b:4"][:number]
    if written:
        _, args, _ = parse("--config", str(config))
        assert args.sglang_base_url == written.strip("[]").split(", ")


@pytest.mark.parametrize("given", ["--model_name_or_path", "--dataset_name"])
def test_a_model_or_data_of_ones_own_leaves_the_defaults_of_the_config(given):
    _, args, _ = parse("--output_dir", "out", given, "somewhere")
    assert (args.max_steps, args.num_generations) == (-1, 6)


def test_the_file_of_settings_in_either_spelling(tmp_path):
    config = tmp_path / "settings.yaml"
    config.write_text("max_steps: 5\noutput_dir: out\nmodel_name_or_path: somewhere\n")
    for flags in (["--config", str(config)], [f"--config={config}"]):
        _, args, model = parse(*flags)
        assert (args.max_steps, args.output_dir, model.model_name_or_path) == (5, "out", "somewhere")


@pytest.mark.parametrize(
    ("flags", "content", "named"),
    [
        (["--config"], "", ["--config", "''"]),
        (["--config=none.yaml"], "", ["--config", "'none.yaml'"]),
        (["--config=s.yaml", "--config", "s.yaml"], "seed: 1", ["--config", 2]),
        (["--config=s.yaml"], "", ["s.yaml", "empty"]),
        (["--config=s.yaml"], "- 1", ["s.yaml", "list"]),
        (["--config=s.yaml"], "a: [", ["s.yaml", "yaml", "line 1"]),
    ],
)
def test_files_of_settings_that_are_none(tmp_path, monkeypatch, flags, content, named):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(content)
    with raises_naming(ValueError, *named):
        parse(*flags)


def test_going_on_from_the_newest_checkpoint_by_flag(tmp_path):
    flags = ["--output_dir", str(tmp_path), "--resume_from_checkpoint"]
    with raises_naming(ValueError, "--resume_from_checkpoint true", tmp_path, "--output_dir"):
        parse(*flags, "True")
    (tmp_path / "checkpoint-3").mkdir()
    for text, value in {"true": True, "False": False}.items():
        assert parse(*flags, text)[1].resume_from_checkpoint is value


def test_a_single_reward_in_the_yaml_and_a_checkpoint_that_is_not_there(tmp_path):
    (tmp_path / "run.yaml").write_text("reward_funcs: length\n")
    script, _, _ = parse("--config", str(tmp_path / "run.yaml"), "--use_cpu", "true")
    assert script.reward_funcs == ["length"]
    with raises_naming(ValueError, "--resume_from_checkpoint /no/such", "folder"):
        parse("--resume_from_checkpoint", "/no/such", "--use_cpu", "true")


def test_a_model_in_the_yaml_counts_too(tmp_path):
    config = tmp_path / "settings.yaml"
    config.write_text("model_name_or_path: somewhere\noutput_dir: out\n")
    _, args, model = parse("--config", str(config))
    assert (args.max_steps, model.model_name_or_path) == (-1, "somewhere")


def test_settings_for_a_real_checkpoint_are_the_published_ones(recipes_dir):
    script, args, _ = parse("--config", str(recipes_dir / "grpo_minimind.yaml"), "--model_name_or_path", "m")
    published = {
        "num_generations": 6,
        "prompts_per_rollout": 2,
        "learning_rate": 3e-7,
        "beta": 0.1,
        "loss_type": "cispo",
        "upper_clip": 5.0,
        "max_completion_length": 1024,
        "thinking_ratio": 0.9,
        "temperature": 0.8,
        "max_grad_norm": 1.0,
        "num_train_epochs": 1,
    }
    assert {name: getattr(args, name) for name in published} == published
    assert script.reward_funcs == ["length", "thinking", "format", "repetition"]


@pytest.mark.parametrize(
    ("script", "model", "named"),
    [
        ({"dataset_name": "prompts.jsonl"}, {}, ["model_name_or_path", None, "dataset_name", "'prompts.jsonl'"]),
        ({}, {"model_name_or_path": "folder"}, ["model_name_or_path", "'folder'", "dataset_name", None]),
        ({"dataset_name": "p.jsonl"}, {"model_name_or_path": "folder"}, ["--reward_funcs length"]),
        (
            {"dataset_name": "p.jsonl", "reward_funcs": ["length"]},
            {"model_name_or_path": "full_sft_512.pth"},
            ["minimind-hf convert full_sft_512.pth"],
        ),
        (
            {"dataset_name": "p.jsonl", "reward_funcs": ["length"]},
            {"model_name_or_path": "./m"},
            ["model", "'./m'", "exist"],
        ),
    ],
)
def test_refused_before_anything_is_loaded(script, model, named, tmp_path):
    args = GRPOConfig(str(tmp_path), use_cpu=True)
    with raises_naming(ValueError, *named):
        prepare_task(ScriptArguments(**script), args, ModelConfig(**model))


@pytest.mark.parametrize(
    ("given", "evaluated"),
    [
        ({}, ("data", "test")),
        ({"eval_dataset_name": "other"}, ("other", "train")),
        ({"eval_dataset_name": "data", "dataset_test_split": "test"}, ("data", "test")),
        ({"dataset_test_split": "train[:5]"}, ("data", "train[:5]")),
    ],
)
def test_the_split_that_is_given_is_evaluated(given, evaluated, tmp_path, monkeypatch):
    monkeypatch.setattr(common, "load_prompts", lambda source, **options: (source, options["split"]))
    args = GRPOConfig(str(tmp_path), use_cpu=True, eval_strategy="steps", eval_steps=1)
    script = ScriptArguments(dataset_name="data", reward_funcs=["length"], **given)
    assert prepare_task(script, args, ModelConfig(model_name_or_path="folder")).eval_dataset == evaluated


def test_an_evaluation_at_the_start_alone_loads_its_data(tmp_path, monkeypatch):
    monkeypatch.setattr(common, "load_prompts", lambda source, **options: (source, options["split"]))
    args = GRPOConfig(str(tmp_path), use_cpu=True, eval_on_start=True)
    script = ScriptArguments(dataset_name="data", reward_funcs=["length"], eval_dataset_name="other")
    assert prepare_task(script, args, ModelConfig(model_name_or_path="folder")).eval_dataset == ("other", "train")


def test_a_file_without_rows_is_named(tmp_path):
    (tmp_path / "header.csv").write_text("prompt,answer\n")
    script = ScriptArguments(dataset_name=str(tmp_path / "header.csv"), reward_funcs=["length"])
    with raises_naming(ValueError, tmp_path / "header.csv", "header", "['prompt', 'answer']"):
        prepare_task(script, GRPOConfig(str(tmp_path), use_cpu=True), ModelConfig(model_name_or_path="folder"))


@pytest.mark.parametrize("asked", [{"eval_strategy": "steps", "eval_steps": 1}, {"eval_on_start": True}])
def test_evaluation_data_that_are_missing(tmp_path, asked):
    (tmp_path / "p.jsonl").write_text('{"prompt": "a"}\n')
    args = GRPOConfig(str(tmp_path), use_cpu=True, **asked)
    script = ScriptArguments(dataset_name=str(tmp_path / "p.jsonl"), reward_funcs=["length"])
    with raises_naming(ValueError, "'test'", "--eval_strategy", "--eval_dataset_name", "--dataset_test_split"):
        prepare_task(script, args, ModelConfig(model_name_or_path="folder"))


def test_an_environment_that_writes_all_prompts_needs_evaluation_data(tmp_path):
    args = GRPOConfig(str(tmp_path), use_cpu=True, eval_on_start=True)
    with raises_naming(ValueError, "environment", "--eval_on_start", "--eval_dataset_name"):
        prepare_task(ScriptArguments(), args, ModelConfig(model_name_or_path="folder"), environment=True)


def test_reward_model_comes_last_and_model_flags_reach_loading(tmp_path, monkeypatch):
    monkeypatch.setattr(common, "load_prompts", lambda source, **options: (source, options["split"]))
    args = GRPOConfig(str(tmp_path), use_cpu=True, eval_strategy="steps", eval_steps=1)
    args.model_init_kwargs = {"dtype": "bfloat16"}
    script = ScriptArguments(
        dataset_name="data", reward_funcs=["length"], reward_model_name_or_path="judge", eval_dataset_name="other"
    )
    task = prepare_task(script, args, ModelConfig(model_name_or_path="folder", attn_implementation="eager"))
    assert task.reward_funcs == ["length", "judge"]
    assert (task.train_dataset, task.eval_dataset) == (("data", "train"), ("other", "train"))
    assert args.model_init_kwargs == {"revision": "main", "dtype": "bfloat16", "attn_implementation": "eager"}


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("reward_funcs: 5", ["reward_funcs is 5", "a list"]),
        ("reward_funcs: {a: 1}", ["reward_funcs is {'a': 1}", "a list"]),
        ("lora_target_modules: 5", ["lora_target_modules is 5", "a list"]),
        ("lr_scheduler_kwargs: 5", ["lr_scheduler_kwargs is 5", "a mapping"]),
        ("include_for_metrics: null", ["include_for_metrics is null", "[]"]),
        ("report_to: null", ["report_to is null", "'none'"]),
        ("logging_steps: null", ["logging_steps is null", 1]),
    ],
)
def test_lists_and_mappings_of_the_yaml_are_checked_by_name(tmp_path, setting, named):
    (tmp_path / "run.yaml").write_text(f"{setting}\n")
    with raises_naming(ValueError, *named, "--config"):
        parse("--config", str(tmp_path / "run.yaml"), "--use_cpu", "true")


@pytest.mark.parametrize("setting", ["reward_weights: 2", "reward_weights: null", "lora_target_modules: null"])
def test_a_single_number_and_null_are_fine_where_they_mean_something(tmp_path, setting):
    (tmp_path / "run.yaml").write_text(f"reward_funcs: length\n{setting}\n")
    parse("--config", str(tmp_path / "run.yaml"), "--use_cpu", "true")


@pytest.mark.parametrize("written", ["flag", "file"])
def test_trls_defaults_by_flag_and_file(tmp_path, written):
    config = tmp_path / "run.yaml"
    config.write_text("defaults: trl\nbeta: 0.3\noutput_dir: out\n" if written == "file" else "beta: 0.3\n")
    flags = ["--config", str(config), "--model_name_or_path", "m", "--temperature", "0.8", "--output_dir", "out"]
    _, args, _ = parse(*flags, *(["--defaults", "trl"] if written == "flag" else []))
    assert (args.loss_type, args.learning_rate, args.num_generations, args.bf16) == ("dapo", 1e-6, 8, True)
    assert (args.beta, args.temperature) == (0.3, 0.8)  # those that were given
    assert {"beta", "temperature", "defaults"} <= set(args.passed) and "learning_rate" not in args.passed


def test_the_embedded_task_keeps_its_own_defaults():
    _, args, _ = parse("--defaults", "trl")
    assert (args.max_steps, args.num_generations, args.loss_type) == (7, 4, "dapo")


def test_what_a_command_line_passed_is_what_was_given():
    _, args, _ = parse("--scale_rewards", "group", "--use_cpu")
    assert set(args.passed) == {"scale_rewards", "use_cpu"}


@pytest.mark.parametrize(("flags", "shown"), [((), set()), (("--dtype", "bfloat16"), {"model_init_kwargs"})])
def test_what_a_command_line_did_not_give_is_not_shown_as_given(tmp_path, monkeypatch, flags, shown):
    monkeypatch.setattr(common, "load_prompts", lambda source, **options: source)
    needed = ("--model_name_or_path", "folder", "--dataset_name", "data", "--reward_funcs", "length")
    script, args, model = parse(*needed, "--output_dir", str(tmp_path), *flags)
    prepare_task(script, args, model)
    assert args.model_init_kwargs  # made of the model's flags, or of their defaults
    assert set(given_settings(args)) == {"use_cpu", "output_dir", *shown}


def test_rewards_of_the_first_and_the_last_tenth():
    history = [{"loss": 1.0}, *({"reward": float(n)} for n in range(20)), {"eval_reward": 9.0}]
    assert common.rewards_at_start_and_end(history) == {"reward_start": 0.5, "reward_end": 18.5}
    assert common.rewards_at_start_and_end(history[:4]) == {"reward_start": 0.0, "reward_end": 2.0}
    assert common.rewards_at_start_and_end([]) == {"reward_start": None, "reward_end": None}
