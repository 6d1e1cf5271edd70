# SPDX-License-Identifier: Apache-2.0
"""The reference is the policy of the start and stays it, whatever adapters there are and whatever else is trained."""

import peft
import pytest
import torch
from naming import raises_naming
from peft import LoraConfig, get_peft_model
from ppo_tools import make_trainer as make_ppo_trainer
from tiny import ScriptedEngine, make_llama, make_policy, make_prompts, make_tokenizer, random_ids, share_of_a
from transformers import LlamaConfig, LlamaForCausalLM

from minimind_hf import GRPOTrainer
from minimind_hf.rollout import SamplingParams, TorchEngine

IDS = torch.tensor(random_ids(1, low=9, high=9))
LORA = {"r": 4, "lora_alpha": 16, "target_modules": "all-linear"}


def with_biases() -> LlamaForCausalLM:
    config = LlamaConfig(**{**make_llama().config.to_dict(), "attention_bias": True})
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4.0)
    return model.eval()


def unfrozen(kind: str, model=None):
    """Adapters beside which some of the base is trained too."""
    model = get_peft_model(model or make_llama(), LoraConfig(**LORA, task_type="CAUSAL_LM"))
    for name, parameter in model.named_parameters():
        if kind in name:
            parameter.requires_grad_(True)
    return model


@pytest.fixture
def make(make_config, tmp_path):
    def build(algorithm, model, config=None, **changes):
        if algorithm == "ppo":
            changes = {"share_critic_base": False, "kl_coef": 0.3, "disable_dropout": True, **changes}
            return make_ppo_trainer(tmp_path / "run", model, peft_config=config, **changes)
        args = make_config(beta=0.3, disable_dropout=True, **changes)
        engine = ScriptedEngine(args.temperature)
        return GRPOTrainer(
            model,
            share_of_a,
            args,
            train_dataset=make_prompts(12),
            processing_class=make_tokenizer(),
            rollout_engine=engine,
            peft_config=config,
        )

    return build


def reference_logits(trainer) -> torch.Tensor:
    with torch.no_grad(), trainer.reference.scoring(trainer.model_wrapped, trainer.accelerator) as model:
        model = getattr(model, "policy", model)
        return model(IDS).logits.clone()


def check_reference(trainer, start: torch.Tensor) -> None:
    torch.testing.assert_close(reference_logits(trainer), start, atol=2e-5, rtol=0)
    trainer.train()
    kl = [entry["kl_ref"] for entry in trainer.state.log_history if "kl_ref" in entry]
    assert kl[0] == pytest.approx(0, abs=1e-9)
    assert kl[-1] > 1e-12
    torch.testing.assert_close(reference_logits(trainer), start, atol=2e-5, rtol=0)


MOVING_BASES = {
    "bias all": (with_biases, LoraConfig(**LORA, bias="all")),
    "bias lora_only": (with_biases, LoraConfig(**LORA, bias="lora_only")),
    "norms": (lambda: unfrozen("norm"), None),
    "head": (lambda: unfrozen("lm_head.base_layer"), None),
    "adaption prompt": (make_llama, peft.AdaptionPromptConfig(adapter_len=4, adapter_layers=1)),
}
NO_CRITIC = ("ppo", "adaption prompt")


@pytest.mark.parametrize(
    ("algorithm", "kind"),
    [(algorithm, kind) for algorithm in ("grpo", "ppo") for kind in MOVING_BASES if (algorithm, kind) != NO_CRITIC],
)
def test_a_base_that_moves_is_not_the_reference(make, algorithm, kind):
    build, config = MOVING_BASES[kind]
    model = build()
    start = model.eval()(IDS).logits.detach()
    trainer = make(algorithm, model, config, max_steps=3)
    check_reference(trainer, start)


KINDS = {
    "IA3": lambda **start: peft.IA3Config(target_modules=["q_proj", "v_proj"], feedforward_modules=[], **start),
    "LoKr": lambda **start: peft.LoKrConfig(r=4, target_modules=["q_proj"], **start),
    "LoHa": lambda **start: peft.LoHaConfig(r=4, target_modules=["q_proj"], **start),
    "OFT": lambda **start: peft.OFTConfig(oft_block_size=4, r=0, target_modules=["q_proj"], **start),
    "BOFT": lambda **start: peft.BOFTConfig(boft_block_size=4, target_modules=["q_proj"], **start),
    "VeRA": lambda **start: peft.VeraConfig(r=4, target_modules=["q_proj"], **start),
    "HRA": lambda **start: peft.HRAConfig(r=4, target_modules=["q_proj"], **start),
    "FourierFT": lambda **start: peft.FourierFTConfig(n_frequency=10, target_modules=["q_proj"], **start),
    "C3A": lambda **start: peft.C3AConfig(block_size=8, target_modules=["q_proj"], **start),
    "LoRA": lambda **start: LoraConfig(r=4, target_modules=["q_proj"], **start),
    "AdaLoRA": lambda **start: peft.AdaLoraConfig(
        init_r=4, target_r=2, total_step=100, target_modules=["q_proj"], **start
    ),
    "LN": lambda: peft.LNTuningConfig(target_modules=["input_layernorm"]),
    "VBLoRA": lambda: peft.VBLoRAConfig(
        r=4, num_vectors=10, vector_length=8, topk=2, target_modules=["q_proj"], init_logits_std=1.0
    ),
}
STARTS = {"IA3": "init_ia3_weights", "LoRA": "init_lora_weights", "AdaLoRA": "init_lora_weights"}


@pytest.mark.parametrize("plainly", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_the_reference_of_fresh_adapters_is_their_start(make, kind, plainly):
    has_switch = kind not in ("LN", "VBLoRA")
    config = KINDS[kind](**{STARTS.get(kind, "init_weights"): plainly} if has_switch else {})
    trainer = make("grpo", make_policy(), config, learning_rate=5.0)
    copied = trainer.reference.model is not None or "ref" in trainer.policy.peft_config
    starts_elsewhere = kind == "VBLoRA" or (kind != "LN" and not plainly)
    assert copied == starts_elsewhere
    trainer.policy.eval()
    check_reference(trainer, trainer.policy(IDS).logits.detach())


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
@pytest.mark.parametrize("kind", ["LoKr", "IA3"])
def test_adapters_that_were_trained_before_are_their_own_reference(make, algorithm, kind):
    config = KINDS[kind]()
    config.task_type = "CAUSAL_LM"
    model = get_peft_model(make_policy(), config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".default" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
    start = model.eval()(IDS).logits.detach()
    check_reference(make(algorithm, model, learning_rate=5.0), start)


def test_a_critic_cannot_share_a_base_that_the_policy_trains(make):
    with raises_naming(ValueError, "layers.0.input_layernorm.weight", "share_critic_base=False"):
        make("ppo", unfrozen("norm"), share_critic_base=True)
    with raises_naming(ValueError, "adaption_prompt", "share_critic_base=False"):
        make("ppo", make_llama(), MOVING_BASES["adaption prompt"][1], share_critic_base=True)
    with raises_naming(ValueError, "ADAPTION_PROMPT", "critic_model_name_or_path"):
        make("ppo", make_llama(), MOVING_BASES["adaption prompt"][1])
    make("ppo", unfrozen("lm_head.base_layer"), share_critic_base=True).train()  # the critic has no such head


PROMPTS = {
    "PROMPT_TUNING": lambda: peft.PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM"),
    "P_TUNING": lambda: peft.PromptEncoderConfig(num_virtual_tokens=2, encoder_hidden_size=8, task_type="CAUSAL_LM"),
    "PREFIX_TUNING": lambda: peft.PrefixTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM"),
}


@pytest.mark.parametrize("kind", PROMPTS)
def test_learned_prompts_are_refused_by_name(make, kind):
    for algorithm in ("grpo", "ppo"):
        with raises_naming(ValueError, f"peft_type={kind}", "LoraConfig"):
            make(algorithm, make_llama(), PROMPTS[kind]())
        with raises_naming(ValueError, f"peft_type={kind}", "LoraConfig"):
            make(algorithm, get_peft_model(make_llama(), PROMPTS[kind]()))
    engine = TorchEngine()
    with raises_naming(ValueError, f"peft_type={kind}", "LoraConfig"):
        engine.sync_weights(get_peft_model(make_llama(), PROMPTS[kind]()), 0)
        engine.generate([[3, 4]], 1, SamplingParams(2, 1.0, (2,), 0))
