# SPDX-License-Identifier: Apache-2.0
"""The gradient and the update of one step, ours beside that of trl's GRPOTrainer, on the same completions and rewards.

    python benchmarks/first_step.py

Both trainers make a whole step of `train()` on the same weights: a `rollout_func`, which both take, gives them the
same completions, drawn by the policy. So everything after the rollout is compared as it runs: advantages, loss,
aggregation, accumulation, clipping, groups of the optimizer, weight decay. Each row changes one setting. The last line
is one JSON object.

Columns: the cosine of the two gradients, the ratio of their lengths (trl's over ours), and how far the updates lie
apart, as a share of ours.
"""

import argparse
import random
import tempfile

import torch
import trl
from datasets import Dataset
from step_time import make_tokenizer
from transformers import PrinterCallback, Trainer, TrainerCallback
from workloads import machine_info, print_json

from minimind_hf import GRPOConfig, GRPOTrainer, MiniMindConfig, MiniMindForCausalLM, SamplingParams, TorchEngine

NUM_PROMPTS, NUM_GENERATIONS, LENGTH = 4, 8, 24
COMMON = {
    "use_cpu": True,
    "bf16": False,
    "max_steps": 1,
    "per_device_train_batch_size": NUM_PROMPTS * NUM_GENERATIONS,
    "num_generations": NUM_GENERATIONS,
    "max_completion_length": LENGTH,
    "temperature": 0.8,
    "learning_rate": 1e-3,
    "lr_scheduler_type": "constant",
    "adam_beta2": 0.98,
    "report_to": "none",
    "save_strategy": "no",
    "disable_tqdm": True,
    "loss_type": "cispo",
    "epsilon_high": 5.0,
    "beta": 0.0,
}
TOKENS = {"loss_aggregation": "token"}  # trl's cispo is a mean over tokens
CASES = {
    "std not divided by": (TOKENS, {"scale_rewards": "none"}),
    "group std": (TOKENS, {}),
    "group std, mean over sequences": ({"loss_aggregation": "sequence"}, {}),
    "no clipping of gradients": (TOKENS, {"max_grad_norm": 0.0}),
    "weight decay": (TOKENS, {"weight_decay": 0.1}),
    "reference": (TOKENS, {"beta": 0.1}),
    "grpo": ({}, {"loss_type": "grpo", "epsilon_high": 0.2}),
    "accumulated": (
        TOKENS,
        {"per_device_train_batch_size": NUM_GENERATIONS, "gradient_accumulation_steps": NUM_PROMPTS},
    ),
}


def make_policy() -> MiniMindForCausalLM:
    """A small random model whose completions end at different lengths."""
    torch.manual_seed(0)
    return MiniMindForCausalLM(
        MiniMindConfig(
            vocab_size=97, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2
        )
    )


def make_prompts() -> list[dict]:
    rng = random.Random(0)
    return [{"prompt": "".join(rng.choices("abcdefgh", k=rng.randint(4, 12)))} for _ in range(NUM_PROMPTS)]


def draw(prompts: list[str], trainer: Trainer) -> dict[str, list]:
    """A `rollout_func`: completions that depend on the prompts alone, each once for every time it occurs."""
    tokenizer, engine = make_tokenizer(), TorchEngine()
    engine.sync_weights(make_policy().eval(), 0)
    asked = sorted(set(prompts))
    ids = tokenizer(asked, add_special_tokens=False)["input_ids"]
    ends = (2, *range(60, 70))  # so that lengths differ
    rollouts = engine.generate(ids, NUM_GENERATIONS, SamplingParams(LENGTH, 0.8, ends, seed=1))
    drawn = {prompt: list(rollouts[NUM_GENERATIONS * i :][:NUM_GENERATIONS]) for i, prompt in enumerate(asked)}
    chosen = [drawn[prompt].pop(0) for prompt in prompts]
    return {
        "prompt_ids": [ids[asked.index(prompt)] for prompt in prompts],
        "completion_ids": [rollout.completion_ids for rollout in chosen],
        "logprobs": [rollout.logprobs for rollout in chosen],
    }


def variety(completion_ids, **kwargs) -> list[float]:
    return [len(set(ids)) / LENGTH for ids in completion_ids]


class GradientKept(TrainerCallback):
    """Keeps the gradient as the optimizer gets it."""

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.gradient = torch.cat([parameter.grad.flatten().clone() for parameter in model.parameters()])


def step(trainer_class: type[Trainer], args, folder: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the gradient and the update of a step."""
    kept = GradientKept()
    trainer = trainer_class(
        folder,
        variety,
        args,
        train_dataset=Dataset.from_list(make_prompts()),
        processing_class=make_tokenizer(),
        callbacks=[kept],
        rollout_func=draw,
    )
    trainer.remove_callback(PrinterCallback)
    before = torch.cat([parameter.detach().flatten().clone() for parameter in trainer.model.parameters()])
    trainer.train()
    after = torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])
    return kept.gradient, after - before


def compare(own: dict, common: dict, folder: str) -> dict[str, float]:
    """How far the two trainers are apart with these settings."""
    common = COMMON | common
    ours, our_update = step(GRPOTrainer, GRPOConfig(output_dir=f"{folder}/ours", **common | own), folder)
    peer_args = trl.GRPOConfig(
        output_dir=f"{folder}/trl", gradient_checkpointing=False, use_bias_correction_kl=False, **common
    )
    peer, peer_update = step(trl.GRPOTrainer, peer_args, folder)
    return {
        "cosine": torch.nn.functional.cosine_similarity(ours.double(), peer.double(), dim=0).item(),
        "length_ratio": (peer.norm() / ours.norm()).item(),
        "update_apart": ((peer_update - our_update).norm() / our_update.norm()).item(),
    }


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    found = {}
    print(f"{'':32} {'cosine':>12} {'length':>8} {'update apart':>13}")
    with tempfile.TemporaryDirectory() as folder:
        make_policy().save_pretrained(folder)
        for name, (own, common) in CASES.items():
            found[name] = compare(own, common, folder)
            row = found[name]
            print(
                f"{name:32} {row['cosine']:12.9f} {row['length_ratio']:8.5f} {row['update_apart']:13.2e}", flush=True
            )
    print_json({"trl": trl.__version__, "cases": found, **machine_info()})


if __name__ == "__main__":
    main()
