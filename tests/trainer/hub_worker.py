# SPDX-License-Identifier: Apache-2.0
"""Trains, pushes to the Hub that HF_ENDPOINT names, and loads back from it; started by test_hub.py."""

import json
import sys
from pathlib import Path

import torch
from huggingface_hub import ModelCard
from peft import LoraConfig
from tiny import ScriptedEngine, make_policy, make_prompts, make_tokenizer, share_of_a
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification, AutoTokenizer

from minimind_hf import GRPOConfig, GRPOTrainer, PPOConfig, PPOTrainer

SETTINGS = {
    "use_cpu": True,
    "report_to": "none",
    "disable_tqdm": True,
    "max_steps": 2,
    "save_strategy": "steps",
    "save_steps": 1,
    "learning_rate": 1e-2,
    "max_completion_length": 8,
    "per_device_train_batch_size": 8,
    "push_to_hub": True,
}
GRPO, PPO = (GRPOTrainer, GRPOConfig, {"num_generations": 4}), (PPOTrainer, PPOConfig, {"mini_batch_size": 8})
RUNS = {
    "grpo": (*GRPO, {"hub_strategy": "end"}, None),
    "grpo-lora": (*GRPO, {"hub_strategy": "every_save"}, LoraConfig(r=2, target_modules="all-linear")),
    "ppo": (*PPO, {"hub_strategy": "checkpoint", "hub_always_push": True}, None),
    "ppo-lora": (*PPO, {"save_critic": False}, LoraConfig(r=2, target_modules="all-linear")),
}


def pushed(folder: Path, name: str, token: str):
    trainer_class, config_class, own, hub, adapters = RUNS[name]
    config = config_class(
        output_dir=str(folder / name), hub_model_id=f"tester/{name}", hub_token=token, **SETTINGS | own | hub
    )
    trainer = trainer_class(
        "tester/base",
        share_of_a,
        config,
        train_dataset=make_prompts(24),
        processing_class=make_tokenizer(),
        peft_config=adapters,
        rollout_engine=ScriptedEngine(config.temperature),
    )
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
