# SPDX-License-Identifier: Apache-2.0
"""Answers that can be checked: what is right, what is wrong, and what is neither."""

import json
import random
import sys
import threading
from pathlib import Path

import pytest
from naming import raises_naming

from minimind_hf.rewards import RewardError, RewardScorer, exact_match_score, json_schema_score, regex_score
from minimind_hf.rewards.verifiable import final_answer

GSM8K = Path(__file__).resolve().parents[3] / "shared" / "data" / "gsm8k_200.jsonl"
maths = pytest.importorskip("math_verify", reason="needs the extra 'verify'")


def score(reward, completions, **columns) -> list:
    """One signal, None as None."""
    scorer = RewardScorer([reward])
    signals = scorer(["?"] * len(completions), completions, [[1]] * len(completions), columns)[:, 0].tolist()
    return [None if signal != signal else signal for signal in signals]


@pytest.mark.parametrize(
    ("response", "reference", "expected"),
    [
        ("The answer is 18.", "18", 1.0),
        ("so it is 18</think>17", "18", 0.0),  # the thought does not count
        ("17</think>So there are $18$ of them.", "18", 1.0),
        (r"\boxed{\frac{1}{2}}", "0.5", 1.0),
        (r"$\frac{2}{4}$", r"$\frac{1}{2}$", 1.0),
        ("$x + 1$", "$1 + x$", 1.0),
        ("1,000", "1000", 1.0),
        ("36 / 2 = 18\n#### 18", "half of 36\n#### 18", 1.0),
        ("#### 18\n19 is wrong", "18", 1.0),
        ("36", "#### 18", 0.0),
        ("", "18", 0.0),
        ("no idea", "18", 0.0),
    ],
)
def test_math(response, reference, expected):
    assert score("math", [response], answer=[reference]) == [expected]


def said_of(reference: str, *responses: str) -> list:
    return score("math", list(responses), answer=[reference] * len(responses))


@pytest.mark.parametrize(
    ("reference", "right", "wrong"),
    [
        (r"1 - \sqrt{2}", r"1-\sqrt2", "1"),
        (r"\sqrt{2}", "sqrt(2)", "2"),
        ("x^2+1", "1 + x^2", "1"),
        (r"\pi", "π", "3"),
        ("[2,5)", "[2, 5)", "(2, 5]"),
        ("6 - 5i", "-5i + 6", "5"),
        ("5!", "120", "5"),
        ("1,2", "2, 1", "1.2"),
        ("1, 2, 3", r"\{3, 2, 1\}", "3"),
        ("3 or 4", "4 and 3", "4"),
        ("3x", "2x + x", "3"),
        (r"\frac{\sqrt{3}}{2}", r"\sqrt{3}/2", "2"),
        ("2x + 3y = 7", "3y + 2x = 7", "7"),
        (r"(-\infty, 3]", "(-∞, 3]", "3"),
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}", "2"),
        ("2^{10}", "1024", "2"),
        ("1e3", "1000", "1"),
        ("1.5e-7", r"1.5 \times 10^{-7}", "1.5"),
        ("-3", "- 3", "3"),
        ("2√3", r"2\sqrt{3}", "2"),
    ],
)
def test_math_compares_the_whole_expression_with_and_without_delimiters(reference, right, wrong):
    frames = ("{}", "${}$", r"\boxed{{{}}}", "Half of it.\n#### {}", "So the answer is {}.")
    answers = [frame.format(right) for frame in frames]
    for written in (reference, f"${reference}$", rf"\boxed{{{reference}}}", f"a solution\n#### {reference}"):
        assert said_of(written, reference, *answers) == [1.0] * 6, written
        assert said_of(written, *(frame.format(wrong) for frame in frames)) == [0.0] * 5, written


@pytest.mark.parametrize(
    ("reference", "same"),
    [("$1,234.50", "1234.5"), ("1 000", "1000"), ("12 cm", "12"), ("5 m/s", "5"), ("5m", "5"), ("3/4 cup", "0.75")]
    + [("50%", "0.5"), ("half of 36", "36"), ("The answer is 4.", "4"), ("x = 5", "so x = 5, which is even")]
    + [("The value of $x$ is 2\\pi", "2π"), ("**5**", "It is **5**, I think."), ("12", "It is 12 m long.")],
)
def test_math_reads_prose_units_and_thousands(reference, same):
    assert said_of(reference, same, "17") == [1.0, 0.0]


@pytest.mark.parametrize(
    "reference", ["blue", "n/a", "speed + 1", "abc+1", "2023-01-02", "1.000.000", "1.234,5", "12:00", "-", ""]
)
def test_math_does_not_apply_to_what_it_cannot_read_whole(reference):
    assert said_of(reference, "1", reference) == [None, None]


def test_math_takes_conversations_and_the_column_solution():
    completion = [{"role": "assistant", "content": "It is 4."}]
    assert score("math", [completion] * 2, solution=["4", None]) == [1.0, None]


def test_a_reference_without_mathematics_does_not_apply():
    assert score("math", ["4"], answer=["blue"]) == [None]


def test_math_works_outside_the_main_thread():
    answers = []
    thread = threading.Thread(target=lambda: answers.extend(score("math", ["4"], answer=["4"])))
    thread.start()
    thread.join()
    assert answers == [1.0]


@pytest.fixture(scope="module")
def gsm8k() -> list[dict]:
    if not GSM8K.exists():
        pytest.skip(f"no data at {GSM8K}")
    return [json.loads(line) for line in GSM8K.read_text(encoding="utf-8").splitlines()]


def test_every_reference_answer_of_gsm8k_is_right(gsm8k):
    solutions = [row["answer"] for row in gsm8k]
    assert score("math", solutions, answer=solutions) == [1.0] * 200
    finals = [f"The answer is {final_answer(text)}." for text in solutions]
    assert score("math", finals, answer=solutions) == [1.0] * 200


def test_shuffled_answers_of_gsm8k_are_wrong(gsm8k):
    solutions = [row["answer"] for row in gsm8k]
    shuffled = solutions[:]
    random.Random(0).shuffle(shuffled)
    assert score("math", shuffled, answer=solutions).count(0.0) >= 195


@pytest.mark.parametrize(
    ("response", "reference", "expected"),
    [
        ("blue", "blue", 1.0),
        (" blue\n", "blue", 1.0),
        ("dark  blue", "dark blue", 1.0),
        ("so</think>\n\nblue", "blue", 1.0),
        ("Blue", "blue", 0.0),
        ("blue.", "blue", 0.0),
        ("I say so\n#### blue", "#### blue", 1.0),
    ],
)
def test_exact_match(response, reference, expected):
    assert score("exact_match", [response], answer=[reference]) == [expected]


def test_exact_match_of_numbers_and_of_any_case():
    assert score("exact_match", ["7", "7", "x"], answer=[7, 8, None]) == [1.0, 0.0, None]
    assert exact_match_score("BLUE", "blue", ignore_case=True) == 1.0


def test_regex_by_row_and_for_all_rows():
    assert score("regex", ["7 apples", "no"], pattern=[r"^\d+", None]) == [1.0, None]
    assert score(r"regex=^\d+ apples$", ["7 apples", "7 apples."]) == [1.0, 0.0]
    assert regex_score("7</think>seven", r"\d") == 0.0


SCHEMA = {"type": "object", "required": ["name"], "properties": {"age": {"type": "integer", "minimum": 0}}}


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ('{"name": "Ann", "age": 3}', 1.0),
        ('thinking {"name"</think> {"name": "Ann"}', 1.0),
        ('```json\n{"name": "Ann"}\n```', 1.0),
        ('```\n{"name": "Ann"}\n```', 1.0),
        ('{"name": "Ann", "age": -3}', 0.0),
        ('{"age": 3}', 0.0),
        ('{"name": "Ann"', 0.0),
        ('Here it is: {"name": "Ann"}', 0.0),
        ("[" * 100_000, 0.0),
    ],
)
def test_json_schema(response, expected, tmp_path, monkeypatch):
    assert score("json_schema", [response], schema=[json.dumps(SCHEMA)]) == [expected]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "person.json").write_text(json.dumps(SCHEMA))
    assert score("json_schema=person.json", [response]) == [expected]
    assert json_schema_score(response, SCHEMA) == expected


@pytest.mark.parametrize(
    ("reward", "named"),
    [
        ("regex=(", ["'('", "expression", "position 0"]),
        ("json_schema=missing.json", ["json_schema=missing.json", "file"]),
        ("json_schema=no_schema.json", ["'thing'", "JSON schema"]),
        ("json_schema=no_json.json", ["'{'", "JSON schema", "line 1"]),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_at_once(reward, named, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "no_schema.json").write_text('{"type": "thing"}')
    (tmp_path / "no_json.json").write_text("{")
    with raises_naming(RewardError, *named):
        RewardScorer([reward])


@pytest.mark.parametrize(
    ("reward", "columns"),
    [
        ("math", ["'answer'", "'solution'"]),
        ("exact_match", ["'answer'"]),
        ("regex", ["'pattern'"]),
        ("json_schema", ["'schema'"]),
        ("reasoning_gym", ["'task'"]),
    ],
)
def test_without_the_column_to_compare_with(reward, columns):
    with raises_naming(RewardError, f"{reward}_reward", *columns):
        score(reward, ["4"])


@pytest.mark.parametrize(
    ("reward", "module", "column"), [("math", "math_verify", "answer"), ("json_schema", "jsonschema", "schema")]
)
def test_an_extra_that_is_not_installed_is_named(reward, module, column, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with raises_naming(RewardError, "pip install 'minimind-hf[verify]'"):
        score(reward, ["4"], **{column: ['{"$id": "another"}']})
