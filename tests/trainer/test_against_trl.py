# SPDX-License-Identifier: Apache-2.0
"""Loss and gradient of the first step against trl's GRPOTrainer on the same completions."""

import pytest
import torch
import trl
from datasets import Dataset
from tiny import make_policy, make_prompts, make_tokenizer, share_of_a

from minimind_hf.trainer.metrics import Metrics

# Where trl's cispo averages over tokens and its grpo over sequences, so do we here; neither divides by the std.
SETTINGS = [
    ("grpo", "sequence", {"epsilon": 0.2}),
    ("cispo", "token", {"epsilon_high": 5.0}),
]


def gradient(model) -> torch.Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


@pytest.mark.parametrize(("loss_type", "aggregation", "clip"), SETTINGS, ids=["grpo", "cispo"])
def test_first_step_equals_trl(make_trainer, tmp_path, loss_type, aggregation, clip):
    settings = {"loss_type": loss_type, "scale_rewards": "none", "beta": 0.0, **clip}
    ours = make_trainer(loss_aggregation=aggregation, **settings)
    prompts = [ours.train_dataset[i] for i in range(2)]
    experience = ours._collect(prompts, 4, seed=1, metrics=Metrics())
    (batch,) = ours._micro_batches(experience, Metrics())
    denominator = ours._loss_denominator([batch])
    loss = ours._loss(ours.model, batch, denominator, Metrics())
    loss.backward()

    peer = trl.GRPOTrainer(
        make_policy(),
        share_of_a,
        trl.GRPOConfig(
            output_dir=str(tmp_path / "peer"),
            use_cpu=True,
            bf16=False,
            report_to="none",
            gradient_checkpointing=False,
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=8,
            temperature=ours.args.temperature,
            **settings,
        ),
        train_dataset=Dataset.from_list(make_prompts(2)),
        processing_class=make_tokenizer(),
    )
    peer.current_gradient_accumulation_steps = 1
    rewards = experience.rewards.view(-1, 4)
    inputs = {name: batch[name] for name in ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")}
    inputs["advantages"] = (rewards - rewards.mean(dim=1, keepdim=True)).flatten()
    inputs["old_per_token_logps"] = batch["old_logps"]
    inputs["num_items_in_batch"] = batch["completion_mask"].sum()
    peer.model.train()
    peer_loss = peer.compute_loss(peer.model, inputs)
    peer_loss.backward()

    assert gradient(ours.model).abs().max() > 1e-3
    torch.testing.assert_close(loss, peer_loss, atol=1e-5, rtol=0)
    torch.testing.assert_close(gradient(ours.model), gradient(peer.model), atol=1e-5, rtol=1e-5)
