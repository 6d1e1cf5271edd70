# SPDX-License-Identifier: Apache-2.0
"""Trains a causal LM with PPO and a critic that starts from the policy's weights.

Without arguments, a small MiniMind that is built on the spot learns two-digit addition in a few minutes on two CPU
cores. Every setting has a flag.

    python recipes/ppo.py
    python recipes/ppo.py --seed 1 --output_dir outputs/ppo_seed_1
    python recipes/compare.py  # CISPO, GRPO, PPO and RLOO on one page

The rewards are those of grpo.py, a quarter as large: the critic's values start near 0 and have less far to go, while
GRPO divides by the standard deviation of a group and does not see their scale. In compare.py all have equal rewards.

With your own model and prompts, on one or several devices; with --use_peft the critic is one more adapter on the
policy's frozen base:

    python recipes/ppo.py --config recipes/ppo_minimind.yaml --model_name_or_path FOLDER --dataset_name rlaif.jsonl
    accelerate launch --config_file accelerate_configs/ddp.yaml recipes/ppo.py --config ...

With completions from an SGLang server instead of this process (docs/rollout-engines.md):

    python recipes/ppo.py --rollout_engine sglang --sglang_base_url http://localhost:30000

The run saves the policy, its tokenizer, a model card, the reward curve and report.html in the output folder, and the
critic in its subfolder `critic`. The last line of output is one JSON object; for the embedded task it contains the
accuracies on held-out prompts.
"""

import time
from collections.abc import Sequence

from common import finish, make_trainer, parse_arguments, prepare_task, print_result, tell
from embedded_task import MAX_COMPLETION_LENGTH, TEMPERATURE
from running import run
from transformers import Trainer

from minimind_hf import PPOConfig, PPOTrainer

# A model this small needs a thousand times the learning rates of a real one, and almost no KL penalty to its start.
# A solution earns 3 or 4 points. Values start near 0, so a quarter of that leaves them less far to go.
EMBEDDED_DEFAULTS = {
    "output_dir": "outputs/ppo",
    "max_steps": 720,
    "per_device_train_batch_size": 128,
    "mini_batch_size": 32,
    "ppo_update_iters": 2,
    "learning_rate": 2e-4,
    "critic_learning_rate": 1e-3,
    "adam_beta2": 0.98,
    "warmup_steps": 10,
    "kl_coef": 0.001,
    "reward_weights": [0.25, 0.25],
    "temperature": TEMPERATURE,
    "thinking_ratio": 1.0,
    "probe_prompts": 4,
    "probe_steps": 180,
    "max_completion_length": MAX_COMPLETION_LENGTH,
    "save_strategy": "no",
    "report_to": "none",
}


def print_critic(trainer: Trainer, rollouts: int = 10) -> None:
    """Prints how much of the returns' variance the critic explained, averaged over the last rollouts."""
    logged = [log["explained_variance"] for log in trainer.state.log_history if "explained_variance" in log]
    if logged and trainer.is_world_process_zero():
        last = logged[-rollouts:]
        text = "explained variance of the critic, mean of the last {count} rollouts: {mean:.2f}"
        tell(trainer.args, text, count=len(last), mean=sum(last) / len(last))


def main(arguments: Sequence[str] | None = None) -> None:
    start = time.perf_counter()
    script, args, model = parse_arguments(PPOConfig, EMBEDDED_DEFAULTS, arguments, doc=__doc__)
    task = prepare_task(script, args, model)
    trainer = make_trainer(PPOTrainer, task, args, model)
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    after = finish(trainer, task)
    print_critic(trainer)
    trainer.end()
    print_result(trainer, "ppo", task, after, time.perf_counter() - start)


if __name__ == "__main__":
    run(main)
