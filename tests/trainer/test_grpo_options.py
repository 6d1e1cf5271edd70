# SPDX-License-Identifier: Apache-2.0
"""What GRPO can do besides: a reference that follows, several objectives, uncertain tokens, notes of rewards."""

import json
from pathlib import Path

import pytest
import torch
from naming import raises_naming
from peft import LoraConfig, get_peft_model
from tiny import ScriptedEngine, collected, make_policy, make_prompts, make_tokenizer, share_of_a, without_ties

from minimind_hf import GRPOTrainer
from minimind_hf.algorithms import decoupled_advantages
from minimind_hf.rewards import RewardError
from minimind_hf.trainer.metrics import Metrics


def flat(model) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def logged(trainer, name) -> list[float]:
    return [entry[name] for entry in trainer.state.log_history if "loss" in entry]


def test_reference_follows_the_policy(make_trainer):
    trainer = make_trainer(sync_ref_model=True, ref_model_mixup_alpha=0.25, ref_model_sync_steps=2, max_steps=3)
    start = flat(trainer.reference.model)
    after_two = []

    class Remember(type(trainer._reference_sync).__mro__[-2]):
        def on_step_end(self, args, state, control, model, **kwargs):
            if state.global_step == 2:
                after_two.append(flat(model))

    trainer.callback_handler.callbacks.insert(0, Remember())
    trainer.train()
    expected = 0.25 * after_two[0] + 0.75 * start
    torch.testing.assert_close(flat(trainer.reference.model), expected, atol=1e-6, rtol=0)
    assert (expected - start).abs().max() > 1e-4


def test_a_run_with_such_a_reference_resumes_exactly(make_trainer, tmp_path):
    settings = {
        "sync_ref_model": True, "ref_model_sync_steps": 1, "max_steps": 4, "save_strategy": "steps", "save_steps": 2,
        "beta": 0.5,
    }  # fmt: skip
    whole = make_trainer(output_dir=str(tmp_path / "whole"), **settings)
    whole.train()
    resumed = make_trainer(output_dir=str(tmp_path / "resumed"), **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert torch.equal(flat(resumed.model), flat(whole.model))
    assert torch.equal(flat(resumed.reference.model), flat(whole.reference.model))
    (tmp_path / "whole" / "checkpoint-2" / "reference.pt").unlink()
    with raises_naming(FileNotFoundError, tmp_path / "whole" / "checkpoint-2" / "reference.pt", "sync_ref_model"):
        make_trainer(output_dir=str(tmp_path / "again"), **settings).train(
            resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2")
        )


def test_adapters_have_no_reference_that_could_follow(make_config):
    with raises_naming(ValueError, "sync_ref_model=True", "adapters", "sync_ref_model=False"):
        GRPOTrainer(
            get_peft_model(make_policy(), LoraConfig(r=4, target_modules=["q_proj"])),
            share_of_a,
            make_config(sync_ref_model=True),
            make_prompts(8),
            processing_class=make_tokenizer(),
        )


def loud(completion_ids, **kwargs):
    return [1000.0 * (sum(ids) % 7) for ids in completion_ids]


def test_each_reward_is_normalized_first(make_trainer):
    trainer = make_trainer(
        reward=[share_of_a, loud], multi_objective_aggregation="normalize_then_sum", reward_weights=[1.0, 0.5]
    )
    experience = collected(trainer, count=3)
    expected = decoupled_advantages(experience.signals, [1.0, 0.5], 4)
    torch.testing.assert_close(experience.advantages, expected)
    # The quiet reward, though a thousand times smaller, has twice the weight.
    agreement = torch.corrcoef(torch.stack([experience.advantages, experience.signals[:, 0]]))[0, 1]
    assert agreement > 0.5
    trainer.train()


@pytest.mark.parametrize(
    "settings",
    [
        {"loss_type": "dr_grpo"},
        {"loss_type": "dapo", "delta": 1.5, "num_iterations": 2},
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "num_iterations": 2},
        {"entropy_coef": 0.5},
        {"use_bias_correction_kl": True, "num_iterations": 2},
        {"off_policy_mask_threshold": 0.01, "num_iterations": 2},
    ],
    ids=lambda settings: "-".join(settings),
)
def test_batch_and_accumulation_do_not_change_two_sgd_steps(make_trainer, settings):
    def trained(size, steps):
        trainer = make_trainer(per_device_train_batch_size=size, gradient_accumulation_steps=steps, **settings)
        trainer.train()
        return flat(trainer.model)

    whole = trained(8, 1)
    assert (whole - flat(make_policy())).abs().max() > 1e-3
    torch.testing.assert_close(trained(2, 4), whole, atol=3e-6, rtol=0)


@pytest.mark.parametrize("settings", [{"loss_type": "bnpo"}, {"entropy_coef": 0.5}], ids=["bnpo", "entropy"])
def test_parts_by_tokens_do_not_change_two_sgd_steps(make_trainer, settings):
    def trained(**changes):
        trainer = make_trainer(per_device_train_batch_size=4, gradient_accumulation_steps=2, **settings, **changes)
        trainer.train()
        return flat(trainer.model)

    torch.testing.assert_close(trained(max_tokens_per_microbatch=20), trained(), atol=1e-6, rtol=0)


def test_bnpo_is_the_mean_of_the_means_of_micro_batches(make_trainer):
    trainer = make_trainer(loss_type="bnpo", beta=0.0, per_device_train_batch_size=4, gradient_accumulation_steps=2)
    experience = collected(trainer, count=2)
    batches = trainer.micro_batches(experience)
    assert trainer.loss_denominator(batches) == 2
    loss = sum(trainer.loss(trainer.model, batch, torch.tensor(2), Metrics()) for batch in batches)
    means = [(-batch.advantages[:, None] * batch.loss_mask).sum() / batch.loss_mask.sum() for batch in batches]
    assert loss.item() == pytest.approx(sum(means).item() / 2, abs=1e-5)


def test_an_entropy_bonus_widens_the_policy(make_trainer):
    def last_entropy(coefficient):
        trainer = make_trainer(
            make_policy(scale=8.0),
            reward=without_ties,  # without a bonus, completions without advantage would not be computed
            scripted=False,
            beta=0.0,
            entropy_coef=coefficient,
            optim="adamw_torch",
            learning_rate=3e-3,
            max_steps=25,
            per_device_train_batch_size=16,
        )
        trainer.train()
        return logged(trainer, "entropy")

    plain, with_bonus = last_entropy(0.0), last_entropy(1.0)
    assert with_bonus[0] == pytest.approx(plain[0], abs=1e-5)
    assert with_bonus[-1] > plain[-1] + 0.3


def test_best_model_by_a_metric_of_evaluation(make_config):
    trainer = GRPOTrainer(
        make_policy(),
        share_of_a,
        make_config(
            eval_strategy="steps",
            eval_steps=1,
            save_strategy="steps",
            save_steps=1,
            max_steps=3,
            metric_for_best_model="eval_reward",
            greater_is_better=True,
            load_best_model_at_end=True,
            num_generations_eval=2,
        ),
        train_dataset=make_prompts(8),
        eval_dataset=make_prompts(6, seed=9),
        processing_class=make_tokenizer(),
        rollout_engine=ScriptedEngine(0.8),
    )
    before = trainer.evaluate()["eval_reward"]
    trainer.train()
    rewards = [entry["eval_reward"] for entry in trainer.state.log_history if "eval_reward" in entry]
    assert rewards[0] == before
    assert trainer.state.best_metric == max(rewards[-3:])
    assert Path(trainer.state.best_model_checkpoint).name.startswith("checkpoint-")


def test_rewards_note_metrics_and_columns_as_in_trl(make_trainer):
    def noting(completions, log_metric, log_extra, **kwargs):
        log_metric("longest", max(len(completion) for completion in completions))
        log_extra("upper", [completion.upper() for completion in completions])
        return [float(len(completion)) for completion in completions]

    trainer = make_trainer(reward=noting, log_completions=True, max_steps=1)
    trainer.train()
    (path,) = Path(trainer.args.output_dir, "completions").glob("*.jsonl")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert all(row["upper"] == row["completion"].upper() for row in rows)
    assert logged(trainer, "longest") == [max(len(row["completion"]) for row in rows)]


def test_a_column_of_another_length_is_refused(make_trainer):
    def noting(completions, log_extra, **kwargs):
        log_extra("short", [1])
        return [0.0] * len(completions)

    with raises_naming(RewardError, "'noting'", "log_extra('short'", 1, 8):
        make_trainer(reward=noting).train()


@pytest.mark.parametrize(
    ("note", "named"),
    [
        (lambda log_metric, _: log_metric("loss", 99.0), ["log_metric('loss'", "'my_loss'"]),
        (
            lambda log_metric, _: log_metric("eval_rewards/noting/mean", 1),
            ["log_metric('eval_rewards/noting/mean'", "'my_eval_rewards/noting/mean'"],
        ),
        (lambda _, log_extra: log_extra("Prompt", [0] * 8), ["log_extra('Prompt'", "'my_Prompt'"]),
        (lambda _, log_extra: log_extra("noting", [0] * 8), ["log_extra('noting'", "'my_noting'"]),
    ],
)
def test_names_of_the_trainer_are_refused(make_trainer, note, named):
    def noting(completions, log_metric, log_extra, **kwargs):
        note(log_metric, log_extra)
        return [0.0] * len(completions)

    with raises_naming(RewardError, "'noting'", *named):
        make_trainer(reward=noting).train()


def test_a_sum_of_rewards_that_float32_cannot_hold_is_refused(make_trainer):
    def huge(completions, **kwargs):
        return [3e38] * len(completions)

    with raises_naming(RewardError, "sample 0", "'huge'", "'huge_2'", "inf", "reward_weights"):
        make_trainer(reward=[huge, huge]).train()
    with raises_naming(RewardError, "sample 0", "'huge'", "1e+18", "reward_weights"):
        make_trainer(reward=huge, scale_rewards="none").train()


def test_advantages_of_large_rewards_are_those_of_small_ones(make_trainer):
    def large(completion_ids, **kwargs):
        return [2.0**80 * reward for reward in share_of_a(completion_ids)]

    losses = [make_trainer(reward=reward).train().training_loss for reward in (share_of_a, large)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)  # the eps that is added to the std matters no more
    assert losses[1] != 0


class Talkative(ScriptedEngine):
    """Its tools answer at length."""

    def _group(self, prompt, count):
        turns = super()._group(prompt, count)
        for turn in turns:
            turn.loss_mask = [1] * len(turn.completion_ids) + [0] * 40
            turn.completion_ids, turn.logprobs = turn.completion_ids + [5] * 40, turn.logprobs + [0.0] * 40
        return turns


def test_an_engine_that_does_not_end_where_it_was_told(make_trainer):
    with raises_naming(ValueError, "Talkative", "index 0", 40, "max_position_embeddings"):
        make_trainer(make_policy(max_position_embeddings=40), engine=Talkative(0.8)).train()
    with raises_naming(ValueError, "ScriptedEngine", "max_completion_length=2"):
        make_trainer(max_completion_length=2).train()
