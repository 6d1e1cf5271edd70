# SPDX-License-Identifier: Apache-2.0
"""Trains, pushes to the Hub that HF_ENDPOINT names, and loads back from it; started by test_hub.py."""

import json
import sys
from pathlib import Path

import torch
from huggingface_hub import ModelCard
from peft import LoraConfig
from tiny import QUIET, SIZES, make_policy, make_tokenizer, tiny_trainer
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification, AutoTokenizer

from minimind_hf import GRPOConfig, PPOConfig

SETTINGS = {
    **QUIET,
    **SIZES,
    "save_strategy": "steps",
    "save_steps": 1,
    "learning_rate": 1e-2,
    "push_to_hub": True,
}
GRPO, PPO = (GRPOConfig, {"num_generations": 4}), (PPOConfig, {"mini_batch_size": 8})
RUNS = {
    "grpo": (*GRPO, {"hub_strategy": "end"}, None),
    "grpo-lora": (*GRPO, {"hub_strategy": "every_save"}, LoraConfig(r=2, target_modules="all-linear")),
    "ppo": (*PPO, {"hub_strategy": "checkpoint", "hub_always_push": True}, None),
    "ppo-lora": (*PPO, {"save_critic": False}, LoraConfig(r=2, target_modules="all-linear")),
}


def pushed(folder: Path, name: str, token: str):
    config_class, own, hub, adapters = RUNS[name]
    config = config_class(
        output_dir=str(folder / name), hub_model_id=f"tester/{name}", hub_token=token, **SETTINGS | own | hub
    )
    trainer = tiny_trainer(config, "tester/base", prompts=24, peft_config=adapters)
    trainer.train()
    trainer.push_to_hub(dataset_name="tester/prompts")
    return trainer


def same_logits(found, expected) -> bool:
    ids = torch.arange(3, 12)[None]
    with torch.no_grad():
        return torch.allclose(found.eval()(ids).logits, expected.eval()(ids).logits, atol=1e-6)


def main(folder: Path, token: str) -> None:
    make_policy().push_to_hub("tester/base", token=token)
    make_tokenizer().push_to_hub("tester/base", token=token)
    report = {}
    for name in RUNS:
        trainer = pushed(folder, name, token)
        loaded = AutoModelForCausalLM.from_pretrained(f"tester/{name}")
        AutoTokenizer.from_pretrained(f"tester/{name}")
        card = ModelCard.load(f"tester/{name}")
        report[name] = {"equal": same_logits(loaded, trainer.policy), "card": card.data.to_dict(), "text": card.text}
    critic = AutoModelForTokenClassification.from_pretrained("tester/ppo", subfolder="critic")
    report["critic_labels"] = critic.config.num_labels
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
