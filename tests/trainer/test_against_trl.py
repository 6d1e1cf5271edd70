# SPDX-License-Identifier: Apache-2.0
"""Loss and gradient of the first step against trl's GRPOTrainer on the same completions."""

import pytest
import torch
import trl
from datasets import Dataset
from tiny import collected, make_policy, make_prompts, make_tokenizer, share_of_a

from minimind_hf.trainer.metrics import Metrics

# trl's cispo averages over tokens, which ours does when told so; neither divides advantages by the std here.
SETTINGS = {
    "grpo": {"loss_type": "grpo", "epsilon": 0.2},
    "cispo": {"loss_type": "cispo", "epsilon_high": 5.0},
    "dr_grpo": {"loss_type": "dr_grpo"},
    "dapo": {"loss_type": "dapo", "epsilon_high": 0.28, "delta": 1.5},
    "bnpo": {"loss_type": "bnpo"},
    "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
    "uncertain tokens": {"loss_type": "dapo", "top_entropy_quantile": 0.3},
    "entropy": {"loss_type": "grpo", "entropy_coef": 0.5},
    "uncertain tokens' entropy": {"loss_type": "bnpo", "entropy_coef": 0.5, "top_entropy_quantile": 0.3},
}


def gradient(model) -> torch.Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_first_step_equals_trl(make_trainer, tmp_path, settings):
    settings = {"scale_rewards": "none", "beta": 0.0, **settings}
    aggregation = {"loss_aggregation": "token"} if settings["loss_type"] == "cispo" else {}
    ours = make_trainer(**aggregation, **settings)
    experience = collected(ours, 2)
    (batch,) = ours.micro_batches(experience)
    # As if sampled by a policy that was a little different, so that the ratio is not 1 everywhere.
    noise = torch.randn(batch.old_logps.shape, generator=torch.Generator().manual_seed(0))
    batch.old_logps = batch.old_logps + 0.2 * noise
    denominator = ours.loss_denominator([batch])
    ours._step_tokens = batch.loss_mask.sum()
    ours.current_gradient_accumulation_steps = 1
    ours.model.train()
    loss = ours.loss(ours.model, batch, denominator, Metrics())
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
    names = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
    inputs = dict(zip(names, batch.padded(), strict=True))
    inputs["advantages"] = (rewards - rewards.mean(dim=1, keepdim=True)).flatten()
    inputs["old_per_token_logps"] = batch.old_logps
    inputs["num_items_in_batch"] = torch.tensor(sum(map(len, batch.completion_ids)))
    peer.model.train()
    peer_loss = peer.compute_loss(peer.model, inputs)
    peer_loss.backward()

    assert gradient(ours.model).abs().max() > 1e-3
    torch.testing.assert_close(loss, peer_loss, atol=1e-5, rtol=0)
    torch.testing.assert_close(gradient(ours.model), gradient(peer.model), atol=2e-5, rtol=1e-4)
