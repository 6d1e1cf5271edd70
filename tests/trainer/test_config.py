# SPDX-License-Identifier: Apache-2.0
"""Settings that cannot be meant are refused at construction, by name, value and remedy."""

import pytest
import torch
from transformers import get_scheduler

from minimind_hf import GRPOConfig
from minimind_hf.trainer.inputs import make_engine

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
    ({"loss_type": "reinforce"}, "loss_type must be one of 'cispo', 'grpo', got 'reinforce'"),
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


def test_generation_batch_size_is_the_other_way_to_say_steps_per_generation(tmp_path):
    config = GRPOConfig(output_dir=str(tmp_path), use_cpu=True, generation_batch_size=36)
    assert (config.steps_per_generation, config.prompts_per_rollout) == (3, 6)


def test_scale_rewards_takes_trl_booleans(tmp_path):
    assert GRPOConfig(output_dir=str(tmp_path), use_cpu=True, scale_rewards=False).scale_rewards == "none"
    assert GRPOConfig(output_dir=str(tmp_path), use_cpu=True, scale_rewards=True).scale_rewards == "group"
