# SPDX-License-Identifier: Apache-2.0
"""The trainer from outside: it learns, it says what it does, and it refuses what cannot work."""

import json
import math
import re
import threading
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from naming import raises_naming
from peft import LoraConfig, PeftModel, get_peft_model
from tiny import EOS, ScriptedEngine, make_llama, make_policy, make_prompts, make_tokenizer, share_of_a
from transformers import AutoModelForCausalLM

from minimind_hf import GRPOConfig, GRPOTrainer, TorchEngine
from minimind_hf.rewards import RewardError


def training_logs(trainer) -> list[dict]:
    return [entry for entry in trainer.state.log_history if "loss" in entry]


@pytest.mark.parametrize("loss_type", ["cispo", "grpo"])
def test_it_learns(make_trainer, loss_type):
    """A policy that writes any of 259 tokens learns to write those below 130."""
    trainer = make_trainer(
        make_policy(scale=1.0),
        scripted=False,
        loss_type=loss_type,
        optim="adamw_torch",
        learning_rate=1e-2,
        max_steps=40,
        per_device_train_batch_size=32,
        num_generations=8,
        beta=0.01,
    )
    trainer.train()
    rewards = [entry["reward"] for entry in training_logs(trainer)]
    assert sum(rewards[:3]) / 3 < 0.6
    assert sum(rewards[-3:]) / 3 > 0.9


def test_what_is_logged_each_step(make_trainer):
    def second(completions, **kwargs):
        return [float(len(completion) % 2) for completion in completions]

    trainer = make_trainer(reward=[share_of_a, second], scripted=False, reward_weights=[1.0, 0.5])
    trainer.train()
    expected = {
        "loss", "grad_norm", "learning_rate", "reward", "reward_std", "advantages/mean", "advantages/std",
        "rewards/share_of_a/mean", "rewards/share_of_a/std", "rewards/second/mean", "rewards/second/std",
        "kl_ref", "policy_loss", "entropy", "ratio_mean", "approx_kl", "clip_ratio/low_mean", "clip_ratio/high_mean",
        "clip_ratio/region_mean", "completions/mean_length", "completions/min_length", "completions/max_length",
        "sampling/sampling_logp_difference/mean", "sampling/sampling_logp_difference/max", "sampling/k3",
        "sampling/staleness", "completions/clipped_ratio", "frac_reward_zero_std", "seconds/rollout",
        "seconds/scoring", "seconds/reference", "seconds/update", "tokens_per_second",
    }  # fmt: skip
    for entry in training_logs(trainer):
        assert expected <= set(entry)
        assert all(math.isfinite(entry[name]) for name in expected)
        total = entry["rewards/share_of_a/mean"] + 0.5 * entry["rewards/second/mean"]
        assert entry["reward"] == pytest.approx(total, abs=1e-6)
        assert entry["policy_loss"] == pytest.approx(entry["loss"], abs=1e-6)


def test_metrics_do_not_depend_on_the_shape_of_batches(make_trainer):
    def logs(size, steps):
        trainer = make_trainer(per_device_train_batch_size=size, gradient_accumulation_steps=steps, loss_type="grpo")
        trainer.train()
        timed = ("seconds/", "tokens_per_second")
        return [{k: v for k, v in entry.items() if not k.startswith(timed)} for entry in training_logs(trainer)]

    for one, other in zip(logs(8, 1), logs(1, 8), strict=True):
        assert one == pytest.approx(other, abs=2e-6)


def test_columns_and_messages_reach_the_reward(make_trainer):
    seen = {}

    def reward(prompts, completions, completion_ids, number, trainer_state, **columns):
        seen.update(prompts=prompts, completions=completions, number=number, step=trainer_state.global_step)
        return [0.0] * len(completions)

    rows = [
        {"prompt": [{"role": "user", "content": row["prompt"]}], "number": row["number"]} for row in make_prompts(4)
    ]
    make_trainer(reward=reward, prompts=rows).train()
    assert seen["step"] == 1
    assert seen["prompts"][0] in [row["prompt"] for row in rows]
    assert [message["role"] for message in seen["completions"][0]] == ["assistant"]
    assert seen["number"] == [n for n in dict.fromkeys(seen["number"]) for _ in range(4)]


def test_reward_models_by_instance(make_trainer):
    from minimind_hf import MiniMindConfig, MiniMindForSequenceClassification

    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    model = MiniMindForSequenceClassification(MiniMindConfig(vocab_size=259, num_labels=1, pad_token_id=0, **shape))
    trainer = GRPOTrainer(
        make_policy(),
        [model, share_of_a],
        make_trainer().args,
        train_dataset=make_prompts(8),
        processing_class=make_tokenizer(),
        reward_processing_classes=[make_tokenizer(), None],
    )
    trainer.train()
    names = [name for name in training_logs(trainer)[0] if name.startswith("rewards/")]
    assert len(names) == 4


def test_evaluation_before_and_during_training(make_trainer, make_config):
    trainer = GRPOTrainer(
        make_policy(),
        share_of_a,
        make_config(eval_strategy="steps", eval_steps=1, num_generations_eval=2, per_device_eval_batch_size=4),
        train_dataset=make_prompts(8),
        eval_dataset=make_prompts(5, seed=9),
        processing_class=make_tokenizer(),
    )
    before = trainer.evaluate()
    assert 0 <= before["eval_reward"] <= 1
    assert before["eval_completions/max_length"] <= 8
    assert trainer.evaluate()["eval_reward"] == before["eval_reward"]  # the same seeds, the same weights
    trainer.train()
    evaluated = [entry["eval_reward"] for entry in trainer.state.log_history if "eval_reward" in entry]
    assert len(evaluated) == 2
    # Evaluating is no part of the run: without it the same parameters come out.
    alone = make_trainer(scripted=False, prompts=make_prompts(8))
    alone.train()
    for name, tensor in alone.model.state_dict().items():
        assert torch.equal(tensor, trainer.model.state_dict()[name]), name


def test_evaluation_of_several_datasets(make_config):
    parts = {"easy": make_prompts(3), "hard": make_prompts(4, seed=2)}
    trainer = GRPOTrainer(
        make_policy(),
        share_of_a,
        make_config(eval_strategy="steps", eval_steps=2),
        train_dataset=make_prompts(8),
        eval_dataset=parts,
        processing_class=make_tokenizer(),
    )
    metrics = trainer.evaluate()
    assert {"eval_easy_reward", "eval_hard_reward"} <= set(metrics)


def test_completions_are_written_and_printed(make_trainer, capsys):
    trainer = make_trainer(log_completions=True, num_completions_to_print=2, logging_steps=2, max_steps=2)
    trainer.train()
    assert "Step 2" in capsys.readouterr().out
    (path,) = Path(trainer.args.output_dir, "completions").glob("*.jsonl")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert path.name == "completions_000002.jsonl"
    assert len(rows) == 16
    for row in rows:
        assert row["signals"] == {"share_of_a": row["reward"]}
        assert row["finish_reason"] in ("stop", "length")
    logged = [entry["reward"] for entry in training_logs(trainer)]
    assert sum(row["reward"] for row in rows) / 16 == pytest.approx(logged[-1], abs=1e-5)


def test_debug_mode_prints_every_completion_of_every_prompt(make_trainer, capsys):
    make_trainer(debug_mode=True, debug_interval=2, max_steps=3).train()
    out = capsys.readouterr().out
    assert "step 1, prompt 0" in out and "step 3, prompt 1" in out and "step 2," not in out
    assert out.count("completion 3:") == 4  # 2 prompts at 2 of 3 steps
    assert out.count("(share_of_a ") == 16
    assert "<|im_end|>" in out  # as the policy wrote it


def test_debug_prints_wait_for_the_next_rollout(make_trainer, capsys):
    # A rollout every third step, a print every second one: due at 1, 3, 5 and 7, so with the rollouts for 1, 4 and 7.
    shape = {"per_device_train_batch_size": 4, "steps_per_generation": 3, "learning_rate": 1e-3}
    make_trainer(debug_mode=True, debug_interval=2, max_steps=7, **shape).train()
    printed = re.findall(r"step (\d+), prompt 0", capsys.readouterr().out)
    assert printed == ["1", "4", "7"]


def test_mixture_of_experts_trains_its_router(make_trainer):
    model = make_policy(use_moe=True)
    gates = {name: p.detach().clone() for name, p in model.named_parameters() if "gate.weight" in name}
    trainer = make_trainer(model, beta=0.0, router_aux_loss_coef=0.5)
    trainer.train()
    entry = training_logs(trainer)[0]
    # 2 layers of 4 experts: at balance each adds 4 * sum(1/4 * 1/4) = 1, else more
    assert entry["aux_loss"] >= 2
    assert entry["loss"] == pytest.approx(entry["policy_loss"] + 0.5 * entry["aux_loss"], abs=1e-5)
    # Top-1 with renormalised weights: only the balancing loss can move a router.
    for name, before in gates.items():
        assert (before - model.get_parameter(name)).abs().max() > 1e-3, name
    still = make_policy(use_moe=True)
    make_trainer(still, beta=0.0, router_aux_loss_coef=0.0).train()
    for name, before in gates.items():
        torch.testing.assert_close(before, still.get_parameter(name), atol=1e-6, rtol=0)


LORA = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")


@pytest.mark.parametrize("make_model", [make_policy, make_llama], ids=["minimind", "llama"])
def test_lora_trains_adapters_alone(make_model, make_config, tmp_path):
    model = make_model()
    base = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    trainer = GRPOTrainer(
        model,
        share_of_a,
        make_config(),
        train_dataset=make_prompts(12),
        processing_class=make_tokenizer(),
        rollout_engine=ScriptedEngine(0.8),
        peft_config=LORA,
    )
    trainer.train()
    first, second = training_logs(trainer)
    assert first["kl_ref"] == pytest.approx(0, abs=1e-9) and second["kl_ref"] > 1e-7
    for name, tensor in trainer.model.get_base_model().state_dict().items():
        if "lora" not in name:
            assert torch.equal(tensor, base[name.replace(".base_layer", "")]), name
    trainer.save_model(str(tmp_path / "adapter"))
    loaded = PeftModel.from_pretrained(make_model(), tmp_path / "adapter")
    ids = torch.tensor([[5, 6, 7]])
    torch.testing.assert_close(loaded(ids).logits, trainer.model(ids).logits, atol=1e-5, rtol=0)


def test_adapters_trained_before_are_their_own_reference(make_config):
    model = get_peft_model(make_policy(), LORA)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_()
    trainer = GRPOTrainer(
        model,
        share_of_a,
        make_config(),
        train_dataset=make_prompts(12),
        processing_class=make_tokenizer(),
        rollout_engine=ScriptedEngine(0.8),
    )
    trainer.train()
    assert training_logs(trainer)[0]["kl_ref"] == pytest.approx(0, abs=1e-9)
    assert training_logs(trainer)[1]["kl_ref"] > 1e-7


def test_saved_policy_loads_without_missing_or_unexpected_keys(make_trainer, tmp_path):
    trainer = make_trainer()
    trainer.train()
    trainer.save_model(str(tmp_path / "saved"))
    model, info = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    ids = torch.tensor([[5, 6, 7]])
    torch.testing.assert_close(model(ids).logits, trainer.model(ids).logits.cpu(), atol=1e-5, rtol=0)


def test_the_thread_of_async_rewards_ends_with_training(make_trainer):
    async def later(completions, **kwargs):
        return [float(len(completion)) for completion in completions]

    def waiting() -> int:
        return sum(thread.name == "async-rewards" for thread in threading.enumerate())

    before = waiting()
    make_trainer(reward=later).train()
    assert waiting() == before


class Faulty(ScriptedEngine):
    def __init__(self, fault):
        super().__init__(0.8)
        self.fault = fault

    def generate(self, *args):
        return self.fault(super().generate(*args))


def nan_logprob(rollouts):
    rollouts[3].logprobs[0] = math.nan
    return rollouts


@pytest.mark.parametrize(
    ("fault", "named"),
    [(lambda r: r[:-1], [7, 8]), (nan_logprob, ["index 3", "nan"])],
    ids=["number", "nan"],
)
def test_an_engine_of_ones_own_is_checked(make_trainer, fault, named):
    trainer = make_trainer(engine=Faulty(fault))
    with raises_naming(ValueError, "Faulty", *named):
        trainer.train()


def test_an_object_that_is_no_engine_is_refused_before_training(make_trainer):
    with raises_naming(TypeError, "rollout_engine", "dict", "generate", "sync_weights"):
        make_trainer(engine={"url": "http://localhost:30000"})


class Plain:
    """An engine that inherits nothing."""

    def __init__(self):
        self.inner, self.synced = ScriptedEngine(0.8), []

    def sync_weights(self, model, version):
        self.synced.append(version)
        self.inner.sync_weights(model, version)

    def generate(self, prompt_ids, num_generations, sampling):
        return self.inner.generate(prompt_ids, num_generations, sampling)


def test_an_engine_is_any_object_with_two_methods(make_trainer):
    scripted, engine = make_trainer(), Plain()
    plain = make_trainer(engine=engine)
    scripted.train()
    plain.train()
    assert engine.synced == [0, 1]
    for name, tensor in scripted.model.state_dict().items():
        assert torch.equal(tensor, plain.model.state_dict()[name]), name


def test_tool_output_is_not_learned(make_trainer):
    """Tokens that the policy did not choose (`loss_mask` 0) change the loss no more than padding does."""

    class WithTool(ScriptedEngine):
        def generate(self, *args):
            rollouts = super().generate(*args)
            for rollout in rollouts:
                rollout.completion_ids += [7, 8]
                rollout.logprobs += [-50.0, math.nan]
                rollout.loss_mask = [1] * (len(rollout.completion_ids) - 2) + [0, 0]
            return rollouts

    def constant(completion_ids, number, **kwargs):
        return [float((n + i) % 3) for i, n in enumerate(number)]

    plain, tool = make_trainer(reward=constant), make_trainer(reward=constant, engine=WithTool(0.8))
    plain.train()
    tool.train()
    for name, tensor in plain.model.state_dict().items():
        torch.testing.assert_close(tensor, tool.model.state_dict()[name], atol=1e-6, rtol=0)


def without(attribute):
    tokenizer = make_tokenizer()
    setattr(tokenizer, attribute, None)
    return tokenizer


CHAT = [{"prompt": [{"role": "user", "content": "hi"}]}] * 4


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"train_dataset": []}, ["empty"]),
        ({"train_dataset": [{"text": "x"}]}, ["prompt", "conversations", "'text'"]),
        ({"train_dataset": CHAT, "processing_class": without("chat_template")}, ["tokenizer.chat_template"]),
        ({"processing_class": without("pad_token")}, ["pad_token", "tokenizer.pad_token = tokenizer.eos_token"]),
        ({"train_dataset": make_prompts(1)}, [1, 2, "per_device_train_batch_size", "num_generations"]),
        ({"reward_funcs": []}, ["reward_funcs"]),
        ({"reward_funcs": ["length", "exact_match"]}, ["exact_match_reward", "'answer'"]),
        ({"eval_dataset": {"a": [{"prompt": "x", "log_extra": 1}]}}, ["'log_extra'", "rename_column"]),
        ({"reward_funcs": "no_module:f"}, ["no_module:f", "ModuleNotFoundError"]),
    ],
    ids=lambda value: str(value)[:30],
)
def test_bad_input_is_refused_before_the_model_is_loaded(make_config, changes, named):
    arguments = {
        "model": "/no/such/model",
        "reward_funcs": share_of_a,
        "args": make_config(),
        "train_dataset": make_prompts(8),
        "processing_class": make_tokenizer(),
    }
    with raises_naming((ValueError, TypeError), *named):
        GRPOTrainer(**arguments | changes)


@pytest.mark.parametrize("train", [True, False])
def test_prompts_beyond_the_context_are_refused(make_trainer, train):
    prompts = [*make_prompts(3), {"prompt": "a" * 60}]

    def made(rows):
        model = make_policy(max_position_embeddings=64)
        return make_trainer(model, prompts=rows, per_device_train_batch_size=16, max_prompt_length=None)

    with raises_naming(ValueError, 60, "max_completion_length", 8, 64, "max_prompt_length", 56):
        made(prompts) if train else made(make_prompts(4)).evaluate(prompts)


@pytest.mark.parametrize("path", ["fast", "general", "graph"])
def test_every_path_of_the_torch_engine_trains(make_trainer, path):
    trainer = make_trainer(make_policy(), scripted=False, torch_engine_path=path)
    assert trainer.layout == "shared_prompt"
    trainer.train()
    assert trainer.state.log_history[0]["sampling/sampling_logp_difference/max"] < 1e-4


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (
            {"max_completion_length": 5000, "model": make_policy(max_position_embeddings=512)},
            ["max_completion_length", 5000, 512],
        ),
        ({"model": make_policy(vocab_size=100)}, [259, 100, "model.resize_token_embeddings"]),
        ({"model_init_kwargs": {"dtype": "bfloat16"}}, ["model_init_kwargs", "bfloat16", "MiniMindForCausalLM"]),
        ({"router_aux_loss_coef": 0.1}, ["router_aux_loss_coef", 0.1, "MiniMindForCausalLM"]),
        ({"model": make_policy().requires_grad_(False)}, ["is_trainable=True", "model.requires_grad_(True)"]),
        ({"rollout_engine": "vllm"}, ["rollout_engine", "'torch'", "'sglang'", "'vllm'"]),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_does_not_fit_together_is_refused(make_trainer, changes, named):
    scripted = "rollout_engine" not in changes
    with raises_naming(ValueError, *named):
        make_trainer(scripted=scripted, **changes).train()


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"model": 5}, ["model", "int"]),
        ({"model": type(make_policy())}, ["model", "class MiniMindForCausalLM"]),
        ({"processing_class": "folder"}, ["processing_class", "str"]),
        ({"peft_config": {"r": 8}}, ["peft_config", "dict"]),
    ],
)
def test_objects_of_the_wrong_kind_are_refused(make_config, given, named):
    usual = {"model": make_policy(), "processing_class": make_tokenizer()}
    with raises_naming(TypeError, *named):
        GRPOTrainer(reward_funcs=share_of_a, args=make_config(), train_dataset=make_prompts(8), **usual | given)


def test_peft_config_on_a_model_with_adapters_is_refused(make_config):
    with raises_naming(ValueError, "peft_config", "adapters", "merge_and_unload()"):
        GRPOTrainer(
            get_peft_model(make_policy(), LORA),
            share_of_a,
            make_config(),
            train_dataset=make_prompts(8),
            processing_class=make_tokenizer(),
            peft_config=LORA,
        )


def wrong_length(completions, **kwargs):
    return [0.0]


def not_a_number(completions, **kwargs):
    return [math.nan] * len(completions)


def raises(completions, **kwargs):
    raise RuntimeError("out of quota")


@pytest.mark.parametrize("reward", [wrong_length, not_a_number, raises])
def test_a_faulty_reward_stops_the_run_by_name(make_trainer, reward):
    with raises_naming(RewardError, f"'{reward.__name__}'"):
        make_trainer(reward=reward).train()


def test_every_eos_of_the_generation_config_ends_a_completion(make_trainer):
    model = make_policy()
    model.generation_config.eos_token_id = [50, 60]
    trainer = make_trainer(model)
    assert trainer._rollouts.eos_token_ids == (EOS, 50, 60)


def test_default_engine_and_output_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_policy().save_pretrained("policy")
    make_tokenizer().save_pretrained("policy")
    trainer = GRPOTrainer("policy", share_of_a, train_dataset=make_prompts(4))
    assert isinstance(trainer.args, GRPOConfig) and trainer.args.output_dir == "policy-GRPO"
    assert isinstance(trainer._rollouts.engine, TorchEngine)
    assert trainer.model.dtype == torch.float32


def test_model_card_has_valid_metadata_and_says_how_to_load(make_trainer):
    trainer = make_trainer()
    trainer.train()
    trainer.create_model_card(model_name="adder", license="apache-2.0", tags=["maths"])
    card = ModelCard.load(Path(trainer.args.output_dir) / "README.md")
    card.data.to_dict()
    assert card.data.license == "apache-2.0"
    assert {"minimind-hf", "cispo", "maths"} <= set(card.data.tags)
    assert f'AutoModelForCausalLM.from_pretrained("{trainer.args.output_dir}")' in card.text
    assert re.search(r"^\| reward \| [\d.]+ \| [\d.]+ \|$", card.text, re.MULTILINE)
    assert "| num_generations | 4 |" in card.text and "share_of_a" in card.text
    with raises_naming(TypeError, "create_model_card", "flavour"):
        trainer.create_model_card(flavour="sweet")
