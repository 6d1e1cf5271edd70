# SPDX-License-Identifier: Apache-2.0
"""Nothing in a micro-batch's forward and backward pass waits for the device, told on a CPU by operations."""

import pytest
import torch
from no_waits import Waits, no_waits
from peft import LoraConfig
from tiny import GRPO, PPO, QUIET, SGD, SIZES, make_policy, tiny_trainer

from minimind_hf import DistillConfig, GRPOConfig, PPOConfig

CASES = {
    "plain": {},
    "moe": {"model": lambda: make_policy(use_moe=True)},
    "parts": {"max_tokens_per_microbatch": 20},
    "truncated": {"top_k": 20},
    "bf16": {"bf16": True},
    "lora": {"peft_config": LoraConfig(r=2, target_modules="all-linear")},
    "checkpointed": {"gradient_checkpointing": True},
}
ONLY_GRPO = {
    "quantile": {"top_entropy_quantile": 0.5},
    "entropy": {"entropy_coef": 0.1},
    "masked": {"mask_truncated_completions": True},
    "corrected": {"rollout_correction": "truncate"},
    "twice": {"num_iterations": 2},
}
ONLY_DISTILL = {"mixture": {"beta": 0.5, "loss_temperature": 1.5}}
OF_ALGORITHM = {"grpo": CASES | ONLY_GRPO, "ppo": CASES, "distill": CASES | ONLY_DISTILL}
EACH = [(algorithm, case) for algorithm, cases in OF_ALGORITHM.items() for case in cases]
KINDS = {
    "grpo": (GRPOConfig, GRPO),
    "ppo": (PPOConfig, PPO),
    "distill": (DistillConfig, QUIET | SIZES | SGD | {"num_generations": 2}),
}


def further(algorithm: str) -> dict:
    return {"teacher_model": make_policy(seed=1, hidden_size=48)} if algorithm == "distill" else {}


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["shared_prompt", "padded"])
@pytest.mark.parametrize(("algorithm", "case"), EACH)
def test_an_update_does_not_wait(tmp_path, algorithm, case, layout, monkeypatch):
    changes = dict(OF_ALGORITHM[algorithm][case])
    model, lora = changes.pop("model", make_policy)(), changes.pop("peft_config", None)
    if case == "moe":
        model.set_experts_implementation("batched_mm")  # transformers' default on a CPU sorts tokens by expert
    config, settings = KINDS[algorithm]
    args = config(str(tmp_path), **settings | {"forward_layout": layout} | changes)
    engine = None if "top_k" in changes else "scripted"
    trainer = tiny_trainer(args, model, engine=engine, peft_config=lora, **further(algorithm))
    assert all(step.isfinite() for step in watched_steps(trainer, layout, monkeypatch))


def watched_steps(trainer, layout, monkeypatch) -> list[torch.Tensor]:
    """Trains, and returns the losses; a wait raises an error."""
    steps, original = [], trainer.training_step

    def training_step(*given):
        # transformers looks whether a batch has padding, once in a pass of the padded layout.
        allowed = ("masking_utils.py",) if layout == "padded" else ()
        with no_waits(allowed):
            steps.append(original(*given))
        return steps[-1]

    monkeypatch.setattr(trainer, "training_step", training_step)
    trainer.train()
    trainer.end()
    assert len(steps) >= 2
    return steps


@pytest.mark.gpu
@pytest.mark.parametrize("algorithm", KINDS)
def test_torch_finds_no_wait_on_a_device(tmp_path, algorithm, monkeypatch):
    config, settings = KINDS[algorithm]
    settings = {name: value for name, value in settings.items() if name != "use_cpu"}
    model = make_policy(hidden_size=128)
    trainer = tiny_trainer(config(str(tmp_path), **settings), model, engine="scripted", **further(algorithm))
    steps, original = [], trainer.training_step

    def training_step(*given):
        torch.cuda.set_sync_debug_mode("error" if steps else "default")  # the first one compiles kernels
        try:
            steps.append(original(*given))
        finally:
            torch.cuda.set_sync_debug_mode("default")
        return steps[-1]

    monkeypatch.setattr(trainer, "training_step", training_step)
    trainer.train()
    trainer.end()
    assert len(steps) >= 2


WAITING = [
    lambda x: x.sum().item(),
    lambda x: x.tolist(),
    lambda x: x.cpu(),
    lambda x: x.numpy(),
    lambda x: bool(x.sum() > 0),
    lambda x: float(x.sum()),
    lambda x: x[x > 0],
    lambda x: x.masked_select(x > 0),
    lambda x: x.nonzero(),
    lambda x: x.unique(),
    lambda x: x.repeat_interleave((x > 0).long()),
    lambda x: x.index_put_((x > 0,), torch.zeros(())),
    lambda x: torch.equal(x, x),
    lambda x: list(x.long())[0].__index__(),
]


@pytest.mark.parametrize("work", WAITING)
def test_what_waits_is_told(work):
    x = torch.arange(-2.0, 4.0)
    work(x.clone())
    with pytest.raises(Waits), no_waits():
        work(x.clone())


def test_what_does_not_wait_is_not():
    x, places = torch.arange(-2.0, 4.0), torch.tensor([1, 0])
    with no_waits():
        torch.where(x > 0, x, 0.0)[places].sum().mul_(2).repeat(3)
        x.repeat_interleave(2).masked_fill(x.repeat_interleave(2) > 0, 1.0).index_select(0, places)
