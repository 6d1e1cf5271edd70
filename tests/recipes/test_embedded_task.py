# SPDX-License-Identifier: Apache-2.0
"""The embedded task is right, its held-out sums are held out, and its rewards tell right from wrong."""

import embedded_task
import pytest
import torch
from embedded_task import Sum, correct_answer, correct_steps, make_tokenizer, split_sums
from naming import raises_naming
from transformers import AutoModelForCausalLM, AutoTokenizer

from minimind_hf import PromptDataset


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


def completion(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


def test_held_out_sums_are_seen_in_neither_order():
    train, held_out = split_sums()
    assert len(held_out) == len(set(held_out)) == 512
    assert {frozenset((x.a, x.b)) for x in train}.isdisjoint(frozenset((x.a, x.b)) for x in held_out)


def test_every_sum_of_two_digit_numbers_is_on_one_side():
    train, held_out = split_sums()
    both_orders = {(x.a, x.b) for x in held_out} | {(x.b, x.a) for x in held_out}
    assert len(train) == len(set(train))
    assert {(x.a, x.b) for x in train} | both_orders == {(a, b) for a in range(10, 100) for b in range(10, 100)}


def test_the_split_is_the_same_in_every_run():
    assert split_sums() == split_sums()


def test_each_step_of_each_solution_is_true():
    train, held_out = split_sums()
    for problem in train + held_out:
        for step in problem.steps:
            assert len({sum(map(int, side.split("+"))) for side in step.split("=")}) == 1, step


@pytest.mark.parametrize(
    ("a", "b", "solution"),
    [
        (12, 34, "2+4=6\n1+3=4\n</think>\n\n46"),
        (47, 85, "7+5=12\n4+8=12\n12+1=13\n</think>\n\n132"),
        (90, 10, "0+0=0\n9+1=10\n</think>\n\n100"),
    ],
)
def test_solution(a, b, solution):
    assert Sum(a, b).solution == solution


def test_the_answer_follows_from_the_steps():
    train, _ = split_sums()
    for problem in train:
        results = [step.rsplit("=", 1)[1] for step in problem.steps]
        assert results[-1] + results[0][-1] == problem.answer


def test_rewards_of_a_right_and_of_wrong_completions():
    right = Sum(47, 85).solution
    texts = [
        right,
        right.replace("132", "133"),  # wrong answer, right steps
        right.replace("4+8=12", "4+8=11"),  # the second step is wrong, the answer right
        right.replace("7+5=12", "7+5=11"),  # the first one
        "132",  # no thinking
        right + "</think>",  # closed twice
        right.replace("132", "132 or so"),
        "7+5=12\n</think>\n\n132",  # a step is missing
        "",
    ]
    completions = [completion(text) for text in texts]
    answers = correct_answer(completions=completions, answer=["132"] * 9, prompts=None)
    steps = correct_steps(completions=completions, steps=[Sum(47, 85).steps] * 9, prompts=None)
    assert answers == [1, 0, 1, 1, 0, 0, 0, 1, 0]
    assert steps == [3, 3, 1, 0, 0, 3, 3, 1, 0]


def test_tokenizer_has_minimind_ids_and_single_digits(tokenizer):
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)
    assert tokenizer.convert_ids_to_tokens([0, 1, 2]) == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    ids = tokenizer("<think>\n4+8=12\n12+1=13\n</think>\n\n132<|im_end|>")["input_ids"]
    assert [token for token in tokenizer.convert_ids_to_tokens(ids) if token.isdigit()] == list("481212113132")
    assert tokenizer.decode(ids, skip_special_tokens=True) == "<think>\n4+8=12\n12+1=13\n</think>\n\n132"


def test_any_text_survives_the_tokenizer(tokenizer):
    text = "什么是 3 + 4?  <think>\n\tünï\n</think>"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


@pytest.mark.parametrize(("thinking", "opening"), [(1.0, "<think>\n"), (0.0, "<think>\n\n</think>\n\n")])
def test_prompt_in_minimind_chat_format(tokenizer, thinking, opening):
    rows = embedded_task.as_dataset([Sum(47, 85)])
    prompt = PromptDataset(rows, tokenizer, thinking_ratio=thinking)[0]
    expected = f"<|im_start|>user\n47 + 85 = ?<|im_end|>\n<|im_start|>assistant\n{opening}"
    assert tokenizer.decode(prompt["prompt_ids"]) == expected
    assert prompt["columns"] == {"answer": "132", "steps": Sum(47, 85).steps}


def test_example_is_prompt_and_solution(tokenizer):
    problem = Sum(99, 99)
    example = embedded_task._example(tokenizer, problem)
    prompt = PromptDataset(embedded_task.as_dataset([problem]), tokenizer, thinking_ratio=1.0)[0]["prompt_ids"]
    taught = [label for label in example["labels"] if label != -100]
    assert example["input_ids"] == prompt + taught
    assert tokenizer.decode(taught) == problem.solution + "<|im_end|>"
    assert len(taught) <= embedded_task.MAX_COMPLETION_LENGTH


def test_model_starts_from_its_seed_alone(tokenizer):
    first = embedded_task.make_model(tokenizer, seed=3)
    torch.rand(5)
    again, other = (embedded_task.make_model(tokenizer, seed) for seed in (3, 4))
    assert 0.8e6 < first.num_parameters() < 2e6
    assert torch.equal(first.lm_head.weight, again.lm_head.weight)
    assert not torch.equal(first.lm_head.weight, other.lm_head.weight)


def test_teaching_lowers_the_loss_and_stops_when_told(tokenizer, monkeypatch):
    checked = []
    monkeypatch.setattr(embedded_task, "measure", lambda *args, **kwargs: checked.append(args) or 0.5)
    model = embedded_task.make_model(tokenizer, seed=0)
    batch = torch.tensor([embedded_task._example(tokenizer, Sum(47, 85))["input_ids"]])
    before = model(batch, labels=batch).loss.item()
    embedded_task.teach(model, tokenizer, max_steps=12, enough=0.6, seed=0)
    assert len(checked) == 2  # after updates 5 and 10 of 12
    assert model(batch, labels=batch).loss.item() < 0.8 * before
    embedded_task.teach(model, tokenizer, max_steps=50, enough=0.5, seed=0)
    assert len(checked) == 3  # stopped at the first


def test_measure_counts_right_samples(tokenizer, monkeypatch):
    sums = [Sum(12, 34), Sum(47, 85)]
    texts = [sums[0].solution, "46", sums[1].solution, sums[1].solution]  # two samples for each
    monkeypatch.setattr(embedded_task, "sample", lambda *args: texts)
    assert embedded_task.measure(None, tokenizer, sums, samples_per_sum=2) == 0.75


@pytest.mark.slow
def test_start_is_saved_and_measured_alike_in_a_fresh_process(tmp_path, capsys):
    accuracy = embedded_task.make_start(tmp_path, max_steps=5, enough=1.0, seed=0, device="cpu")
    assert 0 <= accuracy < 0.1  # five updates teach nothing yet
    assert len(AutoTokenizer.from_pretrained(tmp_path)) == AutoModelForCausalLM.from_pretrained(tmp_path).vocab_size
    assert embedded_task.measure_in_fresh_process(tmp_path, "cpu") == pytest.approx(accuracy, abs=0.01)
    assert capsys.readouterr().out.count(" = ?") == 3  # it shows three answers


@pytest.mark.slow
def test_a_folder_that_cannot_be_loaded_says_why(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with raises_naming(RuntimeError, tmp_path, "Traceback"):
        embedded_task.measure_in_fresh_process(tmp_path, "cpu")
