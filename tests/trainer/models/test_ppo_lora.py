# SPDX-License-Identifier: Apache-2.0
"""Policy, critic and reference on one frozen base: what is shared, what learns, and what may not leak."""

import hashlib
import logging

import peft
import pytest
import torch
from naming import names, raises_naming
from peft import LoraConfig, PeftModel, get_peft_model
from ppo_tools import copied, log_of, lora, make_trainer
from tiny import collected, make_llama, make_policy
from transformers import AutoModelForTokenClassification

from minimind_hf import PPOConfig
from minimind_hf.forward.logprobs import completion_scores
from minimind_hf.trainer.models.adapters import BorrowedTrunk
from minimind_hf.trainer.models.critic import load_critic

TRAINING = {"max_steps": 8, "mini_batch_size": 4, "optim": "adamw_torch", "learning_rate": 1e-2}


def with_adapters(seed: int = 0, **changes) -> PeftModel:
    """A policy that was trained with adapters before."""
    policy = get_peft_model(make_policy(), lora(**changes))
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if "lora_" in name:
                parameter.copy_(0.1 * torch.randn_like(parameter))
    return policy


def by_kind(trainer) -> dict[str, dict[str, torch.Tensor]]:
    """Base, policy adapter, critic adapter and head."""
    kinds = {"base": {}, "policy": {}, "critic": {}, "head": {}}
    for name, tensor in copied(trainer.model).items():
        if name.startswith("critic."):
            kind = "head"
        elif ".critic." in name:
            kind = "critic"
        else:
            kind = "policy" if ".default." in name else "base"
        kinds[kind][name] = tensor
    return kinds


def digest(tensors: dict[str, torch.Tensor]) -> str:
    hashed = hashlib.sha256()
    for name in sorted(tensors):
        hashed.update(tensors[name].numpy().tobytes())
    return hashed.hexdigest()


@pytest.mark.parametrize("make_model", [make_policy, make_llama], ids=["minimind", "llama"])
def test_base_stays_and_adapters_and_head_learn(tmp_path, make_model):
    trainer = make_trainer(tmp_path, make_model(), peft_config=lora(), **TRAINING)
    before = by_kind(trainer)
    trainer.train()
    after = by_kind(trainer)
    assert digest(after["base"]) == digest(before["base"])
    for kind in ("policy", "critic", "head"):
        assert before[kind]
        for name, tensor in before[kind].items():
            assert not torch.equal(after[kind][name], tensor), name
    assert log_of(trainer, "kl_ref")[0] == 0.0  # exactly
    assert log_of(trainer, "kl_ref")[1] > 0.0


def test_full_training_starts_at_a_kl_of_exactly_0_too(tmp_path):
    trainer = make_trainer(tmp_path, **TRAINING)
    trainer.train()
    assert log_of(trainer, "kl_ref")[0] == 0.0


def test_only_head_and_adapters_are_new_and_the_log_says_so(tmp_path, caplog, monkeypatch):
    with caplog.at_level(logging.WARNING):
        trainer = make_trainer(tmp_path, make_policy(), peft_config=lora())
        assert names(caplog.text, "score")
        caplog.clear()
        with monkeypatch.context() as patch:  # another process of the same run
            patch.setattr(PPOConfig, "process_index", 1)
            load_critic(get_peft_model(make_policy(), lora()), trainer.args)
        assert not names(caplog.text, "score")
    assert isinstance(trainer.model.critic.model, BorrowedTrunk)
    assert {name for name, _ in trainer.model.critic.named_parameters()} == {"score.weight", "score.bias"}
    base = sum(parameter.numel() for parameter in make_policy().parameters())
    frozen = sum(parameter.numel() for parameter in trainer.model.parameters() if not parameter.requires_grad)
    assert frozen == base


def test_no_base_weight_is_held_twice(tmp_path):
    trainer = make_trainer(tmp_path, make_policy(), peft_config=lora())
    assert trainer.reference._model is None
    trainable = sum(p.numel() for p in trainer.model.parameters() if p.requires_grad)
    total = sum(p.numel() for p in trainer.model.parameters())
    assert total - trainable == sum(parameter.numel() for parameter in make_policy().parameters())


def test_loss_of_a_model_reaches_the_adapter_of_that_model_alone(tmp_path):
    trainer = make_trainer(tmp_path, make_policy(), peft_config=lora())
    (batch,) = trainer.micro_batches(collected(trainer, 8))
    model = trainer.model.train()
    policy, critic = model.parameters_by_model()
    assert len(policy) + len(critic) == sum(parameter.requires_grad for parameter in model.parameters())
    output = model(batch, 0.8)
    model.zero_grad()
    output.scores.logps.sum().backward(retain_graph=True)
    assert all(parameter.grad is not None for parameter in policy)
    assert all(parameter.grad is None for parameter in critic)
    model.zero_grad()
    output.values.sum().backward()
    assert all(parameter.grad is None for parameter in policy)
    assert all(parameter.grad is not None for parameter in critic)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_recomputing_activations_changes_no_gradient(tmp_path, checkpointing):
    """Layers recomputed in the backward pass must be recomputed with the adapter that they were computed with."""
    policy = with_adapters()
    trainer = make_trainer(tmp_path, policy.double())
    model = trainer.model
    with torch.no_grad():
        for parameter in model.parameters_by_model()[1]:
            parameter.add_(0.1 * torch.randn_like(parameter))
    (batch,) = trainer.micro_batches(collected(trainer, 8))

    def gradient():
        model.zero_grad()
        output = model(batch, 0.8)
        mask = batch.loss_mask.bool()
        (output.scores.logps[mask].sum() + output.values[mask].square().sum()).backward()
        return [parameter.grad.clone() for parameter in model.parameters() if parameter.requires_grad]

    model.eval()  # neither the critic nor a layer is recomputed
    expected = gradient()
    model.train()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    assert model.is_gradient_checkpointing == checkpointing
    for found, wanted in zip(gradient(), expected, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-10, rtol=0)


def test_reentrant_checkpointing_is_refused_on_a_shared_base(tmp_path):
    trainer = make_trainer(
        tmp_path,
        make_policy(),
        peft_config=lora(),
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": True},
    )
    with raises_naming(ValueError, "use_reentrant", "share_critic_base=False"):
        trainer.train()


def test_adapters_trained_before_start_critic_and_reference(tmp_path):
    policy = with_adapters()
    trainer = make_trainer(tmp_path, policy, **TRAINING)
    parameters = dict(trainer.model.policy.named_parameters())
    for name, parameter in parameters.items():
        if ".default." in name:
            assert torch.equal(parameters[name.replace(".default.", ".critic.")], parameter), name
            assert not parameters[name.replace(".default.", ".ref.")].requires_grad
    reference = {name: tensor.clone() for name, tensor in parameters.items() if ".ref." in name}
    trainer.train()
    assert log_of(trainer, "kl_ref")[0] == pytest.approx(0.0, abs=1e-12)
    assert log_of(trainer, "kl_ref")[-1] > 1e-4
    parameters = dict(trainer.model.policy.named_parameters())
    for name, tensor in reference.items():
        assert torch.equal(parameters[name], tensor), name


def test_reference_is_the_base_although_the_policy_has_moved(tmp_path):
    trainer = make_trainer(tmp_path, make_policy(), peft_config=lora(), **TRAINING)
    trainer.train()
    experience = collected(trainer, 8)
    with torch.no_grad():
        expected = completion_scores(make_policy(), *experience.tokens.padded(), trainer.args.temperature).logps
    mask = experience.tokens.padded()[3].bool()
    torch.testing.assert_close(experience.tokens.ref_logps[mask], expected[mask], atol=1e-5, rtol=0)


def test_adapters_of_the_head_are_the_policys_alone(tmp_path):
    """The critic does not compute the language-model head, so its adapter there would never learn."""
    targets = ["q_proj", "lm_head"]
    trainer = make_trainer(tmp_path, make_policy(tie_word_embeddings=False), peft_config=lora(target_modules=targets))
    trainable = {name for name, parameter in trainer.model.named_parameters() if parameter.requires_grad}
    assert any("lm_head" in name and ".default." in name for name in trainable)
    assert not any("lm_head" in name and ".critic." in name for name in trainable)
    trainer.train()
    trainer.save_model()
    trainer.model.load_saved(tmp_path)


def test_policy_with_adapters_and_a_critic_of_its_own(tmp_path):
    trainer = make_trainer(tmp_path, make_policy(), peft_config=lora(), share_critic_base=False, **TRAINING)
    critic = trainer.model.critic
    assert not isinstance(critic.model, BorrowedTrunk)
    for name, tensor in make_policy().model.state_dict().items():
        assert torch.equal(critic.model.state_dict()[name], tensor), name
    policy, parameters = trainer.model.parameters_by_model()
    assert len(parameters) == len(list(critic.parameters()))
    before = copied(critic)
    base = digest(by_kind(trainer)["base"])
    trainer.train()
    assert digest(by_kind(trainer)["base"]) == base
    assert any(not torch.equal(tensor, before[name]) for name, tensor in critic.state_dict().items())


def test_saved_critic_is_an_ordinary_adapter_of_a_token_classifier(tmp_path):
    base = tmp_path / "base"
    make_policy().save_pretrained(base)
    trainer = make_trainer(tmp_path / "run", make_policy(), peft_config=lora(), **TRAINING)
    trainer.train()
    trainer.save_model()
    expected = collected(trainer, 8).tokens

    classifier = AutoModelForTokenClassification.from_pretrained(base, num_labels=1, classifier_dropout=0.0)
    loaded = PeftModel.from_pretrained(classifier, tmp_path / "run" / "critic").eval()
    prompt_ids, prompt_mask, completion_ids, completion_mask = expected.padded()
    layout = {
        "input_ids": torch.cat([prompt_ids, completion_ids], dim=1),
        "attention_mask": torch.cat([prompt_mask, completion_mask], dim=1),
    }
    layout["position_ids"] = (layout["attention_mask"].cumsum(dim=1) - 1).clamp(min=0)
    width = expected.width
    with torch.no_grad():
        values = loaded(**layout).logits[:, -(width + 1) : -1, 0]
    mask = completion_mask.bool()
    torch.testing.assert_close(values[mask], expected.old_values[mask], atol=1e-5, rtol=0)
    assert peft.PeftConfig.from_pretrained(tmp_path / "run" / "critic").task_type == "TOKEN_CLS"


def test_a_critic_kept_from_an_earlier_run_goes_on(tmp_path):
    first = make_trainer(tmp_path / "first", make_policy(), peft_config=lora(), **TRAINING)
    first.train()
    first.save_model()
    kept = str(tmp_path / "first" / "critic")
    second = make_trainer(tmp_path / "second", make_policy(), peft_config=lora(), critic_model_name_or_path=kept)
    assert by_kind(second)["head"].keys() == by_kind(first)["head"].keys()
    for kind in ("critic", "head"):
        for name, tensor in by_kind(first)[kind].items():
            assert torch.equal(by_kind(second)[kind][name], tensor), name
    with raises_naming(ValueError, "critic_model_name_or_path", kept, "MiniMindForCausalLM", "peft_config"):
        make_trainer(tmp_path / "third", make_policy(), critic_model_name_or_path=kept)


def test_modules_to_save_are_kept_for_each_model(tmp_path):
    config = LoraConfig(r=4, target_modules=["q_proj"], modules_to_save=["norm"])
    trainer = make_trainer(tmp_path, make_policy(), peft_config=config, **TRAINING)
    before = copied(trainer.model)
    trainer.train()
    for owner in ("default", "critic"):
        (name,) = [n for n in before if f"modules_to_save.{owner}.weight" in n and ".model.norm." in n]
        assert not torch.equal(copied(trainer.model)[name], before[name]), name
    trainer.save_model()
    after = copied(trainer.model)
    fresh = make_trainer(tmp_path / "fresh", make_policy(), peft_config=config)
    fresh.model.load_saved(tmp_path)
    for name, tensor in copied(fresh.model).items():
        assert torch.equal(tensor, after[name]), name


def test_adapters_that_rewrite_the_base_cannot_share_it(tmp_path):
    with raises_naming(ValueError, "init_lora_weights", "'pissa'", "share_critic_base=False"):
        make_trainer(tmp_path, make_policy(), peft_config=lora(init_lora_weights="pissa"))


@pytest.mark.parametrize("init", ["gaussian", "Gaussian", "eva", "orthogonal", False])
def test_adapters_that_leave_the_base_alone_can_share_it(tmp_path, init):
    start, tokens = make_policy(), torch.arange(3, 11)[None]
    policy = get_peft_model(make_policy(), lora(init_lora_weights=init)) if init is False else start
    expected = policy(tokens).logits.detach()
    peft_config = None if init is False else lora(init_lora_weights=init)
    trainer = make_trainer(tmp_path, policy, peft_config=peft_config, **TRAINING)
    torch.testing.assert_close(trainer.model.policy(tokens).logits, expected, rtol=0, atol=1e-5)
    trainer.train()
    assert log_of(trainer, "kl_ref")[0] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("init", ["pissa", "olora", False, "gaussian", "orthogonal"])
def test_the_reference_is_the_start_however_adapters_begin(tmp_path, init):
    config = lora(target_modules=["q_proj"], init_lora_weights=init)
    trainer = make_trainer(tmp_path, make_policy(), peft_config=config, share_critic_base=False, **TRAINING)
    trainer.train()
    assert log_of(trainer, "kl_ref")[0] == pytest.approx(0, abs=1e-12)
    assert log_of(trainer, "kl_ref")[-1] > 1e-9


def test_biases_of_the_base_cannot_be_shared(tmp_path):
    with raises_naming(ValueError, "bias", "'lora_only'", "share_critic_base=False"):
        make_trainer(tmp_path, make_llama(), peft_config=lora(bias="lora_only"))


def test_a_policy_with_another_name_or_a_trainers_adapters_is_refused(tmp_path):
    with raises_naming(ValueError, "adapter_name", "'mine'", "'default'"):
        make_trainer(tmp_path, get_peft_model(make_policy(), lora(), adapter_name="mine"))
    policy = with_adapters()
    make_trainer(tmp_path, policy)
    with raises_naming(ValueError, "model.delete_adapter('ref')"):
        make_trainer(tmp_path, policy)


def test_an_adapter_as_critic_needs_the_shared_base(tmp_path):
    first = make_trainer(tmp_path / "first", make_policy(), peft_config=lora(), **TRAINING)
    first.save_model()
    kept = {"critic_model_name_or_path": str(tmp_path / "first" / "critic"), "share_critic_base": False}
    with raises_naming(ValueError, "critic_model_name_or_path", "share_critic_base", False):
        make_trainer(tmp_path / "second", make_policy(), peft_config=lora(), **kept)


def test_part_of_a_name_in_modules_to_save_is_the_critics_too(tmp_path):
    trainer = make_trainer(tmp_path, make_policy(), peft_config=lora(modules_to_save=["layernorm"]))
    names = [name for name, parameter in trainer.model.named_parameters() if parameter.requires_grad]
    of_each = [sum(f"layernorm.modules_to_save.{owner}." in name for name in names) for owner in ("default", "critic")]
    assert of_each[0] == of_each[1] > 0


@pytest.mark.parametrize("options", [{"target_modules": ["q_proj", "embed_tokens"]}, {"trainable_token_indices": [5]}])
def test_adapters_on_the_embeddings(tmp_path, options):
    trainer = make_trainer(
        tmp_path, make_policy(), peft_config=lora(**options), share_critic_base=False, engine=None, **TRAINING
    )
    before = copied(trainer.model.policy)
    trainer.train()
    learnt = [name for name, tensor in copied(trainer.model.policy).items() if not torch.equal(tensor, before[name])]
    assert any("embed_tokens" in name for name in learnt)
