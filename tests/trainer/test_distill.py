# SPDX-License-Identifier: Apache-2.0
"""Distillation: the update as a dense reference makes it, whose completions it learns from, teachers of all kinds, and
what is refused."""

import json
from pathlib import Path

import pytest
import torch
from agent_runs import Game, agent_policy, agent_trainer, make_rows
from naming import raises_naming
from peft import LoraConfig, PeftModel, get_peft_model
from tiny import (
    EOS,
    QUIET,
    SGD,
    SIZES,
    ScriptedEngine,
    make_llama,
    make_policy,
    make_prompts,
    make_tokenizer,
    share_of_a,
    tiny_trainer,
)
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from minimind_hf import DistillConfig, DistillTrainer, GRPOConfig, TorchEngine
from minimind_hf.algorithms import generalized_jsd
from minimind_hf.reports.page import write_report
from minimind_hf.reports.record import read_lines
from minimind_hf.trainer.checkpoints.card import model_card
from minimind_hf.trainer.experience.off_policy import chosen_off_policy

DISTILL = {**QUIET, **SIZES, **SGD, "num_generations": 2, "temperature": 0.8}


@pytest.fixture
def make(tmp_path):
    def make(student=None, teacher=None, rewards=None, prompts=24, engine="scripted", arguments=None, **changes):
        config = DistillConfig(output_dir=str(tmp_path / "run"), **{**DISTILL, **changes})
        if teacher is None and config.teacher_model_name_or_path is None:
            teacher = make_policy(seed=1, hidden_size=48)
        return tiny_trainer(config, student, rewards, prompts, engine, teacher_model=teacher, **(arguments or {}))

    return make


def logged(trainer, name: str) -> list[float]:
    return [entry[name] for entry in trainer.state.log_history if "loss" in entry and name in entry]


def dense_step(student, teacher, trainer, rate: float, beta: float, softness: float) -> float:
    """One step of plain SGD on the first rollout: mean over all tokens, row by row, from whole logits."""
    engine = ScriptedEngine(trainer.args.temperature)
    engine.sync_weights(student, 0)
    sampler, count = iter(trainer._train_sampler), trainer.args.prompts_per_rollout
    prompts = [trainer.train_dataset[next(sampler)]["prompt_ids"] for _ in range(count)]
    rollouts = engine.generate(prompts, trainer.args.num_generations, None)
    total, tokens = 0.0, 0
    for index, rollout in enumerate(rollouts):
        prompt = prompts[index // trainer.args.num_generations]
        ids = torch.tensor([prompt + rollout.completion_ids])
        logits = student(input_ids=ids).logits[0, len(prompt) - 1 : -1]
        with torch.no_grad():
            others = teacher(input_ids=ids).logits[0, len(prompt) - 1 : -1]
        logps = [torch.log_softmax(each / softness, dim=-1) for each in (logits, others)]
        total = total + generalized_jsd(*logps, beta).sum()
        tokens += len(rollout.completion_ids)
    loss = total / tokens
    loss.backward()
    with torch.no_grad():
        for parameter in student.parameters():
            parameter -= rate * parameter.grad
    return loss.item()


@pytest.mark.parametrize("layout", ["shared_prompt", "padded"])
@pytest.mark.parametrize(("beta", "softness"), [(0.0, None), (0.5, 1.5), (1.0, None)])
def test_a_step_equals_the_dense_reference(make, layout, beta, softness):
    reference, teacher = make_policy().double(), make_policy(seed=1, hidden_size=48).double()
    trainer = make(
        make_policy().double(),
        make_policy(seed=1, hidden_size=48).double(),
        beta=beta,
        loss_temperature=softness,
        forward_layout=layout,
        max_steps=1,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
    )
    loss = dense_step(reference, teacher, trainer, SGD["learning_rate"], beta, softness or 0.8)
    trainer.train()
    assert logged(trainer, "loss")[0] == pytest.approx(loss, abs=1e-6)
    assert logged(trainer, "divergence")[0] == pytest.approx(loss, abs=1e-6)
    for name, parameter in reference.named_parameters():
        # norms compute in float32, in both
        torch.testing.assert_close(trainer.model.get_parameter(name), parameter, atol=1e-6, rtol=0, msg=name)


def test_shapes_of_batches_change_nothing(make):
    shapes = (
        {"per_device_train_batch_size": 8},
        {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4},
        {"max_tokens_per_microbatch": 24},
    )
    found = []
    for shape in shapes:
        trainer = make(make_policy().double(), make_policy(seed=1).double(), **shape)
        trainer.train()
        found.append({name: tensor.detach().clone() for name, tensor in trainer.model.named_parameters()})
    for other in found[1:]:
        for name, tensor in found[0].items():
            torch.testing.assert_close(other[name], tensor, atol=1e-8, rtol=0, msg=name)


def test_the_student_comes_to_its_teacher(make):
    trainer = make(
        engine=None, max_steps=40, optim="adamw_torch", learning_rate=3e-3, per_device_train_batch_size=16, seed=0
    )
    trainer.train()
    divergences = logged(trainer, "divergence")
    assert sum(divergences[-5:]) < 0.6 * sum(divergences[:5])
    assert max(logged(trainer, "sampling/sampling_logp_difference/max")) < 1e-3
    assert not logged(trainer, "reward") and not logged(trainer, "kl_ref")


# Rewards are only looked at


def test_rewards_are_logged_and_change_nothing(make):
    without, having = make(), make(rewards=share_of_a)
    for trainer in (without, having):
        trainer.train()
    assert len(logged(having, "reward")) == 2 and not logged(without, "reward")
    for one, other in zip(without.model.parameters(), having.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert all("reward" not in line for line in messages(without))


def messages(trainer) -> list[str]:
    path = f"{trainer.args.output_dir}/health.jsonl"
    try:
        with open(path) as file:
            return [json.dumps(json.loads(line)) for line in file]
    except FileNotFoundError:
        return []


def test_evaluation_without_rewards(make):
    trainer = make(arguments={"eval_dataset": make_prompts(5)}, per_device_eval_batch_size=4)
    metrics = trainer.evaluate()
    assert metrics["eval_loss"] == pytest.approx(metrics["eval_divergence"]) and metrics["eval_loss"] > 0
    assert "eval_reward" not in metrics


def test_card_and_run_name_the_algorithm(make):
    trainer = make(log_completions=True)
    trainer.train()
    trainer.save_model()
    card = str(model_card(trainer))
    assert "GKD" in card and "2306.13649" in card and "| divergence |" in card
    with open(f"{trainer.args.output_dir}/run.json") as file:
        assert json.load(file)["algorithm"] == "GKD"


def kept(trainer, name: str) -> list[dict]:
    return read_lines(Path(trainer.args.output_dir) / "samples" / f"{name}.jsonl")


def test_tokens_are_kept_with_their_divergence(make):
    trainer = make(
        make_policy().double(), make_policy(seed=1).double(), learning_rate=0.0, max_steps=1, logging_steps=1
    )
    trainer.train()
    rows, tokenizer = kept(trainer, "tokens"), make_tokenizer()
    assert len(rows) == 4 and all("advantage" not in row and row["reward"] is None for row in rows)
    student, teacher, compared = make_policy().double(), make_policy(seed=1).double(), 0
    for row in rows:
        texts = (row["prompt"], "".join(row["tokens"]))
        prompt, ids = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts)
        if len(ids) != len(row["tokens"]):
            continue  # bytes that are no text
        own, other = (
            torch.log_softmax(model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1] / 0.8, dim=-1)
            for model in (student, teacher)
        )
        assert row["divergence"] == pytest.approx(generalized_jsd(own, other, 1.0).tolist(), abs=1e-4)
        assert row["ratio"] == pytest.approx([1.0] * len(ids), abs=1e-4)
        compared += 1
    assert compared


def test_with_rewards_the_lowest_and_the_highest_are_kept(make):
    trainer = make(rewards=share_of_a, max_steps=1)
    trainer.train()
    rewards = [row["reward"] for row in kept(trainer, "tokens")]
    assert len(rewards) == 4 and rewards == sorted(rewards)
    assert rewards[0] == pytest.approx(logged(trainer, "reward_min")[0], abs=1e-4)
    assert rewards[-1] == pytest.approx(logged(trainer, "reward_max")[0], abs=1e-4)


def test_a_report_without_rewards(make):
    trainer = make(log_completions=True, probe_prompts=2, probe_steps=1)
    trainer.train()
    page = write_report(trainer.args.output_dir).read_text()
    assert "divergence from the teacher" in page and "Probe prompts" in page and "Token by token" in page
    assert "reward -" not in page and "lowest and the highest" not in page


@pytest.mark.parametrize("lmbda", [0.5, 1.0])
def test_probes_leave_a_run_as_it_is(make, lmbda, tmp_path):
    found = []
    for number in (0, 2):
        trainer = make(prompts=answered(24), lmbda=lmbda, probe_prompts=number, probe_steps=1, engine=None)
        trainer.train()
        found.append([parameter.detach().clone() for parameter in trainer.model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    answers = kept(trainer, "probes")
    assert [row["step"] for row in answers] == [0, 0, 1, 1, 2, 2]
    assert all(row["completion"] != f" {index}!" for index, row in enumerate(answers))  # drawn, not the data's


# Whose completions


def answered(count: int) -> list[dict]:
    return [{**row, "completion": f" {row['number']}!"} for row in make_prompts(count)]


def test_a_share_of_the_completions_comes_from_the_data(make):
    trainer = make(prompts=answered(24), lmbda=0.5, max_steps=6, num_generations=1, engine=None)
    seen = []
    record = trainer.record
    trainer.record = lambda experience: (seen.append(experience), record(experience))
    trainer.train()
    tokenizer, kinds = make_tokenizer(), []
    for experience in seen:
        assert experience.off_policy == chosen_off_policy(8, 0.5, experience.seed)
        for prompt, rollout, is_off in zip(
            experience.prompts, experience.rollouts, experience.off_policy, strict=True
        ):
            expected = [*tokenizer(f" {prompt['columns']['number']}!")["input_ids"], EOS]
            assert (rollout.completion_ids == expected) == is_off
            assert all(logp != logp for logp in rollout.logprobs) == is_off
            kinds.append(is_off)
    assert 0.25 < sum(kinds) / len(kinds) < 0.75
    assert logged(trainer, "completions/on_policy")[0] == 1 - sum(kinds[:8]) / 8
    assert max(logged(trainer, "sampling/sampling_logp_difference/max")) < 1e-3  # of those that it drew


@pytest.mark.parametrize("seq_kd", [False, True])
def test_no_completion_of_its_own(make, seq_kd):
    trainer = make(prompts=answered(24), lmbda=0.0, seq_kd=seq_kd, max_steps=2, engine=None, beta=0.0)
    seen = []
    record = trainer.record
    trainer.record = lambda experience: (seen.append(experience), record(experience))
    before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
    trainer.train()
    assert logged(trainer, "completions/on_policy") == [0.0, 0.0]
    assert logged(trainer, "completions/count") == ([8.0, 8.0] if seq_kd else [])  # of those that are drawn
    assert any(not torch.equal(*pair) for pair in zip(before, trainer.model.parameters(), strict=True))
    if seq_kd:  # the teacher's, as an engine with the teacher's weights draws them
        engine = TorchEngine()
        engine.sync_weights(trainer.teacher.model, 0)
        sampling = trainer._rollouts.sampling(seen[0])
        expected = engine.generate(seen[0].prompt_ids, 2, sampling)
        assert [each.completion_ids for each in seen[0].rollouts] == [each.completion_ids for each in expected]


def test_answers_of_conversations(make):
    rows = [
        {"conversations": [{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": "fine"}]}
        for row in make_prompts(8)
    ]
    tokenizer = make_tokenizer()
    for ratio, expected in ((0.0, "fine"), (1.0, "\n</think>\n\nfine")):
        trainer = make(prompts=rows, lmbda=0.0, thinking_ratio=ratio, max_completion_length=32, engine=None)
        experience = trainer.new_experience([trainer.train_dataset[0]])
        trainer.rollout(experience)
        assert tokenizer.decode(experience.rollouts[0].completion_ids[:-1]) == expected
    trainer.args.max_completion_length = 5
    trainer.rollout(experience)
    assert experience.rollouts[0].is_truncated and len(experience.rollouts[0].completion_ids) == 5


# Teachers


def adapter(folder, base, seed: int, **changes):
    """A folder of LoRA on a saved base, whose weights are not 0."""
    model = AutoModelForCausalLM.from_pretrained(base)
    model = get_peft_model(model, LoraConfig(**{"r": 4, "target_modules": "all-linear", **changes}))
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data.normal_(std=0.05, generator=generator)
    model.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def base(tmp_path):
    make_policy().save_pretrained(tmp_path / "base")
    return str(tmp_path / "base")


LORA = {"peft_config": LoraConfig(r=8, target_modules=["q_proj", "v_proj"])}


@pytest.mark.parametrize("target", ["all-linear", ["q_proj", "lm_head"]], ids=["body", "head too"])
def test_an_adapter_on_the_same_base_shares_it(make, base, tmp_path, target):
    folder = adapter(tmp_path / "teacher", base, seed=3, target_modules=target)
    whole = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folder)
    trainers = [make(base, teacher, arguments=LORA, max_steps=3) for teacher in (folder, whole)]
    shared, separate = trainers
    assert shared.teacher.model is None and separate.teacher.model is not None
    assert shared.policy.active_adapter == "default" and "teacher" in shared.policy.peft_config
    for trainer in trainers:
        frozen = {n: p.detach().clone() for n, p in trainer.policy.named_parameters() if not p.requires_grad}
        trainer.train()
        for name, tensor in frozen.items():
            assert torch.equal(trainer.policy.get_parameter(name), tensor), name
    assert logged(shared, "divergence") == pytest.approx(logged(separate, "divergence"), abs=1e-6)
    assert min(logged(shared, "divergence")) > 1e-4
    for name, parameter in separate.policy.named_parameters():
        if parameter.requires_grad:
            torch.testing.assert_close(shared.policy.get_parameter(name), parameter, atol=1e-6, rtol=0)
    shared.save_model()
    out = tmp_path / "run"
    assert (out / "adapter_model.safetensors").is_file() and not (out / "teacher").exists()


def test_an_adapter_on_another_base_brings_its_own(make, base, tmp_path):
    make_policy(seed=4).save_pretrained(tmp_path / "other")
    folder = adapter(tmp_path / "teacher", tmp_path / "other", seed=3)
    trainer = make(base, folder, arguments=LORA)
    assert isinstance(trainer.teacher.model, PeftModel) and "teacher" not in trainer.policy.peft_config
    assert not any(parameter.requires_grad for parameter in trainer.teacher.model.parameters())
    trainer.train()
    # A student without adapters moves the base itself
    assert make(base, adapter(tmp_path / "own", base, seed=3)).teacher.model is not None


def test_a_folder_of_another_architecture_by_the_settings(make, tmp_path):
    make_llama().save_pretrained(tmp_path / "llama")
    make_tokenizer().save_pretrained(tmp_path / "llama")
    trainer = make(teacher_model_name_or_path=str(tmp_path / "llama"), teacher_model_init_kwargs={"dtype": "bfloat16"})
    assert trainer.teacher.model.dtype == torch.bfloat16
    trainer.train()
    assert logged(trainer, "divergence")[0] > 0


def test_episodes(tmp_path):
    config = DistillConfig(
        output_dir=str(tmp_path), **{**DISTILL, "max_completion_length": 200, "per_device_train_batch_size": 4}
    )
    trainer = agent_trainer(
        tmp_path,
        model=agent_policy(ends=None),
        rewards=None,
        rows=make_rows(8),
        engine="scripted",
        args=config,
        environment_factory=Game,
        teacher_model=agent_policy(ends=None, seed=1),
    )
    seen = []
    loss = trainer.loss
    trainer.loss = lambda model, batch, *rest: (seen.append(batch), loss(model, batch, *rest))[1]
    trainer.train()
    assert any(0 < batch.loss_mask[row].sum() < len(batch.completion_ids[row]) for batch in seen for row in range(1))
    assert len(logged(trainer, "divergence")) == 2 and len(logged(trainer, "episodes/turns")) == 2


# What is refused, before training


def test_teachers_that_are_refused(make, base, tmp_path):
    with raises_naming(ValueError, "teacher_model_name_or_path"):
        DistillTrainer(base, args=DistillConfig(str(tmp_path / "run"), **QUIET))
    with raises_naming(ValueError, "teacher_model", "teacher_model_name_or_path", repr(base)):
        make(teacher=make_policy(seed=1), teacher_model_name_or_path=base)
    with raises_naming(ValueError, "student", repr(base)):
        make(base, base)
    student = make_policy()
    with raises_naming(ValueError, "student"):
        make(student, student)
    with raises_naming(TypeError, "teacher_model", "int"):
        make(teacher=3)
    with raises_naming(ValueError, "teacher_model_init_kwargs", "MiniMindForCausalLM"):
        make(teacher_model_init_kwargs={"dtype": "float32"})
    with raises_naming(ValueError, tmp_path / "nowhere"):
        make(teacher=str(tmp_path / "nowhere"))


def test_other_vocabularies_are_refused_by_name(make, tmp_path):
    other = tmp_path / "other"
    make_policy(vocab_size=300).save_pretrained(other)
    (other / "model.safetensors").unlink()  # it is refused without a look at its weights
    (other / "pytorch_model.bin").write_bytes(b"")
    with raises_naming(ValueError, other, 300, 259):
        make(teacher=str(other))
    with raises_naming(ValueError, "teacher_model", 300, 259):
        make(teacher=make_policy(vocab_size=300))
    make_policy(seed=1).save_pretrained(tmp_path / "same")
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(tmp_path / "same")
    make(teacher=str(tmp_path / "same"))
    swapped = json.loads(tokenizer.backend_tokenizer.to_str())
    vocabulary = swapped["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(swapped))
    PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json")).save_pretrained(tmp_path / "same")
    with raises_naming(ValueError, tmp_path / "same", "'a'", "'b'", vocabulary["a"], vocabulary["b"]):
        make(teacher=str(tmp_path / "same"))


def test_data_that_hold_no_answers_are_refused(make):
    rows = [*answered(11), make_prompts(12)[11]]
    with raises_naming(ValueError, "row 11", "lmbda", "completion"):
        make(prompts=rows, lmbda=0.5)
    make(prompts=rows, lmbda=0.5, seq_kd=True)


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"beta": 1.5}, ("beta", 1.5)),
        ({"lmbda": -0.1}, ("lmbda", -0.1)),
        ({"loss_temperature": 0.0}, ("loss_temperature", 0.0)),
        ({"seq_kd": True}, ("seq_kd", "lmbda")),
        ({"rollout_correction": "mask"}, ("rollout_correction", "'mask'")),
        ({"turn_discount": 0.9}, ("turn_discount", 0.9)),
        ({"max_new_tokens": 5, "max_completion_length": 8}, ("max_new_tokens", 5, 8)),
        ({"loss_aggregation": "local_token"}, ("loss_aggregation", "'local_token'")),
        ({"teacher_model_init_kwargs": "float32"}, ("teacher_model_init_kwargs", "'float32'")),
    ],
)
def test_settings_that_are_refused(tmp_path, settings, names):
    with raises_naming(ValueError, *names):
        DistillConfig(output_dir=str(tmp_path), **QUIET, **settings)


def test_names_of_trl(tmp_path, make):
    config = DistillConfig(str(tmp_path), max_new_tokens=5, **QUIET)
    assert config.max_completion_length == 5
    config.check_again()
    with raises_naming(ValueError, "GRPOConfig", "DistillConfig"):
        DistillTrainer(make_policy(), make_policy(seed=1), GRPOConfig(str(tmp_path), **QUIET))
