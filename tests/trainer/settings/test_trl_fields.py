# SPDX-License-Identifier: Apache-2.0
"""trl's GRPOConfig, field by field: supported, or refused by name with what to use instead."""

import dataclasses
import logging
import pickle
from typing import get_type_hints

import pytest
import torch
import trl
from naming import raises_naming
from tiny import ScriptedEngine, make_policy, make_prompts, make_tokenizer, share_of_a
from transformers import HfArgumentParser

from minimind_hf import GRPOConfig, GRPOTrainer, PPOConfig
from minimind_hf.trainer.settings.trl_fields import (
    check_head_dtype,
    fields_without_effect,
    takes_fields_of,
    unsupported_fields,
    what_instead,
)

TRL = {field.name: field for field in dataclasses.fields(trl.GRPOConfig)}
OURS = {field.name: field for field in dataclasses.fields(GRPOConfig)}
# Of trl's own, beside what it shares with transformers and with PPO
SUPPORTED = {each.name for each in dataclasses.fields(PPOConfig)} | {
    "generation_kwargs", "beta", "num_iterations", "loss_type", "epsilon", "epsilon_high", "delta",
    "importance_sampling_level", "use_bias_correction_kl", "off_policy_mask_threshold", "mask_truncated_completions",
    "top_entropy_quantile", "entropy_coef", "scale_rewards", "multi_objective_aggregation", "sync_ref_model",
    "ref_model_mixup_alpha", "ref_model_sync_steps", "sapo_temperature_pos", "sapo_temperature_neg", "vespo_k_pos",
    "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg", "use_adaptive_entropy", "entropy_coef_min",
    "entropy_coef_max", "entropy_coef_delta", "entropy_target",
}  # fmt: skip
UNSUPPORTED = unsupported_fields(GRPOConfig)
WITHOUT_EFFECT = fields_without_effect(GRPOConfig)


def test_every_field_of_trl_is_there():
    assert TRL.keys() <= OURS.keys()
    assert UNSUPPORTED.keys() == TRL.keys() - SUPPORTED - WITHOUT_EFFECT.keys()


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_an_unsupported_field_takes_the_default_and_the_type_of_trl(name):
    assert OURS[name].default == UNSUPPORTED[name] == TRL[name].default
    assert get_type_hints(GRPOConfig)[name] == get_type_hints(trl.GRPOConfig)[name]
    assert what_instead(name) in OURS[name].metadata["help"]


def test_every_unsupported_field_of_this_trl_has_its_own_remedy():
    """One that a later trl adds is refused all the same, by a general sentence."""
    general = what_instead("added_later")
    assert general.endswith(".")
    assert [name for name in UNSUPPORTED if what_instead(name) == general] == []
    assert what_instead("vllm_added_later") == what_instead("use_vllm")


@dataclasses.dataclass
class LaterTrl(trl.GRPOConfig):
    added_later: int = None  # as trl's types may be
    added_list: list[str] = dataclasses.field(default_factory=list)


def test_a_field_of_a_later_trl_is_refused_by_name(tmp_path):
    @dataclasses.dataclass
    @takes_fields_of(LaterTrl)
    class Later(GRPOConfig):
        pass

    assert unsupported_fields(Later) == UNSUPPORTED | {"added_later": None, "added_list": []}
    config = Later(output_dir=str(tmp_path), use_cpu=True)
    assert (config.added_later, config.added_list) == (None, [])
    for name, value in (("added_later", 3), ("added_list", ["a"])):
        with pytest.raises(ValueError) as error:
            Later(output_dir=str(tmp_path), use_cpu=True, **{name: value})
        assert f"{name}={value!r}" in str(error.value) and what_instead(name) in str(error.value)


def test_flags_and_yaml_take_the_defaults_and_refuse_the_rest_by_name(tmp_path):
    flags = ["--output_dir", str(tmp_path), "--use_cpu"]
    taken = [*flags, "--use_vllm", "false", "--vllm_server_port", "8000", "--pad_to_multiple_of", "8"]
    for parser in (HfArgumentParser(GRPOConfig), trl.TrlParser(GRPOConfig)):
        assert parser.parse_args_into_dataclasses(taken)[0].vllm_server_port == 8000
        for flag, said in (("--use_vllm", "use_vllm=True"), ("--vllm_mode=other", "vllm_mode='other'")):
            with raises_naming(ValueError, said):
                parser.parse_args_into_dataclasses([*flags, flag])
    file = tmp_path / "config.yaml"
    for port, is_taken in ((8000, True), (8001, False)):
        file.write_text(f"output_dir: {tmp_path}\nuse_cpu: true\nvllm_server_port: {port}\n")
        if is_taken:
            assert trl.TrlParser(GRPOConfig).parse_args_and_config(["--config", str(file)])[0].vllm_server_port == port
        else:
            with raises_naming(ValueError, "vllm_server_port=8001"):
                trl.TrlParser(GRPOConfig).parse_args_and_config(["--config", str(file)])


def test_a_config_is_pickled_and_loaded_with_the_fields_of_trl(tmp_path):
    loaded = pickle.loads(pickle.dumps(GRPOConfig(output_dir=str(tmp_path), use_cpu=True, beta=0.25)))
    assert type(loaded) is GRPOConfig and loaded.beta == 0.25
    assert {name: getattr(loaded, name) for name in UNSUPPORTED} == UNSUPPORTED


def another_value(value):
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int | float) else "else"


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_an_unsupported_field_refuses_every_other_value(name, tmp_path):
    value = another_value(UNSUPPORTED[name])
    if name == "transformers_continuous_batching_config":
        value = {"max_batch_tokens": 1}
    with pytest.raises(ValueError) as error:
        GRPOConfig(output_dir=str(tmp_path), use_cpu=True, **{name: value})
    assert f"{name}={value!r}" in str(error.value)
    assert what_instead(name) in str(error.value)


def test_fields_that_change_no_number_are_taken_and_said_once(tmp_path, caplog, monkeypatch):
    values = {"cast_lm_head_to_fp32": True, "ds3_gather_for_generation": False, "pad_to_multiple_of": 16}
    assert WITHOUT_EFFECT.keys() == values.keys()
    for logger in ("transformers", "minimind_hf"):
        monkeypatch.setattr(logging.getLogger(logger), "propagate", True)
    with caplog.at_level("WARNING"):
        GRPOConfig(output_dir=str(tmp_path), use_cpu=True, **values)
        GRPOConfig(output_dir=str(tmp_path), use_cpu=True, **values)
    for name, value in values.items():
        assert caplog.text.count(f"{name}={value!r}") == 1 and WITHOUT_EFFECT[name][1] in caplog.text


def test_they_change_no_number(make_trainer):
    def trained(**changes):
        trainer = make_trainer(scripted=False, **changes)
        trainer.train()
        return torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])

    changes = {"cast_lm_head_to_fp32": True, "ds3_gather_for_generation": False, "pad_to_multiple_of": 16}
    assert torch.equal(trained(), trained(**changes))


def test_a_head_in_float32_is_refused_where_the_model_is_not(make_trainer):
    trainer = make_trainer(cast_lm_head_to_fp32=True)
    check_head_dtype(trainer.args, trainer.policy)
    with raises_naming(ValueError, "cast_lm_head_to_fp32=True", "torch.bfloat16"):
        check_head_dtype(trainer.args, make_policy().to(torch.bfloat16))


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
