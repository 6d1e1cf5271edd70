# SPDX-License-Identifier: Apache-2.0
"""Trains a causal LM with CISPO or GRPO.

Without arguments, a small MiniMind that is built on the spot learns two-digit addition in a few minutes on two CPU
cores. Every setting has a flag.

    python recipes/grpo.py
    python recipes/grpo.py --seed 1 --loss_type grpo --output_dir outputs/grpo_seed_1
    python recipes/compare.py  # CISPO, GRPO, PPO and RLOO on one page

With your own model and prompts, on one or several devices:

    python recipes/grpo.py --config recipes/grpo_minimind.yaml --model_name_or_path FOLDER --dataset_name rlaif.jsonl
    accelerate launch --config_file accelerate_configs/zero2.yaml recipes/grpo.py --config ...

Convert MiniMind's .pth to a folder first: minimind-hf convert full_sft_768.pth FOLDER --tokenizer TOKENIZER_FOLDER

With completions from an SGLang server instead of this process (docs/rollout-engines.md):

    python recipes/grpo.py --rollout_engine sglang --sglang_base_url http://localhost:30000

The run saves the model, its tokenizer, a model card, the reward curve and report.html in the output folder. The last
line of output is one JSON object; for the embedded task it contains the accuracies on held-out prompts.
"""

import time
from collections.abc import Sequence

from common import finish, make_trainer, parse_arguments, prepare_task, print_result
from embedded_task import MAX_COMPLETION_LENGTH, TEMPERATURE
from running import run

from minimind_hf import GRPOConfig, GRPOTrainer

# A model this small needs a thousand times the learning rate of a real one, and almost no KL penalty to its start.
EMBEDDED_DEFAULTS = {
    "output_dir": "outputs/grpo",
    "max_steps": 200,
    "per_device_train_batch_size": 128,
    "num_generations": 8,
    "learning_rate": 3e-4,
    "adam_beta2": 0.98,
    "warmup_steps": 10,
    "beta": 0.001,
    "temperature": TEMPERATURE,
    "thinking_ratio": 1.0,
    "probe_prompts": 4,
    "probe_steps": 50,
    "max_completion_length": MAX_COMPLETION_LENGTH,
    "save_strategy": "no",
    "report_to": "none",
}


def main(arguments: Sequence[str] | None = None) -> None:
    start = time.perf_counter()
    script, args, model = parse_arguments(GRPOConfig, EMBEDDED_DEFAULTS, arguments, doc=__doc__)
    task = prepare_task(script, args, model)
    trainer = make_trainer(GRPOTrainer, task, args, model)
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    after = finish(trainer, task)
    trainer.end()
    print_result(trainer, args.loss_type, task, after, time.perf_counter() - start)


if __name__ == "__main__":
    run(main)
