# SPDX-License-Identifier: Apache-2.0
"""Reading prompts from files and folders, and what is said when that is not possible."""

import json

import datasets
import pytest
from naming import raises_naming
from tiny import make_tokenizer

from minimind_hf.data import PromptDataset, PromptError, load_prompts
from minimind_hf.data.loading import load_rows
from minimind_hf.data.supervised import check_example
from minimind_hf.rewards import RewardScorer

CHAT = {"conversations": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}


def write_lines(path, *rows) -> str:
    lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def test_jsonl_rows_arrive_as_written(tmp_path):
    # Blank lines are skipped; a date stays a string; a missing field is None.
    source = write_lines(tmp_path / "p.jsonl", CHAT, "", {**CHAT, "day": "2024-01-02", "level": 3})
    dataset = load_prompts(source)
    assert dataset["day"][:] == [None, "2024-01-02"]
    assert dataset["level"][:] == [None, 3]
    assert dataset[0]["conversations"] == CHAT["conversations"]


def test_json_array_and_byte_order_mark(tmp_path):
    path = tmp_path / "p.json"
    path.write_text(json.dumps([{"prompt": "a"}, {"prompt": "b"}]), encoding="utf-8-sig")
    assert load_prompts(str(path))["prompt"][:] == ["a", "b"]


def test_json_lines_under_the_suffix_json(tmp_path):
    assert load_prompts(write_lines(tmp_path / "p.json", {"prompt": "a"}, {"prompt": "b"}))["prompt"][:] == ["a", "b"]


def test_parquet_csv_folder_and_saved_dataset(tmp_path):
    dataset = datasets.Dataset.from_dict({"prompt": ["a", "b"], "answer": [1, 2]})
    dataset.to_parquet(str(tmp_path / "p.parquet"))
    dataset.to_csv(str(tmp_path / "p.csv"))
    dataset.save_to_disk(str(tmp_path / "saved"))
    datasets.DatasetDict(train=dataset, test=dataset.select([1])).save_to_disk(str(tmp_path / "splits"))
    (tmp_path / "folder").mkdir()
    write_lines(tmp_path / "folder" / "train.jsonl", {"prompt": "a", "answer": 1}, {"prompt": "b", "answer": 2})
    for source in ("p.parquet", "p.csv", "saved", "splits", "folder"):
        loaded = load_prompts(str(tmp_path / source))
        assert loaded["prompt"][:] == ["a", "b"] and loaded["answer"][:] == [1, 2], source
    assert load_prompts(str(tmp_path / "splits"), split="test")["prompt"][:] == ["b"]


def rows_of(source) -> list[dict]:
    """What reward functions are given."""
    prompts = PromptDataset(load_prompts(str(source)), make_tokenizer())
    return [prompts[i]["columns"] for i in range(len(prompts))]


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["42", "7", ""], [42, 7, None]),
        (["007", "7", ""], ["007", "7", None]),
        (["0.50", "42", ""], ["0.50", "42", None]),
        (["true", "false", ""], ["true", "false", None]),
        (["None", "NA", "null"], ["None", "NA", "null"]),
        (["nan", "n/a", "-"], ["nan", "n/a", "-"]),
        (["2024-01-02", "1e3", "+5"], ["2024-01-02", "1e3", "+5"]),
        (["12345678901234567890", "-0", "1"], ["12345678901234567890", "-0", "1"]),
    ],
)
def test_cells_of_a_csv_are_what_they_are_and_only_an_empty_one_is_missing(tmp_path, cells, expected):
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "p.csv", tmp_path / "folder" / "train.csv"):
        path.write_text("prompt,answer\n" + "".join(f"NA,{cell}\n" for cell in cells))
        assert load_prompts(str(path))["prompt"][:] == ["NA"] * 3
    for source in (tmp_path / "p.csv", tmp_path / "folder"):
        found = [row["answer"] for row in rows_of(source)]
        assert found == expected and list(map(type, found)) == list(map(type, expected))
        said = [cell or "x" for cell in cells]
        signals = RewardScorer(["exact_match"])(["?"] * 3, said, [[1]] * 3, {"answer": found})[:, 0].tolist()
        assert [None if value != value else value for value in signals] == [1.0 if cell else None for cell in cells]


def test_integers_beside_fractions_stay_integers(tmp_path):
    rows = [{"prompt": "a", "answer": value} for value in (42, 0.5, None)]
    source = write_lines(tmp_path / "p.jsonl", *rows)
    (tmp_path / "folder").mkdir()
    write_lines(tmp_path / "folder" / "train.jsonl", *rows)
    assert [repr(row["answer"]) for row in load_prompts(source)] == ["42", "0.5", "None"]
    datasets.Dataset.from_list(rows).to_parquet(str(tmp_path / "p.parquet"))  # Arrow makes it 42.0
    for one in (source, tmp_path / "folder", tmp_path / "p.parquet"):
        answers = [row["answer"] for row in rows_of(one)]
        signals = RewardScorer(["exact_match"])(["?"] * 3, ["42", "0.5", "x"], [[1]] * 3, {"answer": answers})
        assert signals[:2, 0].tolist() == [1.0, 1.0] and signals[2, 0].isnan()


def test_integers_beside_fractions_in_lists_stay_integers(tmp_path):
    for values in ([[1, 2], [0.5], None], [[[3], [4.0]], [[5]]], [[1, 0.5], []]):
        source = write_lines(tmp_path / "p.jsonl", *({"prompt": "a", "answers": value} for value in values))
        assert [repr(row["answers"]) for row in load_prompts(source)] == list(map(repr, values))


def test_prompts_of_a_csv_are_text_even_if_all_are_integers(tmp_path):
    (tmp_path / "p.csv").write_text("prompt,question,answer\n12,7,3\n13,8,4\n")
    assert load_prompts(str(tmp_path / "p.csv"))[:] == {"prompt": ["12", "13"], "question": [7, 8], "answer": [3, 4]}
    asked = load_prompts(str(tmp_path / "p.csv"), question_column="question")
    assert [row["prompt"][0]["content"] for row in asked] == ["7", "8"]


OBJECTS = [
    {"type": "object", "properties": {"a": {"type": "integer", "default": 0.3}}},
    {"type": "array", "items": {"enum": ["x", "y"]}, "minItems": 1},
    {"type": "string", "tags": [{"k": 1}, {"v": "w"}]},
]


def test_objects_that_differ_by_row_keep_their_own_fields_from_every_source(tmp_path):
    rows = [{"prompt": f"{i}", "schema": value} for i, value in enumerate(OBJECTS)]
    dataset = datasets.Dataset.from_list(rows)
    (tmp_path / "folder").mkdir()
    write_lines(tmp_path / "folder" / "train.jsonl", *rows)
    write_lines(tmp_path / "p.jsonl", *rows)
    dataset.to_parquet(str(tmp_path / "p.parquet"))
    dataset.save_to_disk(str(tmp_path / "saved"))
    for source in ("folder", "p.jsonl", "p.parquet", "saved"):
        assert [row["schema"] for row in rows_of(tmp_path / source)] == OBJECTS, source
    for memory in (rows, dataset):
        prompts = PromptDataset(memory, make_tokenizer())
        assert [prompts[i]["columns"]["schema"] for i in range(3)] == OBJECTS
    scored = RewardScorer(["json_schema"])(["?"] * 3, ['{"a": 1}', '["x"]', '"s"'], [[1]] * 3, {"schema": OBJECTS})
    assert scored[:, 0].tolist() == [1.0, 1.0, 1.0]


def test_tools_and_calls_of_other_rows_add_no_fields_from_any_source(tmp_path):
    tools = [[{"name": "add", "parameters": {"a": {"type": "int"}}}], [{"name": "now", "zone": "utc"}], None]
    calls = [[{"name": "add", "arguments": {"a": 0.3}}], [{"name": "now", "arguments": {"zone": {"id": 1}}}], None]
    rows = [
        {"prompt": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "", "tool_calls": call}]}
        | {"tools": tool}
        for tool, call in zip(tools, calls, strict=True)
    ]
    for row in rows:
        row["prompt"].append({"role": "user", "content": "v"})
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{{ [tools, messages[1].tool_calls] | tojson }}"
    dataset = datasets.Dataset.from_list(rows)
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "folder" / "train.jsonl", tmp_path / "p.jsonl"):
        write_lines(path, *rows)
    dataset.to_parquet(str(tmp_path / "p.parquet"))
    dataset.save_to_disk(str(tmp_path / "saved"))
    files = [load_prompts(str(tmp_path / name)) for name in ("folder", "p.jsonl", "p.parquet", "saved")]
    for source in (*files, rows, dataset):
        prompts = PromptDataset(source, tokenizer)
        for i in range(2):
            expected = [{"type": "function", "function": call} for call in calls[i]]  # in the form of all templates
            assert json.loads(tokenizer.decode(prompts[i]["prompt_ids"])) == [tools[i], expected]


def test_json_objects_return_as_written_with_nulls_and_values_of_any_type(tmp_path):
    values = [{"const": None, "low": 0}, {"const": [1, "a"], "low": 0.5}, '{"type": "string"}', None]
    source = write_lines(tmp_path / "p.jsonl", *({"prompt": "a", "schema": value} for value in values))
    assert json.dumps([row["schema"] for row in rows_of(source)]) == json.dumps(values)


def test_splits_of_a_saved_dictionary(tmp_path):
    parts = {
        name: datasets.Dataset.from_dict({"prompt": list(text)}) for name, text in (("train", "abcd"), ("b", "e"))
    }
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "saved"))
    wanted = {"train[:1]": "a", "train[50%:]": "cd", "train+b": "abcde", "train[:2]+b[:1]": "abe", "all": "abcde"}
    for split, text in wanted.items():
        assert "".join(load_prompts(str(tmp_path / "saved"), split=split)["prompt"][:]) == text
    for split in ("test", "train+test"):
        with raises_naming(PromptError, repr(split), "['train', 'b']"):
            load_prompts(str(tmp_path / "saved"), split=split)


def test_slices_of_a_file(tmp_path):
    source = write_lines(tmp_path / "p.jsonl", *({"prompt": str(i)} for i in range(10)))
    assert load_prompts(source, split="train[:3]")["prompt"][:] == ["0", "1", "2"]
    assert load_prompts(source, split="train[80%:]")["prompt"][:] == ["8", "9"]
    with raises_naming(PromptError, "'train'", "'test'"):
        load_prompts(source, split="test")


def test_question_column_becomes_one_user_turn(tmp_path):
    source = write_lines(
        tmp_path / "p.jsonl", {"question": "1+1?", "answer": "2"}, {"question": "2+2?", "answer": "4"}
    )
    dataset = load_prompts(source, question_column="question")
    assert dataset[1] == {"answer": "4", "prompt": [{"role": "user", "content": "2+2?"}]}
    with raises_naming(PromptError, "question_column", "'q'", "['question', 'answer']"):
        load_prompts(source, question_column="q")


def test_tools_of_different_shape_keep_their_own_fields(tmp_path, tokenizer):
    tokenizer.chat_template = "{% if tools %}TOOLS {{ tools | tojson }}\n{% endif %}" + tokenizer.chat_template
    tools = [[{"name": "add", "parameters": {"a": "int"}}], [{"name": "now", "zone": "utc"}]]
    rows = [
        {"conversations": [{"role": "system", "content": "s", "tools": tool}, {"role": "user", "content": "u"}]}
        for tool in (tools[0], json.dumps(tools[1]))
    ]
    dataset = PromptDataset(load_prompts(write_lines(tmp_path / "p.jsonl", *rows)), tokenizer)
    for i in range(2):
        rendered = tokenizer.decode(dataset[i]["prompt_ids"])
        assert json.loads(rendered.split("\n")[0].removeprefix("TOOLS ")) == tools[i]
        assert "tools" not in dataset[i]["prompt"][0]


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ([CHAT, "{broken"], ["line 2", "JSON", "'{broken'"]),
        ([CHAT, "", "[1, 2]"], ["line 3", "JSON", "'[1, 2]'"]),
        ([CHAT, {"text": "x"}], ["line 2", "conversations", "missing"]),
        ([CHAT, {"conversations": []}], ["line 2", "conversations", "[]"]),
        ([CHAT, {"conversations": "hi"}], ["line 2", "conversations", "'hi'"]),
        ([CHAT, {"conversations": ["hi"]}], ["line 2", "conversations[0]", "'hi'"]),
        ([{"conversations": [{"from": "human", "value": "x"}]}], ["line 1", "conversations[0]", "`from`", "`value`"]),
        ([{"conversations": [{"role": "user", "content": 3}]}], ["line 1", "conversations[0]", "content", 3]),
        ([{"conversations": [{"role": "user"}]}], ["line 1", "conversations[0]", "content", None]),
        ([{"conversations": [{"role": "human", "content": "x"}]}], ["conversations[0]", "'human'", "'user'"]),
        ([{"conversations": [{"role": "assistant", "content": "x"}]}], ["line 1", "conversations", "[]", "user"]),
        ([{"conversations": [{"role": "system", "content": "x"}]}], ["line 1", "conversations", "['system']"]),
        ([{"prompt": ""}], ["line 1", "prompt", "empty"]),
        ([{"prompt": "a"}, {"prompt": [{"role": "user", "content": "b"}]}], ["line 2", "prompt", "list",
         "string"]),
        ([{"question": "a", "answer": "b"}], ["line 1", "`prompt`", "['question', 'answer']", "rename_column"]),
        ([{"prompt": "a", "n": 1}, {"prompt": "b", "n": "x"}], ["'n'", "'x'", "int64"]),
        ([], ["empty"]),
    ],
)  # fmt: skip
def test_bad_lines_are_named(tmp_path, lines, named):
    source = write_lines(tmp_path / "p.jsonl", *lines)
    with raises_naming(PromptError, source, *named) as caught:
        load_prompts(source)
    assert isinstance(caught.value, ValueError)


def test_not_utf8(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_bytes(b'{"prompt": "a"}\n{"prompt": "\xff"}\n')
    with raises_naming(PromptError, path, "line 2", "JSON", "utf-8"):
        load_prompts(str(path))


def test_bad_line_in_a_folder_is_named(tmp_path):
    write_lines(tmp_path / "train.jsonl", {"prompt": "a"}, "{broken")
    with raises_naming(PromptError, tmp_path / "train.jsonl", "line 2", "JSON", "'{broken'"):
        load_prompts(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("p.csv", "prompt,answer\n", ["header", "['prompt', 'answer']"]),
        ("p.csv", "", ["empty"]),
        ("p.csv", "\n\n\n", ["blank"]),
        ("p.csv", "prompt,answer\na,1,2\nb,2,3\n", ["2 fields in line 2, saw 3", "quotes"]),
        ("p.csv", "prompt,answer\na,1\n\nb,2,3\n", ["2 fields in line 4, saw 3"]),
        ("p.parquet", "", ["empty"]),
        ("p.parquet", "PAR1", ["parquet", "4 bytes"]),
        ("p.jsonl", "\n \n\n", ["empty"]),
        ("p.json", "[]", ["empty"]),
        ("p.txt", "hello", [".jsonl", ".json", ".ndjson", ".parquet", ".csv"]),
    ],
)
def test_files_without_rows_that_can_be_read_are_named(tmp_path, name, content, named):
    (tmp_path / name).write_text(content)
    for load in (load_prompts, lambda source: load_rows(source, check_example)):
        with raises_naming(PromptError, tmp_path / name, *named):
            load(str(tmp_path / name))
    if name == "p.csv" and "fields" not in named[0]:  # the only file of a folder
        with raises_naming(PromptError, tmp_path / name, *named):
            load_prompts(str(tmp_path))


def test_blank_lines_and_slices_of_tables(tmp_path):
    (tmp_path / "p.csv").write_text("\nprompt,answer\na,1\n\n\nb,2\n\n")
    assert load_prompts(str(tmp_path / "p.csv"))["prompt"][:] == ["a", "b"]
    assert load_prompts(str(tmp_path / "p.csv"), split="train[1:]")["prompt"][:] == ["b"]
    datasets.Dataset.from_dict({"prompt": []}).to_parquet(str(tmp_path / "p.parquet"))
    with raises_naming(PromptError, tmp_path / "p.parquet", "rows"):
        load_prompts(str(tmp_path / "p.parquet"))


def test_missing_file_and_missing_split(tmp_path):
    with raises_naming(PromptError, "file", tmp_path / "nowhere.jsonl"):
        load_prompts(str(tmp_path / "nowhere.jsonl"))
    for folder in ("./nowhere", "a/b/c", ""):
        with raises_naming(PromptError, "folder", repr(folder)):
            load_prompts(folder)
    datasets.DatasetDict(train=datasets.Dataset.from_dict({"prompt": ["a"]})).save_to_disk(str(tmp_path / "d"))
    with raises_naming(PromptError, "'validation'", "['train']"):
        load_prompts(str(tmp_path / "d"), split="validation")


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (str(2**63), [2**63, "64 bits"]),
        ("[[" + "9" * 5000 + "]]", ["5000 digits"]),
        ('{"a": ["\\ud83d"]}', ["surrogate", "'\\ud83d'"]),
        ("[" * 100_000 + "]" * 100_000, ["nested"]),
    ],
)
def test_json_that_cannot_be_stored_is_named(tmp_path, value, named):
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a", "x": null}\n{"prompt": "b", "x": ' + value + "}\n")
    with raises_naming(PromptError, path, "line 2", *named) as caught:
        load_prompts(str(path))
    assert "line 2" in str(caught.value)


@pytest.mark.parametrize("name", ["p.JSONL", "p.ndjson", "p.CSV"])
def test_other_spellings_of_suffixes(tmp_path, name):
    (tmp_path / name).write_text("prompt\na\n" if "CSV" in name else '{"prompt": "a"}\n')
    assert load_prompts(str(tmp_path / name))[0]["prompt"] == "a"
