# SPDX-License-Identifier: Apache-2.0
"""Training on truncated sampling: policy, reference and old log-probabilities are over the sets that were kept."""

import numpy as np
import pytest
import torch
from naming import raises_naming
from tiny import GRPO, PPO, collected, make_policy, tiny_trainer

from minimind_hf import GRPOConfig, PPOConfig, RolloutEngine, TorchEngine
from minimind_hf.trainer.checkpoints.state import load_rollout_state, save_rollout_state
from minimind_hf.trainer.experience.micro_batch import part_of, select_rows

SAMPLING = {"top_p": 0.9, "top_k": 40, "min_p": 0.01}
CONFIGS = {"grpo": (GRPOConfig, GRPO), "ppo": (PPOConfig, PPO)}


class Forgetful(RolloutEngine):
    """Leaves the sets out, as an engine of old would."""

    def __init__(self):
        self.inner = TorchEngine()

    def sync_weights(self, model, version):
        self.inner.sync_weights(model, version)

    def generate(self, prompt_ids, num_generations, sampling):
        rollouts = self.inner.generate(prompt_ids, num_generations, sampling)
        for rollout in rollouts:
            rollout.kept = None
        return rollouts


@pytest.fixture
def make(tmp_path):
    def make(algorithm="grpo", engine=None, folder="run", **changes):
        config_class, settings = CONFIGS[algorithm]
        settings = settings | {"output_dir": str(tmp_path / folder)} | SAMPLING | changes
        return tiny_trainer(config_class(**settings), make_policy(), engine=engine)

    return make


def batches_of(trainer, **options):
    return trainer.micro_batches(collected(trainer, 2, **options))


@pytest.mark.parametrize("layout", ["shared_prompt", "padded"])
def test_policy_and_reference_are_scored_over_the_sets(make, layout):
    trainer = make(forward_layout=layout, beta=0.1)
    (batch,) = batches_of(trainer)
    own = batch.loss_mask.bool()
    with torch.no_grad():
        logps = trainer.policy_logps(batch)
        torch.testing.assert_close(logps[own], batch.old_logps[own], atol=1e-5, rtol=0)
        torch.testing.assert_close(batch.ref_logps[own], batch.old_logps[own], atol=1e-5, rtol=0)
        batch.kept = None  # over the whole vocabulary the ratio is the mass of the set: the error of scoring so
        whole = trainer.policy_logps(batch)
    assert (whole - batch.old_logps)[own].max() < 1e-5 and (whole - batch.old_logps)[own].mean() < -0.02


@pytest.mark.parametrize("correction", ["none", "truncate"])
@pytest.mark.parametrize("algorithm", CONFIGS)
def test_the_first_ratio_is_one(make, algorithm, correction):
    trainer = make(algorithm, rollout_correction=correction, max_steps=1)
    trainer.train()
    log = trainer.state.log_history[0]
    assert log["approx_kl"] == pytest.approx(0.0, abs=1e-9) and log["kl_ref"] == pytest.approx(0.0, abs=1e-9)
    assert log["sampling/k3"] == pytest.approx(0.0, abs=1e-9)
    assert 0 < log["entropy"] < np.log(SAMPLING["top_k"])


@pytest.mark.parametrize("settings", [{"top_p": 0.85, "top_k": 0, "min_p": None}, SAMPLING], ids=["top_p", "all"])
def test_a_checkpoint_within_a_rollout_goes_on_bit_for_bit(make, settings):
    shape = {"steps_per_generation": 2, "save_strategy": "steps", "save_steps": 1, "optim": "adamw_torch"} | settings
    whole = make(folder="whole", **shape)
    whole.train()
    resumed = make(folder="whole", **shape)
    resumed.train(resume_from_checkpoint=f"{resumed.args.output_dir}/checkpoint-1")
    for (name, one), other in zip(whole.model.named_parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other), name


def test_sets_go_with_their_rows(make, tmp_path):
    trainer = make()
    (batch,) = batches_of(trainer)
    assert [len(sets) for sets in batch.kept] == [len(ids) for ids in batch.completion_ids]
    for narrow in (select_rows(batch, [5, 2]), part_of(batch, [5, 2])):
        assert [sets is batch.kept[row] for sets, row in zip(narrow.kept, (5, 2), strict=True)] == [True, True]
    save_rollout_state(tmp_path, trainer.args, 1, [batch])
    (loaded,) = load_rollout_state(tmp_path, trainer.args)[1]
    for sets, saved in zip(loaded.kept, batch.kept, strict=True):
        for own, other in zip(vars(sets).values(), vars(saved).values(), strict=True):
            assert own.dtype == other.dtype and np.array_equal(own, other)


def test_parts_of_a_micro_batch_are_scored_as_the_whole(make):
    whole, in_parts = (make(folder=f"{budget}", max_tokens_per_microbatch=budget) for budget in (None, 24))
    for trainer in (whole, in_parts):
        trainer.train()
    for one, other in zip(whole.model.parameters(), in_parts.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_truncated_completions_that_are_masked_have_sets_too(make):
    trainer = make(mask_truncated_completions=True, max_completion_length=4, beta=0.1)
    trainer.train()
    assert all(np.isfinite(entry.get("kl_ref", 0.0)) for entry in trainer.state.log_history)


def test_without_truncation_nothing_is_kept(make):
    (batch,) = batches_of(make(top_p=1.0, top_k=None, min_p=0.0))
    assert batch.kept is None


def test_an_engine_without_sets_is_refused(make):
    trainer = make(engine=Forgetful())
    with raises_naming(ValueError, "Forgetful", "index 0", "top_k=40", "top_p=0.9", "min_p=0.01", "Rollout.kept"):
        trainer.train()
    make(engine=Forgetful(), top_p=1.0, top_k=0, min_p=None).train()
