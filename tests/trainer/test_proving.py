# SPDX-License-Identifier: Apache-2.0
"""The forward pass of an update proves itself on completions of the run. Faults are put in, and each is found."""

import pytest
import torch
from peft import LoraConfig
from tiny import GRPO, PPO, QUIET, SGD, SIZES, make_policy, random_ids, tiny_trainer

from minimind_hf import DistillConfig, GRPOConfig, PPOConfig
from minimind_hf.forward import lean, shared_prompt
from minimind_hf.forward.kept_tokens import KeptTokens
from minimind_hf.forward.lean import restore_forwards
from minimind_hf.forward.proof import Finding, compare_scores, tolerance_of
from minimind_hf.forward.row_layout import Group
from minimind_hf.forward.token_batch import TokenBatch
from minimind_hf.trainer.experience import forward_proof
from minimind_hf.trainer.experience.forward_proof import ForwardProof, few_completions

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture
def said(monkeypatch) -> list[str]:
    """The lines that proofs log."""
    lines = []
    monkeypatch.setattr(forward_proof.logger, "warning", lambda line, *values: lines.append(line % values))
    return lines


def make(tmp_path, algorithm, verify="always", **changes):
    model, lora = changes.pop("model", None), changes.pop("peft_config", None)
    engine = None if "top_k" in changes else "scripted"
    settings, config = (GRPO, GRPOConfig) if algorithm == "grpo" else (PPO, PPOConfig)
    args = config(str(tmp_path), **settings | {"verify_fast_paths": verify} | changes)
    return tiny_trainer(args, model, engine=engine, peft_config=lora)


def trained(trainer) -> dict[str, torch.Tensor]:
    trainer.train()
    trainer.end()
    return {name: value.clone() for name, value in trainer.model.state_dict().items()}


def assert_same(weights, others):
    assert weights.keys() == others.keys()
    for name, value in weights.items():
        assert torch.equal(value, others[name]), name


CASES = {
    "layout": {},
    "padded": {"forward_layout": "padded"},
    "moe": {"model": lambda: make_policy(use_moe=True)},
    "bf16": {"bf16": True},
    "truncated": {"top_k": 20},
    "lora": {"peft_config": LoraConfig(r=2, target_modules="all-linear")},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_equal_forwards_change_nothing(tmp_path, algorithm, case, said):
    changes = CASES[case]

    def run(verify):
        given = {"model": changes["model"]()} if "model" in changes else {}
        return trained(make(tmp_path, algorithm, verify, **changes | given))

    expected = run("off")
    assert said == []
    assert_same(run("always"), expected)
    (line,) = said
    assert "equals" in line and ("padded layout" if case == "padded" else "shared_prompt") in line
    assert "gradients" in line and ("values" in line) == (algorithm == "ppo")


def later_tokens_seen(patch):
    """A mask that hides nothing."""
    original = Group.masks

    def masks(*args):
        prompt, completions = original(*args)
        return prompt, torch.ones_like(completions)

    patch(Group, "masks", masks)


def prompts_unseen(patch):
    """A completion that attends to the prompt of another group as far as lengths allow: here to none of its own."""
    original = Group.masks

    def masks(group, *args):
        prompt, completions = original(group, *args)
        completions[:, : group.prompt_length // 2] = False
        return prompt, completions

    patch(Group, "masks", masks)


def backward_wrong(patch):
    """A kernel that is right forward and wrong backward."""
    original = lean._RMSNorm.backward

    def backward(ctx, grad):
        of_x, *others = original(ctx, grad)
        return None if of_x is None else of_x * 1.5, *others

    patch(lean._RMSNorm, "backward", staticmethod(backward))


def kernel_missing(patch):
    def attention(*args, **kwargs):
        raise NotImplementedError("no kernel image is available for execution on the device")

    patch(shared_prompt, "_by_group", attention)


def not_a_number(patch):
    original = shared_prompt._by_group
    patch(shared_prompt, "_by_group", lambda *args: original(*args) * float("nan"))


FAULTS = {
    later_tokens_seen: "log-probabilities differ",
    prompts_unseen: "log-probabilities differ",
    backward_wrong: "gradients of log-probabilities differ",
    kernel_missing: "NotImplementedError: no kernel image is available",
    not_a_number: "log-probabilities differ by nan",
}


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.__name__ for fault in FAULTS])
@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_a_fault_is_found_and_the_plain_forward_taken(tmp_path, algorithm, fault, monkeypatch, said):
    plain = make(tmp_path, algorithm, "off", forward_layout="padded")
    restore_forwards(plain.model)
    restore_forwards(plain.reference.model)
    expected = trained(plain)
    trainer = make(tmp_path, algorithm)
    fault(monkeypatch.setattr)  # after the trial on made-up completions: it is the device that is wrong
    for name, value in trained(trainer).items():
        torch.testing.assert_close(value, expected[name], atol=1e-5, rtol=0)  # the first rollout came before
    assert trainer.layout == "padded" and not restore_forwards(trainer.model)
    assert not restore_forwards(trainer.reference.model)
    (line,) = said
    assert FAULTS[fault] in line and "shared_prompt" in line


def make_distillation(tmp_path, verify="always", **changes):
    settings = QUIET | SIZES | SGD | {"num_generations": 2, "verify_fast_paths": verify} | changes
    return tiny_trainer(DistillConfig(str(tmp_path), **settings), teacher_model=make_policy(seed=1, hidden_size=48))


def test_a_teacher_is_proved_by_itself(tmp_path, said):
    expected = trained(make_distillation(tmp_path, "off"))
    assert said == []
    assert_same(trained(make_distillation(tmp_path)), expected)
    assert len(said) == 2 and all("equals" in line and "shared_prompt" in line for line in said)
    assert "Updates of" in said[0] and "gradients" in said[0]
    assert "teacher" in said[1] and "gradients" not in said[1]


@pytest.mark.parametrize("whose", ["student", "teacher", "both"])
def test_a_fault_of_a_distillation_is_found(tmp_path, whose, monkeypatch, said):
    plain = make_distillation(tmp_path, "off", forward_layout="padded")
    restore_forwards(plain.model)
    restore_forwards(plain.teacher.model)
    expected = trained(plain)
    trainer = make_distillation(tmp_path)
    models = {"student": [trainer.model], "teacher": [trainer.teacher.model]}
    models["both"] = [*models["student"], *models["teacher"]]
    original = shared_prompt._by_group
    widths = {model.config.hidden_size for model in models[whose]}

    def attention(query, *rest):
        return original(query, *rest) * (float("nan") if query.shape[1] * query.shape[3] in widths else 1.0)

    monkeypatch.setattr(shared_prompt, "_by_group", attention)
    for name, value in trained(trainer).items():
        torch.testing.assert_close(value, expected[name], atol=1e-5, rtol=0)
    is_plain = {"student": trainer.layout == "padded", "teacher": trainer.teacher.layout == "padded"}
    assert is_plain == {name: whose in (name, "both") for name in is_plain}
    assert all(not restore_forwards(model) for model in models[whose])


def test_a_critic_is_proved_by_itself(tmp_path, monkeypatch, said):
    trainer = make(tmp_path, "ppo")
    critic = trainer.model.critic
    original = critic.forward

    def forward(*args, **kwargs):
        outputs = original(*args, **kwargs)
        if "shared_prompt" in kwargs:
            outputs.logits = outputs.logits.flip(1)
        return outputs

    monkeypatch.setattr(critic, "forward", forward)
    trained(trainer)
    (line,) = said
    assert "(values differ" in line and trainer.model.values_layout == trainer.model.layout == "padded"


def test_in_bfloat16_a_fault_is_more_than_rounding(tmp_path, monkeypatch, said):
    trainer = make(tmp_path, "grpo", bf16=True)
    later_tokens_seen(monkeypatch.setattr)
    trained(trainer)
    assert "bfloat16" in said[0] and trainer.layout == "padded"


def test_another_process_may_have_the_fault(monkeypatch, said):
    monkeypatch.setattr(forward_proof, "gather", lambda own: [own, "logits differ by 3"])
    proof = ForwardProof("first", CUDA)
    assert not proof.holds(make_policy(), "shared_prompt", lambda: Finding(None, "nothing"))
    assert "logits differ by 3" in said[0]


@pytest.mark.parametrize(
    ("mode", "device", "due"),
    [
        ("first", CPU, [False]),
        ("first", CUDA, [True, False]),
        ("always", CPU, [True, True, True]),
        ("always", CUDA, [True, True, True]),
        ("off", CUDA, [False]),
    ],
)
def test_when_it_is_due(mode, device, due, said):
    proof = ForwardProof(mode, device)
    for expected in due:
        assert proof.is_due == expected
        if expected:
            assert proof.holds(make_policy(), "shared_prompt", lambda: Finding(None, "nothing"))
    assert len(said) == any(due)


def batch_of(lengths, with_sets=False) -> TokenBatch:
    prompts, completions = random_ids(1 + max(group for group, _ in lengths)), []
    for number, (_, length) in enumerate(lengths):
        completions.append(random_ids(1, number, length, length)[0])
    sets = [KeptTokens.of([torch.tensor([token]).numpy() for token in ids]) for ids in completions]
    return TokenBatch(
        prompt_ids=[prompts[group] for group, _ in lengths],
        completion_ids=completions,
        group_ids=[group for group, _ in lengths],
        device=CPU,
        kept=sets if with_sets else None,
    )


def test_a_few_completions_are_unequal_and_cut():
    batch = batch_of([(0, 5), (0, 2), (0, 200), (1, 3), (1, 3), (2, 9)], with_sets=True)
    few = few_completions(batch, vocab_size=259)
    assert [len(ids) for ids in few.completion_ids] == [2, 128, 3, 3]
    assert [len(sets) for sets in few.kept] == [2, 128, 3, 3]
    assert few.group_ids == [0, 0, 1, 1]
    assert few.completion_ids[1] == batch.completion_ids[2][:128]
    huge = few_completions(batch, vocab_size=2**20)  # 2^26 logits are 64 tokens, 16 for each of 4
    assert max(map(len, huge.completion_ids)) == 16


def test_gradients_of_the_run_are_left_alone():
    model = make_policy()
    shared_prompt.attach(model)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    found = compare_scores(model, batch_of([(0, 3), (0, 5), (1, 2)]), 0.8, "shared_prompt", torch.float32)
    assert found.fault is None
    assert all((parameter.grad == 1).all() for parameter in model.parameters())


def test_tensor_float_is_rounding():
    exact, before = tolerance_of(torch.float32, CUDA), torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        rounded = tolerance_of(torch.float32, CUDA)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    assert exact.logits < rounded.logits < tolerance_of(torch.bfloat16, CUDA).logits
    assert tolerance_of(torch.float32, CPU) == exact
