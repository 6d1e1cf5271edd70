# SPDX-License-Identifier: Apache-2.0
"""`defaults="trl"`: trl's own defaults for what was not passed, and the message to scripts written for trl."""

import copy
import dataclasses
import logging
import pickle
import warnings

import pytest
import trl

from minimind_hf import GRPOConfig, PPOConfig
from minimind_hf.trainer.settings import trl_defaults
from minimind_hf.trainer.settings.trl_fields import fields_without_effect, unsupported_fields

FOLLOWING = ("generation_batch_size", "steps_per_generation")  # from the batch sizes


def made(**settings) -> GRPOConfig:
    return GRPOConfig("run", use_cpu=True, **settings)


def value(config, name):
    found = getattr(config, name)
    return getattr(found, "value", found)


def test_every_default_is_trls():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # trl sets a deprecated field
        theirs = trl.GRPOConfig("run", use_cpu=True)
    ours = made(defaults="trl")
    left_out = {*unsupported_fields(GRPOConfig), *fields_without_effect(GRPOConfig), *FOLLOWING, "logging_dir"}
    names = [each.name for each in dataclasses.fields(trl.GRPOConfig) if each.name not in left_out]
    assert {name: value(ours, name) for name in names} == {name: value(theirs, name) for name in names}
    assert ours.thinking_ratio == 0 and ours.completions_per_rollout == 8


def test_without_it_nothing_changes():
    for defaults in (None, "minimind"):
        config = made(defaults=defaults)
        assert (config.loss_type, config.beta, config.temperature, config.bf16) == ("cispo", 0.1, 0.8, False)


@pytest.mark.parametrize(
    "passed",
    [
        {"temperature": 0.8},  # the default here, passed on purpose
        {"beta": 0.1, "loss_type": "cispo", "learning_rate": 3e-7},
        {"bf16": False},
        {"fp16": False},
        {"activation_checkpointing": False},
        {"thinking_ratio": 0.9},
        {"num_generations": 4},
        {"lr_scheduler_type": "cosine_with_min_lr"},
    ],
)
def test_what_is_passed_wins_whatever_its_value(passed):
    config = made(defaults="trl", **passed)
    assert {name: value(config, name) for name in passed} == passed
    assert config.max_completion_length == 512


def test_one_setting_under_two_names_and_the_other_precision():
    assert not made(defaults="trl", gradient_checkpointing=False).activation_checkpointing
    assert "bf16" in trl_defaults.trl_defaults(GRPOConfig) and trl_defaults.trl_defaults(GRPOConfig)["bf16"]
    assert not trl_defaults.trl_defaults(GRPOConfig, fp16=True)["bf16"]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda config: pickle.loads(pickle.dumps(config))])
def test_later_changes_and_copies_stay(copied):
    config = copied(made(defaults="trl", beta=0.1))
    config.temperature = 0.8
    config.check_again()
    assert (config.temperature, config.beta, config.learning_rate) == (0.8, 0.1, 1e-6)
    assert config.passed == ("output_dir", "use_cpu", "defaults", "beta")


def test_other_names_are_refused_and_ppo_has_none():
    with pytest.raises(ValueError, match="defaults"):
        made(defaults="verl")
    assert "defaults" not in PPOConfig.__dataclass_fields__  # trl's PPO counts and names its batches otherwise


@pytest.fixture
def said(monkeypatch) -> list[str]:
    texts = []
    logger = logging.getLogger(trl_defaults.__name__)
    monkeypatch.setattr(logger, "warning_once", texts.append)
    return texts


@pytest.mark.parametrize(
    "settings", [{"scale_rewards": "group"}, {"loss_type": "dapo"}, {"use_vllm": False}, {"num_iterations": 2}]
)
def test_settings_like_those_of_a_script_for_trl_are_told_what_differs(said, settings):
    made(beta=0.0, **settings).check_again()
    (text,) = said
    assert next(iter(settings)) in text
    for name, ours, theirs in (("temperature", 0.8, 1.0), ("learning_rate", 3e-07, 1e-06), ("thinking_ratio", 0.9, 0)):
        assert f"{name} {ours!r} (trl: {theirs!r}" in text
    assert "beta" not in text and "defaults='trl'" in text
    assert ("loss_type 'cispo'" in text) == ("loss_type" not in settings)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_completion_length": 512, "temperature": 1.0, "reward_weights": [1.0]},
        {"loss_type": "grpo", "epsilon_high": 0.3},
        {"scale_rewards": "group", "defaults": "minimind"},
        {"scale_rewards": "group", "defaults": "trl"},
    ],
)
def test_others_are_told_nothing(said, settings):
    made(**settings).check_again()
    assert said == []


def test_a_script_that_sets_all_of_them_is_told_nothing(said):
    made(scale_rewards="group", **trl_defaults.trl_defaults(GRPOConfig)).check_again()
    assert said == []
