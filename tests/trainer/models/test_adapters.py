# SPDX-License-Identifier: Apache-2.0
"""Reinforcement learning that goes on from an adapter, refuses frozen ones, and saves merged models."""

from pathlib import Path

import pytest
import torch
from naming import raises_naming
from peft import AutoPeftModelForCausalLM, LoraConfig, PeftModel, get_peft_model
from ppo_tools import make_trainer as make_ppo_trainer
from tiny import make_policy, make_tokenizer, random_ids, tiny_trainer
from transformers import AutoModelForCausalLM

from minimind_hf import PromptDataset
from minimind_hf.trainer.checkpoints.card import model_card, settings

LORA = LoraConfig(r=4, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM")


@pytest.fixture
def adapter(tmp_path):
    """Folder of an adapter that changes its base a lot, with its tokenizer."""
    make_policy().save_pretrained(tmp_path / "base")
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(tmp_path / "base"), LORA)
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1)
    model.save_pretrained(tmp_path / "adapter")
    make_tokenizer().save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


@pytest.fixture
def make_grpo_trainer(make_config):
    def make(model, peft_config=None, **changes):
        return tiny_trainer(make_config(**changes), model, peft_config=peft_config)

    return make


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_a_model_saved_by_the_user_has_our_card_with_adapters_and_without(make_grpo_trainer, tmp_path, algorithm):
    for adapters in (None, LORA):
        if algorithm == "grpo":
            trainer = make_grpo_trainer(make_policy(), peft_config=adapters, max_steps=1)
        else:
            trainer = make_ppo_trainer(tmp_path, peft_config=adapters, max_steps=1)
        trainer.train()
        trainer.save_model(str(tmp_path / "elsewhere"))
        card = Path(trainer.args.output_dir) / "README.md"
        assert not card.exists()
        trainer.save_model()
        text = card.read_text(encoding="utf-8")
        assert ("library_name: peft" in text) == (adapters is not None)
        assert "## How to load it" in text and "Optimizer steps: 1." in text
        card.unlink()


def test_the_card_names_the_base_of_adapters_and_only_settings_that_decide(make_grpo_trainer, adapter):
    trainer = make_grpo_trainer(str(adapter))
    card = model_card(trainer)
    assert "Adapters for a minimind model, from the folder `base`, trained by CISPO" in card.text
    assert card.data.base_model is None  # the Hub would look for a repository of that name
    trainer.policy.peft_config["default"].base_model_name_or_path = "owner/base"
    card = model_card(trainer)
    assert card.data.base_model == "owner/base" and "from [owner/base](https://huggingface.co/owner/base)" in card.text
    chats = [{"prompt": [{"role": "user", "content": "1 + 1?"}]}]
    tokenizer = make_tokenizer()
    trainer.train_dataset = PromptDataset(chats, tokenizer)
    assert {"thinking_ratio", "system_prompt_ratio"} <= set(dict(settings(trainer)))
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    trainer.train_dataset = PromptDataset(chats, tokenizer)
    assert {"thinking_ratio", "system_prompt_ratio"} & set(dict(settings(trainer))) == {"system_prompt_ratio"}
    trainer.train_dataset = PromptDataset([{"prompt": "1 + 1 ="}], tokenizer)
    assert not {"thinking_ratio", "system_prompt_ratio"} & set(dict(settings(trainer)))


def test_an_adapter_given_by_its_folder_is_trained_and_is_its_own_reference(make_grpo_trainer, adapter):
    trainer = make_grpo_trainer(str(adapter), beta=0.3)
    assert isinstance(trainer.policy, PeftModel)
    before = {name: tensor.clone() for name, tensor in trainer.policy.state_dict().items()}
    trainer.train()
    kl = [entry["kl_ref"] for entry in trainer.state.log_history if "kl_ref" in entry]
    assert kl[0] == pytest.approx(0, abs=1e-9)  # measured from the bare base it would not be
    assert kl[1] > 1e-6
    for name, tensor in trainer.policy.state_dict().items():
        learns = ".default." in name
        assert torch.equal(tensor, before[name]) != learns, name


def test_a_run_from_an_adapter_resumes_exactly_and_saves_the_adapter_alone(make_grpo_trainer, adapter, tmp_path):
    settings = {"beta": 0.3, "save_strategy": "steps", "save_steps": 1, "max_steps": 2}
    whole = make_grpo_trainer(str(adapter), **settings)
    whole.train()
    resumed = make_grpo_trainer(str(adapter), **settings, output_dir=str(tmp_path / "resumed"))
    resumed.train(resume_from_checkpoint=f"{whole.args.output_dir}/checkpoint-1")
    for name, tensor in whole.policy.state_dict().items():
        assert torch.equal(resumed.policy.state_dict()[name], tensor), name
    whole.save_model()
    saved = {
        str(path.relative_to(whole.args.output_dir)) for path in Path(whole.args.output_dir).rglob("adapter_model*")
    }
    assert saved == {f"{place}adapter_model.safetensors" for place in ("", "checkpoint-1/", "checkpoint-2/")}


def test_ppo_goes_on_from_the_folder_of_an_adapter(tmp_path, adapter):
    trainer = make_ppo_trainer(tmp_path / "run", str(adapter))
    trainer.train()
    kl = [entry["kl_ref"] for entry in trainer.state.log_history if "kl_ref" in entry]
    assert kl[0] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("load", [AutoPeftModelForCausalLM, AutoModelForCausalLM])
def test_a_frozen_adapter_is_refused(make_grpo_trainer, adapter, load):
    with raises_naming(ValueError, "adapter", "is_trainable=True"):
        make_grpo_trainer(load.from_pretrained(adapter))


def test_an_adapter_of_no_known_base_is_refused(make_grpo_trainer, adapter):
    config = LoraConfig.from_pretrained(adapter)
    config.base_model_name_or_path = None
    config.save_pretrained(adapter)
    with raises_naming(ValueError, adapter, "base_model_name_or_path", "adapter_config.json"):
        make_grpo_trainer(str(adapter))


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_merged_on_request(make_grpo_trainer, tmp_path, adapter, algorithm):
    changes = {"merge_adapters": True, "save_strategy": "steps", "save_steps": 1}
    if algorithm == "grpo":
        trainer = make_grpo_trainer(str(adapter), **changes)
    else:
        trainer = make_ppo_trainer(tmp_path / "run", str(adapter), **changes)
    trainer.train()
    trainer.save_model()
    folder = trainer.args.output_dir
    merged = AutoModelForCausalLM.from_pretrained(f"{folder}/merged")
    adapted = AutoPeftModelForCausalLM.from_pretrained(folder)
    assert not isinstance(merged, PeftModel)
    ids = torch.tensor(random_ids(1, low=9, high=9))
    with torch.no_grad():
        torch.testing.assert_close(merged(ids).logits, adapted(ids).logits, atol=2e-5, rtol=1e-5)
        torch.testing.assert_close(merged(ids).logits, trainer.policy.eval()(ids).logits, atol=2e-5, rtol=1e-5)
    assert not Path(folder, "checkpoint-1", "merged").exists()


def test_adapters_of_a_run_load_by_their_own_class(make_grpo_trainer, tmp_path):
    make_policy().save_pretrained(tmp_path / "base")
    trainer = make_grpo_trainer(str(tmp_path / "base"), peft_config=LoraConfig(r=2, target_modules="all-linear"))
    trainer.save_model()
    assert AutoPeftModelForCausalLM.from_pretrained(trainer.args.output_dir)


def test_lora_without_targets(make_grpo_trainer, monkeypatch):
    trained = make_grpo_trainer(make_policy(), LoraConfig(r=2)).policy
    adapted = {name.split(".")[-4] for name, _ in trained.named_parameters() if "lora_A" in name}
    assert adapted == {"q_proj", "v_proj"}  # peft's choice for Qwen3
    assert trained.peft_config["default"].task_type == "CAUSAL_LM"

    unknown = make_policy()
    monkeypatch.setattr(unknown.config, "model_type", "minimind9")
    with raises_naming(ValueError, "minimind9", "target_modules", "--lora_target_modules all-linear"):
        make_grpo_trainer(unknown, LoraConfig(r=2))
