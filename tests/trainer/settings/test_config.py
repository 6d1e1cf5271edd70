# SPDX-License-Identifier: Apache-2.0
"""Settings that cannot be meant are refused at construction, by name, value and remedy."""

import json
import logging

import pytest
import torch
from naming import assert_names, raises_naming
from transformers import HfArgumentParser, get_scheduler

from minimind_hf import GRPOConfig, PPOConfig
from minimind_hf.trainer.experience.inputs import make_engine
from minimind_hf.trainer.settings.generation_kwargs import eos_of

# Settings that are refused, and what the error names beside the first of them and its value
REFUSED = [
    ({"per_device_train_batch_size": 8, "num_generations": 6}, "num_generations (6)"),
    (
        {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "num_generations": 6},
        "steps_per_generation (2)",
        "num_generations (6)",
    ),
    ({"num_generations": 1, "per_device_train_batch_size": 1}, "PPO"),
    ({"num_generations": 0},),
    ({"top_p": 0.0}, "1.0"),
    ({"top_p": 1.5}, "1.0"),
    ({"top_k": -1}, "0 draws from all"),
    ({"top_k": 2.5}, "whole number"),
    ({"min_p": 1.1}, "at most 1"),
    ({"repetition_penalty": 1.2}, "temperature", "top_p"),
    ({"temperature": 0.0}, "0.1"),
    ({"temperature": float("nan")},),
    ({"temperature": float("inf")},),
    ({"generation_batch_size": 13}, "per_device_train_batch_size", "12 x 1"),
    ({"generation_batch_size": 24, "steps_per_generation": 3}, "steps_per_generation (3)"),
    ({"generation_batch_size": 0},),
    ({"steps_per_generation": 0},),
    ({"loss_type": "reinforce"}, "'cispo'", "'grpo'", "'dr_grpo'"),
    ({"loss_type": "luspo", "loss_aggregation": "token"}, "loss_aggregation", "'token'", "'sequence_sum'"),
    ({"delta": 1.5, "loss_type": "sapo"}, "'sapo'", "loss_type='grpo'"),
    ({"sapo_temperature_pos": 0.0},),
    ({"sapo_temperature_neg": -1.0},),
    ({"vespo_lambda_pos": -1.0},),
    ({"vespo_k_neg": float("nan")},),
    ({"entropy_coef_min": 0.5, "entropy_coef_max": 0.1, "use_adaptive_entropy": True}, "entropy_coef_max=0.1"),
    ({"entropy_coef_delta": -0.1},),
    ({"loss_type": "dapo", "loss_aggregation": "sequence"}, "loss_aggregation", "'sequence'", "'token'"),
    ({"importance_sampling_level": "word"}, "'token'", "'sequence'"),
    ({"delta": 1.5}, "epsilon_high (5.0)", "loss_type='grpo'"),
    ({"delta": 1.1, "loss_type": "grpo"}, "epsilon_high = 1.2"),
    ({"off_policy_mask_threshold": 0.0},),
    ({"top_entropy_quantile": 1.1},),
    ({"top_entropy_quantile": 0.2, "max_tokens_per_microbatch": 100}, "max_tokens_per_microbatch=100"),
    ({"multi_objective_aggregation": "sum"}, "'sum_then_normalize'", "'normalize_then_sum'"),
    (
        {"multi_objective_aggregation": "normalize_then_sum", "scale_rewards": "none"},
        "scale_rewards",
        "'none'",
        "'group'",
    ),
    ({"sync_ref_model": True, "beta": 0.0}, "beta=0.0"),
    ({"ref_model_mixup_alpha": 2.0},),
    ({"ref_model_sync_steps": 0},),
    ({"generation_kwargs": "[1]"},),
    ({"generation_kwargs": "x"},),
    ({"chat_template_kwargs": "{bad"},),
    ({"model_init_kwargs": "bfloat16"},),
    ({"max_completion_length": None},),
    ({"max_completion_length": 2.5},),
    ({"max_completion_length": 0},),
    ({"max_prompt_length": 0},),
    ({"label_smoothing_factor": 0.1}, "0.0"),
    ({"neftune_noise_alpha": 5.0}, "None"),
    ({"use_liger_kernel": True}, "False"),
    ({"remove_unused_columns": True}, "False"),
    ({"auto_find_batch_size": True}, "False", "per_device_train_batch_size"),
    ({"num_generations": "2"}, "of type str"),
    ({"num_iterations": True},),
    ({"num_iterations": None},),
    ({"num_iterations": 0},),
    ({"beta": "0.1"}, "of type str"),
    ({"beta": None},),
    ({"beta": -1.0},),
    ({"log_completions": "false"}, "of type str"),
    ({"shuffle_dataset": None},),
    ({"learning_rate": None}, "0 switches it off"),
    ({"learning_rate": float("inf")},),
    ({"max_grad_norm": -1.0}, "0 switches it off"),
    ({"num_train_epochs": -1},),
    ({"logging_steps": -3}, "logging_strategy='no'"),
    ({"logging_steps": None},),
    ({"per_device_train_batch_size": 0},),
    ({"per_device_train_batch_size": None},),
    ({"gradient_accumulation_steps": 0},),
    ({"use_vllm": True}, "sglang"),
    ({"loss_aggregation": "mean"},),
    ({"scale_rewards": ["group"]},),
    ({"scale_rewards": "yes"},),
    ({"overlong_prompts": "keep"}, "'truncate'", "'drop'"),
    ({"thinking_ratio": 1.5},),
    ({"system_prompt_ratio": -0.1},),
    ({"rollout_engine": "vllm"}, "'sglang'", "rollout_engine=MyEngine()"),
    ({"rollout_dtype": "float16"}, "'float32'", "'bfloat16'", "None"),
    ({"rollout_correction_cap": 0.5},),
    ({"server_timeout": 0.0},),
    ({"sync_every": 0},),
    ({"torch_engine_path": "quick"}, "'auto'", "'fast'", "'general'"),
]
REFUSED_OF_GENERATION_KWARGS = [
    ({"num_beams": 4},),
    ({"suppress_tokens": [5]},),
    ({"top_k": -20},),
    ({"repetition_penalty": 1.2},),
    ({"eos_token_id": "x"},),
]
REFUSED_OF_PPO = [
    ({"loss_aggregation": "local_token"}, "'token'", "'sequence'", "'constant'"),
    ({"mini_batch_size": 0},),
    ({"ppo_update_iters": 0},),
    ({"clip_epsilon": -0.1},),
    ({"kl_coef": -0.1},),
    ({"vf_coef": -0.1},),
    ({"cliprange_value": -0.1},),
    ({"critic_learning_rate": -0.1},),
    ({"critic_learning_rate": None},),
    ({"gamma": 1.1},),
    ({"lam": -0.1},),
    ({"early_stop_kl": -0.1},),
    ({"mini_batch_size": 3}, "per_device_train_batch_size 8", "multiple of 3"),
]


def assert_refused(config_class, folder, settings, changes, *also_named):
    with pytest.raises(ValueError) as error:
        config_class(output_dir=str(folder), use_cpu=True, **settings)
    (setting, value), *_ = changes.items()
    message = str(error.value)
    assert setting in message
    assert repr(value) in message or str(value) in message
    assert [text for text in also_named if text not in message] == []


@pytest.mark.parametrize("refused", REFUSED, ids=lambda value: str(value)[:40])
def test_refused(refused, tmp_path):
    assert_refused(GRPOConfig, tmp_path, refused[0], *refused)


@pytest.mark.parametrize("refused", REFUSED_OF_GENERATION_KWARGS, ids=lambda value: str(value)[:40])
def test_refused_in_generation_kwargs(refused, tmp_path):
    assert_refused(GRPOConfig, tmp_path, {"generation_kwargs": refused[0]}, *refused)


@pytest.mark.parametrize("refused", REFUSED_OF_PPO, ids=lambda value: str(value)[:40])
def test_refused_by_ppo(refused, tmp_path):
    assert_refused(PPOConfig, tmp_path, refused[0], *refused)


def test_what_transformers_takes_for_its_own_settings_is_taken(tmp_path):
    settings = {"logging_steps": 0, "logging_strategy": "no", "eval_steps": None, "weight_decay": 0, "top_k": None}
    config = GRPOConfig(output_dir=str(tmp_path), use_cpu=True, **settings)
    assert {name: getattr(config, name) for name in settings} == settings


@pytest.mark.parametrize("has_accelerator", [False, True])
def test_a_machine_without_accelerator_trains_on_its_cpu(has_accelerator, tmp_path, monkeypatch):
    """Else several processes would not find each other there, and bf16 would be refused."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: has_accelerator)
    assert GRPOConfig(output_dir=str(tmp_path)).use_cpu is not has_accelerator
    if not has_accelerator:
        assert GRPOConfig(output_dir=str(tmp_path), bf16=True).bf16


def test_an_output_folder_without_a_name_is_refused():
    with raises_naming(ValueError, "output_dir"):
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
        ("luspo", "sequence_sum"),
        ("sapo", "sequence"),
        ("vespo", "token"),
    ],
)
def test_aggregation_of_a_loss_type(tmp_path, loss_type, aggregation):
    config = GRPOConfig(output_dir=str(tmp_path), use_cpu=True, loss_type=loss_type)
    assert config.loss_aggregation == aggregation
    # What was resolved once can be given again, as when a config is built from another's values.
    GRPOConfig(output_dir=str(tmp_path), use_cpu=True, loss_type=loss_type, loss_aggregation=aggregation)


@pytest.mark.parametrize(
    "loss_type, level, aggregation, said",
    [
        ("luspo", "token", None, "Set 'sequence'"),
        ("luspo", "sequence", None, None),
        ("vespo", "sequence", None, "Leave it at 'token'"),
        ("vespo", "token", None, None),
        ("dapo", "sequence", None, "loss_type='grpo'"),
        ("bnpo", "sequence", None, "loss_type='grpo'"),
        ("dr_grpo", "sequence", None, "loss_type='grpo'"),
        ("cispo", "sequence", "token", "loss_type='grpo'"),
        ("cispo", "sequence", None, None),  # it averages over sequences here
        ("grpo", "sequence", None, None),
        ("dapo", "token", None, None),
    ],
)
def test_levels_that_a_loss_was_not_meant_for_are_warned_of(
    loss_type, level, aggregation, said, tmp_path, caplog, monkeypatch
):
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    monkeypatch.setattr(logging.getLogger("minimind_hf"), "propagate", True)
    settings = {"loss_type": loss_type, "importance_sampling_level": level, "loss_aggregation": aggregation}
    with caplog.at_level("WARNING"):
        GRPOConfig(output_dir=str(tmp_path), use_cpu=True, **settings)
    if said is None:
        assert "importance_sampling_level" not in caplog.text
    else:
        assert f"importance_sampling_level={level!r}" in caplog.text and said in caplog.text
        assert repr(loss_type) in caplog.text


def test_a_cap_of_cispo_below_1_is_warned_of(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("minimind_hf"), "propagate", True)
    with caplog.at_level("WARNING"):
        GRPOConfig(output_dir=str(tmp_path), use_cpu=True, epsilon_high=1.0)
        GRPOConfig(output_dir=str(tmp_path), use_cpu=True, epsilon_high=0.28, loss_type="grpo")
        assert "epsilon_high" not in caplog.text
        GRPOConfig(output_dir=str(tmp_path), use_cpu=True, epsilon_high=0.28)
    assert_names(caplog.text, "epsilon_high", 0.28, 1)


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
