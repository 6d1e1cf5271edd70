# SPDX-License-Identifier: Apache-2.0
"""A `generation_config` that transformers would refuse to save is mended or refused before training."""

import logging
from pathlib import Path

import pytest
import torch
from naming import raises_naming
from peft import LoraConfig
from tiny import BOS, EOS, PAD, QUIET, ScriptedEngine, make_llama, make_prompts, make_tokenizer, share_of_a
from transformers import AutoModelForCausalLM, GenerationConfig

from minimind_hf import GRPOConfig, GRPOTrainer, PPOConfig, PPOTrainer
from minimind_hf.forward import generation_settings
from minimind_hf.forward.generation_settings import decode_by_arguments, make_generation_config_savable

WITHOUT_EFFECT = {
    "temperature": 0.3,
    "top_p": 0.5,
    "top_k": 7,
    "min_p": 0.1,
    "length_penalty": 2.0,
    "output_scores": True,
    "pad_token_id": -1,
}


@pytest.fixture
def said(monkeypatch):
    found = []
    logger = logging.getLogger(generation_settings.__name__)
    monkeypatch.setattr(logger, "warning", lambda text, *values: found.append(text % values))
    return found


@pytest.mark.parametrize("setting", WITHOUT_EFFECT)
def test_settings_without_effect_are_dropped_and_named(tmp_path, said, setting):
    model = make_llama()
    model.generation_config = GenerationConfig(eos_token_id=99, **{setting: WITHOUT_EFFECT[setting]})
    make_generation_config_savable(model, make_tokenizer())
    model.save_pretrained(tmp_path)
    saved = GenerationConfig.from_pretrained(tmp_path)
    assert getattr(saved, setting) == (PAD if setting == "pad_token_id" else getattr(GenerationConfig(), setting))
    assert saved.eos_token_id == [EOS, 99] and (saved.pad_token_id, saved.bos_token_id) == (PAD, BOS)
    assert f"{setting}={WITHOUT_EFFECT[setting]!r}" in "".join(said) or setting == "pad_token_id"


def test_what_has_an_effect_stays(tmp_path, said):
    model = make_llama()
    kept = {"do_sample": True, "temperature": 0.3, "top_k": 7, "repetition_penalty": 1.2}
    model.generation_config = GenerationConfig(**kept)
    make_generation_config_savable(model, make_tokenizer())
    model.save_pretrained(tmp_path)
    saved = GenerationConfig.from_pretrained(tmp_path).to_dict()
    assert {name: saved[name] for name in kept} == kept and not said


def test_a_published_config_that_nothing_changes_is_saved_as_it_was(tmp_path, said):
    model, published = make_llama(), tmp_path / "published"
    model.generation_config = GenerationConfig(eos_token_id=[EOS], bos_token_id=BOS, pad_token_id=PAD)
    model.save_pretrained(published)
    path = published / "generation_config.json"
    path.write_text(path.read_text().replace("{", '{"temperature": 0.3,', 1))
    model = AutoModelForCausalLM.from_pretrained(published)
    make_generation_config_savable(model, make_tokenizer())
    model.save_pretrained(tmp_path / "again")
    assert GenerationConfig.from_pretrained(tmp_path / "again").temperature == 0.3 and not said


def test_what_cannot_be_mended_is_refused_before_training():
    model = make_llama()
    model.generation_config.num_return_sequences = 3
    with raises_naming(ValueError, "generation_config", "num_return_sequences", 3):
        make_generation_config_savable(model, make_tokenizer())


@pytest.mark.parametrize(("config", "trainer"), [(GRPOConfig, GRPOTrainer), (PPOConfig, PPOTrainer)])
@pytest.mark.parametrize("merged", [False, True])
def test_trainers_save_what_they_trained(tmp_path, config, trainer, merged):
    model = make_llama()
    model.generation_config = GenerationConfig(temperature=0.3, top_k=7)  # and no special tokens
    args = config(
        output_dir=str(tmp_path),
        **QUIET | {"save_strategy": "steps"},
        save_steps=1,
        max_steps=1,
        num_generations=2,
        per_device_train_batch_size=4,
        max_completion_length=8,
        merge_adapters=merged,
    )
    lora = LoraConfig(r=2, target_modules="all-linear") if merged else None
    made = trainer(
        model,
        share_of_a,
        args,
        train_dataset=make_prompts(4),
        processing_class=make_tokenizer(),
        peft_config=lora,
        rollout_engine=ScriptedEngine(args.temperature),
    )
    made.train()
    made.save_model()
    folders = [tmp_path / "merged"] if merged else [tmp_path, tmp_path / "checkpoint-1"]
    for folder in folders:
        saved = GenerationConfig.from_pretrained(folder)
        assert (saved.eos_token_id, saved.temperature, saved.top_k) == ([EOS], None, None)
    assert (Path(tmp_path) / "checkpoint-1" / "trainer_state.json").is_file()


def test_generate_obeys_its_arguments_alone():
    model, plain = make_llama(), make_llama()
    model.generation_config.update(
        num_beams=3, no_repeat_ngram_size=1, suppress_tokens=list(range(130)), min_new_tokens=9, stop_strings=["a"]
    )
    dropped = decode_by_arguments(model, {"temperature"})
    assert dropped == {
        "num_beams": 3,
        "no_repeat_ngram_size": 1,
        "suppress_tokens": list(range(130)),
        "min_new_tokens": 9,
        "stop_strings": ["a"],
    }
    ids = torch.tensor([[5, 6, 7]])
    kwargs = {"max_new_tokens": 12, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    assert torch.equal(model.generate(ids, **kwargs), plain.generate(ids, **kwargs))
    assert model.generation_config.eos_token_id == plain.generation_config.eos_token_id
