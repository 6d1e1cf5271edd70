# SPDX-License-Identifier: Apache-2.0
"""Settings that are changed after they were made are checked again; nothing of a run's end is lost from its log."""

from pathlib import Path

import pytest
import torch
from naming import raises_naming
from tiny import collected, make_policy, share_of_a

from minimind_hf import GRPOConfig
from minimind_hf.reports.record import read_lines
from minimind_hf.trainer.logs.run_log import changed_settings

WRONG = {
    "top_p": 1.5,
    "loss_type": "sapo_of_mine",
    "max_completion_length": None,
    "temperature": 0,
    "num_generations": 3,
    "rollout_correction_cap": 0.5,
    "save_steps": 0,
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("late", [False, True], ids=["before the trainer", "after it"])
def test_a_wrong_value_is_refused_whenever_it_was_set(make_config, make_trainer, name, late):
    value = WRONG[name]
    config = make_config(save_strategy="steps")
    if not late:
        setattr(config, name, value)
        with raises_naming((ValueError, TypeError), name, value):
            make_trainer(config=config)
        return
    trainer = make_trainer(config=config)
    setattr(trainer.args, name, value)
    with raises_naming((ValueError, TypeError), name, value):
        trainer.train()


def test_what_follows_from_a_setting_follows_its_change(make_config):
    config = make_config()
    assert (config.generation_batch_size, config.loss_aggregation, config.scale_rewards) == (8, "sequence", "group")
    config.per_device_train_batch_size, config.loss_type = 16, "dr_grpo"
    config.gradient_accumulation_steps = 2
    config.check_again()
    assert (config.steps_per_generation, config.generation_batch_size) == (2, 32)
    assert config.loss_aggregation == "constant"
    config.loss_aggregation = "token"  # one's own choice is not settled by anything
    config.loss_type = "grpo"
    config.check_again()
    assert config.loss_aggregation == "token"


def test_a_changed_batch_is_trained(make_trainer):
    trainer = make_trainer(max_steps=1)
    trainer.args.per_device_train_batch_size = 16
    trainer.train()
    assert trainer.args.prompts_per_rollout == 4 and trainer.state.global_step == 1


def test_a_penalty_that_comes_too_late_is_refused(make_trainer):
    trainer = make_trainer(beta=0.0)
    trainer.args.beta = 0.1
    with raises_naming(ValueError, "beta", "kl_coef", 0.1):
        trainer.train()


def test_a_batch_of_trls_default_is_told_of_it(tmp_path):
    with raises_naming(ValueError, "trl", "num_generations=8"):
        GRPOConfig(output_dir=str(tmp_path), use_cpu=True, per_device_train_batch_size=8)


def test_an_output_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with raises_naming(ValueError, "output_dir", tmp_path / "file"):
        GRPOConfig(output_dir=str(tmp_path / "file"), use_cpu=True)


@pytest.mark.parametrize("name", ["max_steps", "seed", "warmup_steps", "save_steps"])
def test_null_is_refused_where_a_number_is_needed(make_config, name):
    with raises_naming((ValueError, TypeError), name):
        make_config(**{"save_strategy": "steps", name: None})


@pytest.mark.parametrize(("logging_steps", "logged"), [(100, [5]), (2, [2, 4, 5]), (1, [1, 2, 3, 4, 5])])
def test_the_last_steps_are_logged(make_trainer, logging_steps, logged):
    trainer = make_trainer(max_steps=5, logging_steps=logging_steps)
    trainer.train()
    training = [log for log in trainer.state.log_history if "loss" in log]  # not the summary at the end
    assert [log["step"] for log in training if "reward" in log] == logged


def test_logs_that_are_off_stay_off(make_trainer):
    trainer = make_trainer(max_steps=2, logging_strategy="no")
    trainer.train()
    assert not [log for log in trainer.state.log_history if "reward" in log]


def test_the_latest_samples_are_there_after_a_resume_without_a_rollout(make_trainer):
    settings = {"max_steps": 3, "num_iterations": 3, "save_strategy": "steps", "save_steps": 1}
    first = make_trainer(**settings)
    first.train()
    late = Path(first.args.output_dir) / "samples" / "late.jsonl"
    assert read_lines(late)[0]["step"] == 1
    again = make_trainer(**settings)
    again.train(resume_from_checkpoint=f"{first.args.output_dir}/checkpoint-1")
    assert read_lines(late)[0]["step"] == 1 and again.rollouts_made == 1


def test_a_checkpoint_of_another_model_is_refused_by_what_differs(make_trainer):
    first = make_trainer(max_steps=1, save_strategy="steps", save_steps=1)
    first.train()
    checkpoint = Path(first.args.output_dir) / "checkpoint-1"
    deeper = make_trainer(make_policy(num_hidden_layers=3))
    with raises_naming(ValueError, "num_hidden_layers", 3, 2):
        deeper.train(resume_from_checkpoint=str(checkpoint))
    (checkpoint / "critic").mkdir()
    with raises_naming(ValueError, checkpoint, "critic", "PPO"):
        make_trainer().train(resume_from_checkpoint=str(checkpoint))


def test_changed_weights_of_rewards_are_followed(make_trainer):
    def long(completion_ids, **columns):
        return [float(len(ids)) for ids in completion_ids]

    trainer = make_trainer(reward=[share_of_a, long], eval_strategy="no")
    trainer.args.reward_weights = [0.0, 3.0]
    experience = collected(trainer)
    assert torch.equal(experience.rewards, 3 * experience.signals[:, 1])
    trainer.args.reward_weights = [1.0]
    with raises_naming(ValueError, "reward_weights", 1, 2):
        trainer.train()


def test_the_record_lists_what_the_user_changed(make_config):
    config = make_config(learning_rate=0.5, optim="adamw_torch", save_strategy="no", hub_token="s3cret")
    changed = changed_settings(config)
    given = {"output_dir", "use_cpu", "save_strategy", "disable_tqdm", "max_steps", "num_generations"}
    given |= {"per_device_train_batch_size", "max_completion_length", "learning_rate", "lr_scheduler_type"}
    given |= {"max_grad_norm", "hub_token"} | ({"optim"} if GRPOConfig.optim != "adamw_torch" else set())
    assert set(changed) == given and "s3cret" not in str(changed)
    config.temperature, config.per_device_train_batch_size = 0.7, 16
    config.check_again()
    changed = changed_settings(config)
    assert set(changed) == given | {"temperature"} and changed["per_device_train_batch_size"] == 16
    assert "generation_batch_size" not in changed and "lr_scheduler_kwargs" not in changed
    assert set(changed_settings(GRPOConfig(output_dir="x"))) == {"output_dir"}
