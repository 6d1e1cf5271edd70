# SPDX-License-Identifier: Apache-2.0
"""trl's GRPOConfig, field by field: supported, or refused by name with what to use instead."""

import dataclasses

import pytest
import trl
from naming import raises_naming
from tiny import ScriptedEngine, make_policy, make_prompts, make_tokenizer, share_of_a

from minimind_hf import GRPOConfig, GRPOTrainer, PPOConfig
from minimind_hf.trainer.settings.trl_fields import UNSUPPORTED_OBJECTS, UnsupportedTrlFields, what_instead

TRL = {field.name: field for field in dataclasses.fields(trl.GRPOConfig)}
OURS = {field.name: field for field in dataclasses.fields(GRPOConfig)}
UNSUPPORTED = {field.name: field for field in dataclasses.fields(UnsupportedTrlFields)}


def test_every_field_of_trl_is_there():
    assert TRL.keys() <= OURS.keys()


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_an_unsupported_field_takes_the_default_of_trl(name):
    assert name in TRL, "trl has no such field any more"
    assert UNSUPPORTED[name].default == TRL[name].default
    assert what_instead(UNSUPPORTED[name]).endswith(".")


def another_value(value):
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int | float) else "else"


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_an_unsupported_field_refuses_every_other_value(name, tmp_path):
    value = another_value(UNSUPPORTED[name].default)
    if name == "transformers_continuous_batching_config":
        value = {"max_batch_tokens": 1}
    with pytest.raises(ValueError) as error:
        GRPOConfig(output_dir=str(tmp_path), use_cpu=True, **{name: value})
    assert str(error.value).startswith(f"{name}={value!r} is a setting of trl that is not supported here.")
    assert what_instead(UNSUPPORTED[name]) in str(error.value)


def test_a_config_that_spells_out_the_defaults_of_trl_is_taken(tmp_path):
    """Where trl's default cannot be had, as max_grad_norm can, it is refused above; all the others together pass."""
    own = {name for name in TRL if name not in {field.name for field in dataclasses.fields(PPOConfig)}}
    defaults = {
        name: TRL[name].default
        for name in own
        if TRL[name].default is not dataclasses.MISSING and name not in ("beta", "loss_type")
    }
    config = GRPOConfig(
        output_dir=str(tmp_path), use_cpu=True, per_device_train_batch_size=8, beta=0.0, loss_type="dapo",
        temperature=1.0, num_generations=8, max_completion_length=512, use_bias_correction_kl=True,
        **{name: value for name, value in defaults.items() if name != "use_bias_correction_kl"},
    )  # fmt: skip
    assert (config.loss_aggregation, config.upper_clip) == ("token", 0.2)


@pytest.mark.parametrize("name", UNSUPPORTED_OBJECTS)
def test_an_unsupported_argument_of_the_trainer_is_refused_by_name(make_config, name):
    with raises_naming(ValueError, name, "GRPOTrainer", "rollout_engine"):
        GRPOTrainer(make_policy(), share_of_a, make_config(), make_prompts(8), **{name: [print]})


def test_a_config_of_trl_is_refused_by_name(tmp_path):
    args = trl.GRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False)
    with raises_naming(ValueError, "args", "trl.GRPOConfig", "minimind_hf.GRPOConfig"):
        GRPOTrainer(make_policy(), share_of_a, args, make_prompts(8), processing_class=make_tokenizer())


def test_quantization_config_goes_to_where_the_model_is_loaded(make_config):
    arguments = (share_of_a, make_config(), make_prompts(8))
    with raises_naming(ValueError, "quantization_config", "model"):
        GRPOTrainer(make_policy(), *arguments, processing_class=make_tokenizer(), quantization_config=object())
    config = make_config(model_init_kwargs={"quantization_config": None})
    with raises_naming(ValueError, "quantization_config", "model_init_kwargs"):
        GRPOTrainer("name", share_of_a, config, make_prompts(8), quantization_config=object())


def test_eos_of_generation_kwargs_ends_completions(make_trainer):
    trainer = make_trainer(scripted=False, generation_kwargs={"eos_token_id": list(range(3, 259))})
    assert trainer._rollouts.eos_token_ids == tuple(range(3, 259))
    trainer.train()
    assert trainer.state.log_history[0]["completions/max_length"] <= 2


def test_trainer_arguments_stand_where_trl_has_them(make_config):
    """By position, as a script may give them."""
    trainer = GRPOTrainer(
        make_policy(), share_of_a, make_config(), make_prompts(8), None, make_tokenizer(), None, None, (None, None),
        None, None, None, None, None, ScriptedEngine(0.8),
    )  # fmt: skip
    assert isinstance(trainer._rollouts.engine, ScriptedEngine)
