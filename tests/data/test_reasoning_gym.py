# SPDX-License-Identifier: Apache-2.0
"""reasoning-gym's tasks as data sets, and their own scorers as rewards."""

import sys

import pytest

from minimind_hf import load_prompts
from minimind_hf.data import PromptError
from minimind_hf.rewards import RewardScorer
from minimind_hf.tasks import make_task, parse_task

gym = pytest.importorskip("reasoning_gym", reason="needs the extra 'reasoning-gym'")
EASY = "reasoning_gym:chain_sum,size=40,max_terms=2,max_digits=1"


def score(dataset, completions) -> list[float]:
    columns = {name: dataset[name][: len(completions)] for name in dataset.column_names if name != "prompt"}
    scorer = RewardScorer(["reasoning_gym"])
    return scorer([""] * len(completions), completions, [[1]] * len(completions), columns)[:, 0].tolist()


def test_problems_are_prompts_with_their_answers():
    dataset = load_prompts(EASY)
    assert len(dataset) == 40
    row = dataset[0]
    assert row["prompt"][0]["role"] == "user" and row["prompt"][0]["content"].endswith("=")
    expression = row["prompt"][0]["content"].split(":")[1].rstrip("= ")
    assert int(row["answer"]) == eval(expression)
    assert load_prompts(EASY)[:] == dataset[:]  # the same each time
    assert load_prompts(EASY + ",seed=1")[:] != dataset[:]


def test_the_scorer_of_the_task_is_the_reward():
    dataset = load_prompts(EASY)
    right = [f"let me see</think>{answer}" for answer in dataset["answer"][:4]]
    assert score(dataset, right) == [1.0] * 4
    assert score(dataset, [f"I say <answer>{answer}</answer>." for answer in dataset["answer"][:4]]) == [1.0] * 4
    assert score(dataset, ["x"] * 4) == [0.0] * 4
    (partial,) = score(dataset, [f"it is {dataset['answer'][0]}"])
    assert 0 < partial < 1


@pytest.mark.parametrize(
    ("options", "field", "expected"),
    [
        ("basic_arithmetic,operators=[+,-]", "operators", ["+", "-"]),
        ('basic_arithmetic,size=9,operators=["*"],max_terms=3', "operators", ["*"]),
        ("simple_equations,operators_weights=[0.5,0.5,0]", "operators_weights", [0.5, 0.5, 0]),
        ("fraction_simplification,styles=[plain,latex_inline]", "styles", ("plain", "latex_inline")),
        ("polynomial_multiplication,variables=[x,y]", "variables", ("x", "y")),
        ("calendar_arithmetic,tasks=[weekday_offset]", "tasks", ["weekday_offset"]),
        ('arc_agi,rotations=["90","180"],mirrors=[]', "mirrors", []),
    ],
)
def test_options_that_are_lists(options, field, expected):
    source = f"reasoning_gym:{options},seed=2"
    task = make_task(parse_task(source))
    found = getattr(task.config, field)
    assert (list(found), len(found)) == (list(expected), len(expected))
    if "arc_agi" in options:
        return  # its answers are grids
    dataset = load_prompts(source, split="train[:3]")
    assert score(dataset, dataset["answer"]) == [1.0] * 3


def test_enumerations_are_taken_by_value():
    (kind,) = make_task(parse_task("reasoning_gym:aiw,task_types=[siblings]")).config.task_types
    assert kind.name == "SIBLINGS"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("basic_arithmetic,operators=+", r"operators is a list, so write operators=\[\+\]"),
        ("basic_arithmetic,operators=[+,-", "brackets"),
        ("basic_arithmetic,operators=+]", "brackets"),
        ("basic_arithmetic,operators=[%]", "operators"),
        ("aiw,task_types=[cousins]", "'cousins' is not a valid TaskType"),
        ('composite,datasets=[{"name":"aiw","weight":1}]', "is a mapping"),
    ],
)
def test_lists_that_cannot_be(options, message):
    with pytest.raises(PromptError, match=message):
        load_prompts(f"reasoning_gym:{options}")


def test_a_task_without_a_single_right_answer():
    """The answer of another solution scores as the task's own scorer says, on the very problem that was asked."""
    dataset = load_prompts("reasoning_gym:countdown,size=5")
    task = make_task(parse_task("reasoning_gym:countdown,size=5"))
    expressions = [task[i]["metadata"]["expression"] for i in range(5)]
    assert score(dataset, expressions) == [task.score_answer(e, task[i]) for i, e in enumerate(expressions)]
    assert max(score(dataset, expressions)) == 1.0


def test_held_out_problems_do_not_occur_in_training():
    source = "reasoning_gym:chain_sum,size=60,max_terms=2,max_digits=1"
    train, test = (load_prompts(source, split=split) for split in ("train", "test"))
    questions = [{row["prompt"][0]["content"] for row in part} for part in (train, test)]
    assert 0 < len(test) < 60 and not questions[0] & questions[1]
    assert score(test, test["answer"][:5]) == [1.0] * 5
    assert len(load_prompts(source, split="test[:3]")) == 3


def test_difficulty_is_a_level_of_the_curriculum():
    easy = make_task(parse_task("reasoning_gym:chain_sum,difficulty=0")).config
    hard = make_task(parse_task("reasoning_gym:chain_sum,difficulty=3,size=7,max_digits=2")).config
    assert hard.max_terms > easy.max_terms
    assert (hard.size, hard.max_digits) == (7, 2)  # what is said explicitly wins
    assert make_task(parse_task("reasoning_gym:chain_sum,difficulty=1000")).config.max_terms == 12


def test_system_prompts_of_reasoning_gym():
    row = load_prompts(EASY + ",system=direct")[0]
    assert row["prompt"][0]["role"] == "system" and "<answer>" in row["prompt"][0]["content"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("reasoning_gym:chain_sums", "no task 'chain_sums'; .*'chain_sum'"),
        ("reasoning_gym:chain_sum,colour=3", "no option 'colour'; it has"),
        ("reasoning_gym:chain_sum,size", "does not name a task"),
        ("reasoning_gym:,size=3", "does not name a task"),
        ("reasoning_gym:chain_sum,size=0", "size is 0; it must be a whole number"),
        ("reasoning_gym:chain_sum,difficulty=x", "difficulty is 'x'"),
        ("reasoning_gym:chain_sum,max_terms=1", "options of the task 'chain_sum' do not fit"),
        ("reasoning_gym:chain_sum,system=loud", "no system prompt 'loud'; it has"),
    ],
)
def test_what_cannot_be_made_is_refused(source, message):
    with pytest.raises(PromptError, match=message):
        load_prompts(source)


def test_other_splits_and_nothing_to_hold_out():
    with pytest.raises(PromptError, match="splits 'train' and 'test', but 'validation'"):
        load_prompts(EASY, split="validation")
    few = "reasoning_gym:chain_sum,size=3000,min_terms=1,max_terms=1,max_digits=1"
    with pytest.raises(PromptError, match="no problem to hold out"):
        load_prompts(few, split="test")


def test_the_extra_is_named_where_it_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    make_task.cache_clear()
    with pytest.raises(PromptError, match=r"pip install 'minimind-hf\[reasoning-gym\]'"):
        load_prompts(EASY)
