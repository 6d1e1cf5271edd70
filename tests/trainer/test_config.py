# SPDX-License-Identifier: Apache-2.0
"""Settings that cannot be meant are refused at construction, by name, value and remedy."""

import json
import logging

import pytest
import torch
from transformers import HfArgumentParser, get_scheduler

from minimind_hf import GRPOConfig, PPOConfig
from minimind_hf.trainer.experience.inputs import make_engine
from minimind_hf.trainer.settings.generation_kwargs import eos_of

REFUSED = [
    ({"per_device_train_batch_size": 8, "num_generations": 6}, r"8, counted in completions.*num_generations \(6\)"),
    ({"per_device_train_batch_size": 4, "num_generations": 6, "gradient_accumulation_steps": 2}, "= 8 completions"),
    ({"num_generations": 1, "per_device_train_batch_size": 1}, "num_generations of at least 2, got 1.*PPO"),
    ({"num_generations": 0}, "num_generations must be at least 1, got 0"),
    ({"top_p": 0.9}, r"top_p=0.9 draws completions from another distribution.*temperature \(0.8\)"),
    ({"top_k": 50}, "top_k=50"),
    ({"min_p": 0.1}, "min_p=0.1"),
    ({"repetition_penalty": 1.2}, "repetition_penalty=1.2"),
    ({"temperature": 0.0}, "temperature must be a finite number above 0, got 0.0"),
    ({"temperature": float("nan")}, "temperature"),
    ({"generation_batch_size": 13}, r"generation_batch_size \(13\) must be a multiple"),
    ({"generation_batch_size": 24, "steps_per_generation": 3}, "set only one of them"),
    ({"loss_type": "reinforce"}, "loss_type must be one of 'cispo', 'grpo', 'dr_grpo'.*got 'reinforce'"),
    ({"loss_type": "sapo"}, "loss_type='sapo' is a loss of trl that is not supported here; use one of 'cispo'"),
    ({"loss_type": "dapo", "loss_aggregation": "sequence"}, "'token', but `loss_aggregation` is 'sequence'"),
    ({"importance_sampling_level": "word"}, "importance_sampling_level must be one of 'token', 'sequence'"),
    ({"delta": 1.5}, "delta=1.5 bounds the ratio of the grpo objective"),
    ({"delta": 1.1, "loss_type": "grpo"}, r"delta=1.1 must be above 1 \+ epsilon_high = 1.2"),
    ({"off_policy_mask_threshold": 0.0}, "off_policy_mask_threshold must be above 0"),
    ({"top_entropy_quantile": 1.1}, "top_entropy_quantile"),
    ({"top_entropy_quantile": 0.2, "max_tokens_per_microbatch": 100}, "Leave max_tokens_per_microbatch unset"),
    ({"multi_objective_aggregation": "sum"}, "multi_objective_aggregation must be one of"),
    ({"multi_objective_aggregation": "normalize_then_sum", "scale_rewards": "none"}, "Leave scale_rewards at 'group'"),
    ({"sync_ref_model": True, "beta": 0.0}, "there is no reference that could follow"),
    ({"ref_model_mixup_alpha": 2.0}, "ref_model_mixup_alpha"),
    ({"ref_model_sync_steps": 0}, "ref_model_sync_steps must be at least 1"),
    ({"generation_kwargs": {"num_beams": 4}}, "generation_kwargs has num_beams=4, which rollouts cannot honour"),
    ({"generation_kwargs": {"suppress_tokens": [5]}}, "suppress_tokens"),
    ({"generation_kwargs": {"top_k": 20}}, "top_k=20 draws completions from another distribution"),
    ({"generation_kwargs": {"eos_token_id": "x"}}, "eos_token_id='x'"),
    ({"generation_kwargs": "[1]"}, "generation_kwargs must be a dictionary"),
    ({"max_completion_length": None}, "max_completion_length is None, but a rollout needs a bound"),
    ({"label_smoothing_factor": 0.1}, "label_smoothing_factor=0.1 smooths the labels of supervised training"),
    ({"neftune_noise_alpha": 5.0}, "neftune_noise_alpha=5.0 adds noise to the embeddings of the update alone"),
    ({"max_completion_length": 2.5}, "max_completion_length must be a whole number, got 2.5 of type float"),
    ({"num_generations": "2"}, "num_generations must be a whole number, got '2' of type str"),
    ({"num_iterations": True}, "num_iterations must be a whole number, got True"),
    ({"beta": "0.1"}, "beta must be a number, got '0.1'"),
    ({"beta": None}, "beta must be a number, got None"),
    ({"num_iterations": None}, "num_iterations must be a whole number, got None"),
    ({"log_completions": "false"}, "log_completions must be True or False, got 'false' of type str"),
    ({"shuffle_dataset": None}, "shuffle_dataset must be True or False, got None"),
    ({"learning_rate": None}, "learning_rate must be a number, got None"),
    ({"max_grad_norm": -1.0}, "max_grad_norm must be at least 0, got -1.0"),
    ({"num_train_epochs": -1}, "num_train_epochs must be at least 0, got -1"),
    ({"logging_steps": -3}, "logging_steps must be above 0, got -3.*logging_strategy='no'"),
    ({"generation_batch_size": 0}, "generation_batch_size must be at least 1, got 0"),
    ({"chat_template_kwargs": "{bad"}, "chat_template_kwargs is no JSON object .*'{bad'"),
    ({"generation_kwargs": "x"}, "generation_kwargs is no JSON object .*'x'"),
    ({"scale_rewards": ["group"]}, "scale_rewards must be one of"),
    ({"learning_rate": float("inf")}, "learning_rate must be a finite number, got inf"),
    ({"per_device_train_batch_size": 0}, "per_device_train_batch_size must be at least 1, got 0"),
    ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps must be at least 1, got 0"),
    ({"use_vllm": True}, "use_vllm=True is a setting of trl that is not supported here.*sglang"),
    ({"loss_aggregation": "mean"}, "loss_aggregation"),
    ({"scale_rewards": "yes"}, "scale_rewards"),
    ({"overlong_prompts": "keep"}, "overlong_prompts"),
    ({"thinking_ratio": 1.5}, r"thinking_ratio is a probability.*got 1.5"),
    ({"system_prompt_ratio": -0.1}, "system_prompt_ratio"),
    ({"rollout_dtype": "float16"}, "rollout_dtype must be one of None, 'float32', 'bfloat16', got 'float16'"),
    ({"torch_engine_path": "quick"}, "torch_engine_path must be one of 'auto', 'fast', 'general'"),
    ({"beta": -1.0}, "beta must be at least 0"),
    ({"num_iterations": 0}, "num_iterations"),
    ({"max_completion_length": 0}, "max_completion_length"),
    ({"max_prompt_length": 0}, "max_prompt_length"),
    ({"remove_unused_columns": True}, "remove_unused_columns"),
    ({"auto_find_batch_size": True}, "auto_find_batch_size"),
    ({"model_init_kwargs": "bfloat16"}, "model_init_kwargs must be a dictionary"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=lambda value: str(value)[:40])
def test_refused(changes, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        GRPOConfig(output_dir=str(tmp_path), use_cpu=True, **changes)


@pytest.mark.parametrize("has_accelerator", [False, True])
def test_a_machine_without_accelerator_trains_on_its_cpu(has_accelerator, tmp_path, monkeypatch):
    """Else several processes would not find each other there, and bf16 would be refused."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: has_accelerator)
    assert GRPOConfig(output_dir=str(tmp_path)).use_cpu is not has_accelerator
    if not has_accelerator:
        assert GRPOConfig(output_dir=str(tmp_path), bf16=True).bf16


def test_an_output_folder_without_a_name_is_refused():
    with pytest.raises(ValueError, match="output_dir is empty"):
        GRPOConfig(output_dir="", use_cpu=True)


def test_lists_of_numbers_come_through_the_parser(tmp_path):
    arguments = ["--output_dir", str(tmp_path), "--use_cpu", "--reward_weights", "3", "1", "--max_prompt_length", "7"]
    (config,) = HfArgumentParser(GRPOConfig).parse_args_into_dataclasses(arguments)
    assert config.reward_weights == [3.0, 1.0]
    assert config.max_prompt_length == 7
    HfArgumentParser(PPOConfig)
    # Parsers change what the fields of a class say of their types.
    assert PPOConfig(output_dir=str(tmp_path), use_cpu=True, early_stop_kl=None, top_k=None).early_stop_kl is None


def test_defaults_are_those_of_the_design(tmp_path):
    config = GRPOConfig(output_dir=str(tmp_path), use_cpu=True)
    expected = {
        "num_generations": 6,
        "temperature": 0.8,
        "beta": 0.1,
        "epsilon": 0.2,
        "upper_clip": 5.0,
        "loss_type": "cispo",
        "loss_aggregation": "sequence",
        "thinking_ratio": 0.9,
        "learning_rate": 3e-7,
        "max_grad_norm": 1.0,
        "prompts_per_rollout": 2,
    }
    assert {name: getattr(config, name) for name in expected} == expected


def test_default_schedule_ends_at_a_tenth(tmp_path):
    config = GRPOConfig(output_dir=str(tmp_path), use_cpu=True)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=config.learning_rate)
    schedule = get_scheduler(
        config.lr_scheduler_type, optimizer, 0, 50, scheduler_specific_kwargs=config.lr_scheduler_kwargs
    )
    for _ in range(50):
        optimizer.step()
        schedule.step()
    assert schedule.get_last_lr()[0] == pytest.approx(3e-8)


def test_another_schedule_gets_no_arguments_of_the_default_one(tmp_path):
    config = GRPOConfig(output_dir=str(tmp_path), use_cpu=True, lr_scheduler_type="constant")
    assert not config.lr_scheduler_kwargs


@pytest.mark.parametrize(
    ("loss_type", "given", "expected"),
    [("cispo", None, 5.0), ("cispo", 3.0, 3.0), ("grpo", None, 0.2), ("grpo", 0.28, 0.28)],
)
def test_epsilon_high_means_what_the_loss_needs(tmp_path, loss_type, given, expected):
    config = GRPOConfig(output_dir=str(tmp_path), use_cpu=True, loss_type=loss_type, epsilon_high=given)
    assert config.upper_clip == expected


@pytest.mark.parametrize(
    ("settings", "dtype"),
    [
        ({}, None),
        ({"bf16": True}, torch.bfloat16),
        ({"bf16": True, "rollout_dtype": "float32"}, torch.float32),
        ({"rollout_dtype": "bfloat16"}, torch.bfloat16),
    ],
)
def test_rollouts_are_in_the_dtype_of_training_unless_said_otherwise(tmp_path, settings, dtype):
    config = GRPOConfig(output_dir=str(tmp_path), use_cpu=True, max_batch_rows=7, **settings)
    engine = make_engine(config)
    assert (engine.dtype, engine.path, engine.max_batch_rows) == (dtype, "auto", 7)


@pytest.mark.parametrize(
    ("loss_type", "aggregation"),
    [
        ("cispo", "sequence"),
        ("grpo", "sequence"),
        ("dr_grpo", "constant"),
        ("dapo", "token"),
        ("bnpo", "local_token"),
    ],
)
def test_aggregation_of_a_loss_type(tmp_path, loss_type, aggregation):
    config = GRPOConfig(output_dir=str(tmp_path), use_cpu=True, loss_type=loss_type)
    assert config.loss_aggregation == aggregation
    # What was resolved once can be given again, as when a config is built from another's values.
    GRPOConfig(output_dir=str(tmp_path), use_cpu=True, loss_type=loss_type, loss_aggregation=aggregation)


def test_a_cap_of_cispo_below_1_is_warned_of(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("minimind_hf"), "propagate", True)
    with caplog.at_level("WARNING"):
        GRPOConfig(output_dir=str(tmp_path), use_cpu=True, epsilon_high=1.0)
        GRPOConfig(output_dir=str(tmp_path), use_cpu=True, epsilon_high=0.28, loss_type="grpo")
        assert "epsilon_high" not in caplog.text
        GRPOConfig(output_dir=str(tmp_path), use_cpu=True, epsilon_high=0.28)
    assert "epsilon_high=0.28 is below 1" in caplog.text


@pytest.mark.parametrize("as_text", [False, True])
def test_generation_kwargs_win_over_the_fields(tmp_path, as_text):
    given = {"temperature": 0.5, "max_new_tokens": 7, "do_sample": True, "eos_token_id": [4, 3]}
    given = json.dumps(given) if as_text else given
    config = GRPOConfig(output_dir=str(tmp_path), use_cpu=True, temperature=0.9, generation_kwargs=given)
    assert (config.temperature, config.max_completion_length) == (0.5, 7)
    assert eos_of(config) == (3, 4)
    assert eos_of(GRPOConfig(output_dir=str(tmp_path), use_cpu=True)) is None


def test_generation_batch_size_is_the_other_way_to_say_steps_per_generation(tmp_path):
    config = GRPOConfig(output_dir=str(tmp_path), use_cpu=True, generation_batch_size=36)
    assert (config.steps_per_generation, config.prompts_per_rollout) == (3, 6)


def test_scale_rewards_takes_trl_booleans(tmp_path):
    assert GRPOConfig(output_dir=str(tmp_path), use_cpu=True, scale_rewards=False).scale_rewards == "none"
    assert GRPOConfig(output_dir=str(tmp_path), use_cpu=True, scale_rewards=True).scale_rewards == "group"
