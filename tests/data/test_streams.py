# SPDX-License-Identifier: Apache-2.0
"""Prompts from a stream: the same as of a data set, in an order that is a function of seed and pass."""

import datasets
import pytest
import torch
from naming import raises_naming

from minimind_hf.data import PromptDataset, PromptError
from minimind_hf.data.streams import SHUFFLE_BUFFER, PromptStream, read_whole


def rows(count: int) -> list[dict]:
    return [{"prompt": [{"role": "user", "content": f"question {i}"}], "number": i} for i in range(count)]


def stream(source: list[dict]) -> datasets.IterableDataset:
    return datasets.Dataset.from_list(source).to_iterable_dataset()


class TorchStream(torch.utils.data.IterableDataset):
    def __init__(self, source):
        self.source = source

    def __iter__(self):
        return iter(self.source)


def numbers(prompts: PromptStream, places) -> list[int]:
    return [prompts[place]["columns"]["number"] for place in places]


@pytest.mark.parametrize("kind", [stream, TorchStream])
def test_a_stream_gives_the_prompts_of_its_rows(tokenizer, kind):
    source, choices = rows(40), {"seed": 3, "thinking_ratio": 0.5, "system_prompt_ratio": 0.5}
    expected, prompts = PromptDataset(source, tokenizer, **choices), PromptStream(kind(source), tokenizer, **choices)
    assert [prompts[number] for number in range(40)] == [expected[number] for number in range(40)]
    assert (prompts.columns, prompts.conversational) == (["number"], True)
    expected.set_epoch(1)  # the rows have ended, so their second pass has the choices of the second epoch
    assert [prompts[number] for number in range(40, 80)] == [expected[number] for number in range(40)]
    assert numbers(prompts, [5, 7, 3]) == [5, 7, 3]  # a smaller number begins anew


def test_shuffling_is_a_function_of_seed_and_pass(tokenizer):
    def order(**changes):
        return numbers(PromptStream(stream(rows(50)), tokenizer, shuffle=True, **changes), range(100))

    first, second = order()[:50], order()[50:]
    assert sorted(first) == sorted(second) == list(range(50))
    assert len({tuple(first), tuple(second), tuple(order(seed=1)[:50]), tuple(range(50))}) == 4
    assert order() == first + second
    again = PromptStream(stream(rows(50)), tokenizer, shuffle=True)
    again.set_epoch(1)
    assert numbers(again, range(50)) == second


def test_the_buffer_bounds_how_far_a_row_moves_forward(tokenizer):
    count = 3 * SHUFFLE_BUFFER
    prompts = PromptStream(TorchStream([{"prompt": "x", "number": i} for i in range(count)]), tokenizer, shuffle=True)
    found = numbers(prompts, range(count))
    assert sorted(found) == list(range(count))
    assert max(row - place for place, row in enumerate(found)) < SHUFFLE_BUFFER
    assert sum(abs(row - place) for place, row in enumerate(found)) / count > SHUFFLE_BUFFER / 4


def test_a_stream_that_is_readable_once_gives_each_row_once(tokenizer):
    once = iter(rows(40))

    class Once(torch.utils.data.IterableDataset):
        def __iter__(self):
            return once

    prompts = PromptStream(Once(), tokenizer)
    assert numbers(prompts, range(40)) == list(range(40))  # those that were looked at first are not lost
    with raises_naming(PromptError, "Once", "pass 1", "only once", "max_steps"):
        prompts[40]


def failing():
    yield from rows(35)
    raise OSError("the connection was lost")


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ([*rows(35), {"prompt": "text", "number": 35}], ["row 35"]),
        ([*rows(35), {"prompt": [{"role": "user"}], "number": 35}], ["row 35", "content"]),
        ([*rows(35), {"number": 35}], ["row 35", "`prompt` is missing"]),
        ([*rows(35), "text"], ["row 35", "str"]),
        (failing, ["row 35", "OSError", "the connection was lost", "resume"]),
    ],
    ids=["kind", "message", "missing", "no mapping", "source"],
)
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_bad_row_is_named_when_it_comes(tokenizer, source, named, shuffle):
    given = datasets.IterableDataset.from_generator(source) if callable(source) else TorchStream(source)
    prompts = PromptStream(given, tokenizer, shuffle=shuffle)
    with raises_naming(PromptError, *named):
        for number in range(36):
            prompts[number]


@pytest.mark.parametrize(
    ("source", "arguments", "named"),
    [
        ([], {}, ["TorchStream", "0 prompts"]),
        (rows(3), {"at_least": 4}, [3, 4, "per_device_train_batch_size"]),
        ([{"text": "x"}], {}, ["'text'", "rename_column"]),
        (rows(2), {"overlong_prompts": "skip"}, ["overlong_prompts", "'skip'"]),
        ([{"prompt": "x"}, {"prompt": ""}], {}, ["row 1", "empty"]),
    ],
    ids=["empty", "few", "columns", "setting", "row"],
)
def test_the_first_rows_are_checked_at_once(tokenizer, source, arguments, named):
    with raises_naming(PromptError, *named):
        PromptStream(TorchStream(source), tokenizer, **arguments)


def test_long_prompts_are_cut_or_dropped_as_they_come(tokenizer):
    source = [{"prompt": "x" * (i + 1), "number": i} for i in range(40)]
    cut = PromptStream(TorchStream(source), tokenizer, max_prompt_length=20)
    assert [len(cut[i]["prompt_ids"]) for i in range(40)] == [min(i + 1, 20) for i in range(40)]
    dropped = PromptStream(TorchStream(source), tokenizer, max_prompt_length=20, overlong_prompts="drop")
    assert [dropped[i]["index"] for i in range(45)] == [*range(20), *range(20), *range(5)]
    with raises_naming(PromptError, "overlong_prompts='drop'", "max_prompt_length"):
        PromptStream(TorchStream(source[5:]), tokenizer, max_prompt_length=2, overlong_prompts="drop")[0]


def test_rows_of_a_stream_have_no_fields_of_others(tokenizer, tmp_path):
    source = [{"prompt": "a", "schema": {"x": {"type": "string"}}}, {"prompt": "b", "schema": {"y": {"type": "null"}}}]
    datasets.Dataset.from_list(source).to_parquet(tmp_path / "rows.parquet")
    file = str(tmp_path / "rows.parquet")
    streamed = datasets.load_dataset("parquet", data_files=file, split="train", streaming=True)
    prompts = PromptStream(streamed, tokenizer)
    assert [prompts[i]["columns"]["schema"] for i in range(2)] == [row["schema"] for row in source]
    assert [row["schema"] for row in read_whole(streamed, "eval_dataset")] == [row["schema"] for row in source]
