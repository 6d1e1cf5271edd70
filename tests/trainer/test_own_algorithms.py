# SPDX-License-Identifier: Apache-2.0
"""Losses and estimators of the tables and of users, chosen by settings; what the card and run.json call them."""

import json
from dataclasses import dataclass, replace

import pytest
import torch
from tiny import collected, make_policy, make_prompts, make_tokenizer, share_of_a

from minimind_hf import GRPOConfig, PPOConfig, RLConfig, RLTrainer
from minimind_hf.algorithms import (
    ADVANTAGES,
    OBJECTIVES,
    aggregate,
    bounded_exp,
    cispo_token_loss,
    reinforce_baseline_advantages,
    rloo_advantages,
)

OWN = """
from minimind_hf.algorithms import Advantage, Objective, bounded_exp

def plain(inputs, settings):
    return -bounded_exp(inputs.log_ratio) * inputs.advantages

def twice(rewards, num_generations):
    return 2 * rewards

row = Objective(plain, label="Plain", paper="A paper", arxiv="2000.00001", aggregation="token")
number = 3
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The path of a module of a user."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_losses.py").write_text(OWN)
    return "own_losses.py"


@pytest.mark.parametrize(
    ("name", "estimate"), [("rloo", rloo_advantages), ("reinforce_baseline", reinforce_baseline_advantages)]
)
def test_an_estimator_of_the_table(make_trainer, name, estimate):
    trainer = make_trainer(advantage_estimator=name)
    assert trainer.args.scale_rewards == "none"
    experience = collected(trainer)
    torch.testing.assert_close(experience.advantages, estimate(experience.rewards, 4))
    assert experience.advantages.abs().max() > 0
    trainer.train()


def test_a_loss_of_the_users_own(make_trainer, own):
    trainer = make_trainer(loss_type=f"{own}:plain", beta=0.0)
    assert trainer.args.loss_aggregation == "sequence"
    (batch,) = trainer.micro_batches(collected(trainer, 2))
    batch.old_logps = batch.old_logps + 0.1
    denominator = trainer.loss_denominator([batch])
    loss = trainer.loss(trainer.model, batch, denominator, trainer.metrics)
    ratio = bounded_exp(trainer.token_scores(trainer.model, batch).logps - batch.old_logps)
    expected = aggregate(-ratio * batch.advantages[:, None], batch.loss_mask, "sequence", denominator)
    torch.testing.assert_close(loss, expected)
    trainer.train()
    assert "ratio_mean" in trainer.state.log_history[0]
    assert "clip_ratio/region_mean" not in trainer.state.log_history[0]  # it says nothing of a clip


def test_a_row_of_the_users_own_brings_its_aggregation_and_paper(own, tmp_path):
    config = GRPOConfig(output_dir=str(tmp_path), use_cpu=True, loss_type=f"{own}:row")
    assert config.loss_aggregation == "token"
    assert (config.algorithm.label, config.algorithm.arxiv) == ("Plain", "2000.00001")


def test_an_estimator_of_the_users_own(make_trainer, own):
    trainer = make_trainer(advantage_estimator=f"{own}:twice")
    experience = collected(trainer)
    torch.testing.assert_close(experience.advantages, 2 * experience.rewards)


@pytest.mark.parametrize("setting", ["loss_type", "advantage_estimator"])
@pytest.mark.parametrize("value", ["nothing", "missing.py:name", "own_losses.py:missing", "own_losses.py:number"])
def test_what_cannot_be_used_is_named(setting, value, own, tmp_path):
    with pytest.raises(ValueError) as caught:
        GRPOConfig(output_dir=str(tmp_path), use_cpu=True, **{setting: value})
    assert setting in str(caught.value) and value in str(caught.value)


def test_a_scale_that_the_estimator_does_not_take_is_refused(tmp_path):
    with pytest.raises(ValueError) as caught:
        GRPOConfig(output_dir=str(tmp_path), use_cpu=True, advantage_estimator="rloo", scale_rewards="batch")
    assert "scale_rewards='batch'" in str(caught.value) and "'rloo'" in str(caught.value)


@pytest.mark.parametrize("loss_type", OBJECTIVES)
@pytest.mark.parametrize("estimator", ADVANTAGES)
def test_every_row_has_a_name_for_the_card(loss_type, estimator, tmp_path):
    config = GRPOConfig(output_dir=str(tmp_path), use_cpu=True, loss_type=loss_type, advantage_estimator=estimator)
    label = config.algorithm.label
    assert label.startswith(OBJECTIVES[loss_type].label)
    assert (ADVANTAGES[estimator].label in label) == (estimator != "group")


def test_ppo_has_its_own_name(tmp_path):
    assert PPOConfig(output_dir=str(tmp_path), use_cpu=True).algorithm.label == "PPO"


def test_a_new_row_of_the_table_is_all_that_a_loss_needs(make_trainer, monkeypatch):
    halved = replace(OBJECTIVES["cispo"], label="Halved", token_loss=lambda i, s: 0.5 * cispo(i))
    monkeypatch.setitem(OBJECTIVES, "halved", halved)
    whole, half = (make_trainer(loss_type=name, beta=0.0) for name in ("cispo", "halved"))
    losses = []
    for trainer in (whole, half):
        (batch,) = trainer.micro_batches(collected(trainer, 2))
        losses.append(trainer.loss(trainer.model, batch, trainer.loss_denominator([batch]), trainer.metrics))
    torch.testing.assert_close(losses[1], 0.5 * losses[0])
    assert half.args.algorithm.label == "Halved"


def cispo(inputs):
    return cispo_token_loss(inputs.logps, inputs.old_logps, inputs.advantages)


# A whole algorithm


@dataclass
class BestConfig(RLConfig):
    per_device_train_batch_size: int = 8


class BestTrainer(RLTrainer):
    """Imitates what had an above-average reward."""

    config_class = BestConfig

    def add_advantages(self, experience):
        experience.advantages = self.over_all(experience.rewards, lambda r: (r > r.nanmean()).to(r))

    def loss(self, model, batch, denominator, metrics):
        logps = self.token_scores(model, batch).logps
        return aggregate(-batch.advantages[:, None] * logps, batch.loss_mask, "sequence", denominator)


def best(folder, **changes) -> BestTrainer:
    settings = {"use_cpu": True, "report_to": "none", "disable_tqdm": True, "save_steps": 1, "max_steps": 2}
    settings |= {"num_generations": 4, "max_completion_length": 8, "learning_rate": 0.1, "optim": "sgd"}
    return BestTrainer(
        make_policy(),
        share_of_a,
        BestConfig(output_dir=str(folder), **settings | changes),
        train_dataset=make_prompts(12),
        eval_dataset=make_prompts(3),
        processing_class=make_tokenizer(),
    )


def test_a_subclass_trains_resumes_evaluates_and_says_its_own_name(tmp_path):
    straight = best(tmp_path / "run")
    straight.train()
    assert json.loads((tmp_path / "run" / "run.json").read_text())["algorithm"] == "Best"
    straight.save_model()
    assert "trained by Best." in (tmp_path / "run" / "README.md").read_text()
    assert straight.evaluate()["eval_loss"] != 0
    resumed = best(tmp_path / "run")
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-1"))
    for one, other in zip(straight.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert any(
        not torch.equal(one, other)
        for one, other in zip(straight.model.parameters(), make_policy().parameters(), strict=True)
    )
