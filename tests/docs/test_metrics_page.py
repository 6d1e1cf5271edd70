# SPDX-License-Identifier: Apache-2.0
"""Every name that a run logs is defined in docs/metrics.md."""

import re
from pathlib import Path

import pytest
from datasets import Dataset
from tiny import QUIET, SIZES, make_policy, make_prompts, make_tokenizer, share_of_a, tiny_trainer

from minimind_hf import DistillConfig, GRPOConfig, PPOConfig
from minimind_hf.evaluation import EvalSettings, answer_prompts
from minimind_hf.rewards import RewardScorer
from minimind_hf.trainer.logs.reward_notes import OWN_NAMES, is_own_metric

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
SETTINGS = {**QUIET, **SIZES, "per_device_eval_batch_size": 8, "eval_strategy": "steps", "eval_steps": 2}


@pytest.fixture(scope="module")
def patterns() -> list[re.Pattern]:
    """The names of the page's first columns; NAME stands for any name without a slash, `@K` for any number."""
    cells = re.findall(r"^\| (`.*?) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    names = {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
    return [re.compile(re.escape(name).replace("NAME", r"[^/]+").replace("@K", r"@\d+")) for name in names]


def is_defined(name: str, patterns: list[re.Pattern]) -> bool:
    return any(pattern.fullmatch(form) for pattern in patterns for form in (name, name.removeprefix("eval_")))


def train(config_class, folder, model, prompts=12, further=None, **changes) -> set[str]:
    config = config_class(output_dir=str(folder), **SETTINGS | changes)
    held_out = make_prompts(2, seed=1)
    trainer = tiny_trainer(config, model, [share_of_a, "length"], prompts, eval_dataset=held_out, **(further or {}))
    trainer.train()
    return {name for log in trainer.state.log_history for name in log}


def test_grpo(tmp_path, patterns):
    changes = {"num_generations": 4, "rollout_correction": "truncate", "num_iterations": 2, "entropy_coef": 0.01}
    logged = train(GRPOConfig, tmp_path, make_policy(use_moe=True), **changes)
    assert {"kl_ref", "aux_loss", "eval_reward", "seconds/correction", "sampling/k3"} <= logged
    assert "sampling/importance_sampling_ratio/mean" in logged  # as with any engine but our own, SGLang's too
    assert [name for name in sorted(logged) if not is_defined(name, patterns)] == []


def test_ppo(tmp_path, patterns):
    logged = train(PPOConfig, tmp_path, make_policy())
    assert {"explained_variance", "critic_loss", "seconds/values"} <= logged
    assert [name for name in sorted(logged) if not is_defined(name, patterns)] == []


def test_distillation(tmp_path, patterns):
    rows = [{**row, "completion": "yes"} for row in make_prompts(12)]
    teacher = {"teacher_model": make_policy(seed=1)}
    logged = train(DistillConfig, tmp_path, make_policy(use_moe=True), rows, teacher, lmbda=0.5)
    assert {"divergence", "eval_divergence", "completions/on_policy", "aux_loss", "sampling/k3"} <= logged
    assert [name for name in sorted(logged) if not is_defined(name, patterns)] == []


def test_evaluation_of_models(patterns):
    scorer = RewardScorer(["length"])
    settings = EvalSettings(max_completion_length=4, samples=2, pass_at=[1, 2])
    rows = Dataset.from_list(make_prompts(2))
    answers = answer_prompts("model", make_policy(), make_tokenizer(), rows, scorer, settings)
    assert {"tokens", "pass@2"} <= set(answers.signals)
    assert [name for name in answers.signals if not is_defined(name, patterns)] == []


def test_every_name_on_the_page_is_kept_from_reward_functions():
    page = PAGE.read_text(encoding="utf-8").partition("## In the table")[0]
    cells = re.findall(r"^\| (`.*?) \|", page, re.MULTILINE)
    names = {name.removeprefix("eval_") for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
    assert {name for name in names if "NAME" not in name} == OWN_NAMES
    assert all(is_own_metric(name) for name in names) and not is_own_metric("rewards/length")


def test_a_name_that_is_not_on_the_page_is_found(patterns):
    assert not is_defined("rewards", patterns) and not is_defined("kl", patterns)
    assert is_defined("rewards/length/mean", patterns) and is_defined("eval_rewards/length/std", patterns)
