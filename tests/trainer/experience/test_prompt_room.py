# SPDX-License-Identifier: Apache-2.0
"""Prompts that leave no room for a completion are found when the trainer is made, wherever they stand."""

import pytest
from naming import raises_naming
from tiny import ScriptedEngine, make_policy, make_tokenizer, share_of_a

from minimind_hf import GRPOTrainer

SHORT = [{"prompt": "abc"}] * 6
ROOM = 64 - 8  # the context, less max_completion_length


def made(make_config, train, held_out=None, **changes) -> GRPOTrainer:
    return GRPOTrainer(
        make_policy(max_position_embeddings=64),
        share_of_a,
        make_config(max_completion_length=8, **changes),
        train_dataset=train,
        eval_dataset=held_out,
        processing_class=make_tokenizer(),
        rollout_engine=ScriptedEngine(0.8),
    )


@pytest.mark.parametrize("where", ["train", "eval", "named"])
def test_the_seventh_prompt_is_found(make_config, where):
    long = [*SHORT, {"prompt": "x" * (ROOM + 1)}]
    held_out = {"train": None, "eval": long, "named": {"a": SHORT, "b": long}}[where]
    name = "train_dataset" if where == "train" else "eval_dataset"
    with raises_naming(ValueError, name, "row 6", ROOM + 1, "max_prompt_length", ROOM):
        made(make_config, long if where == "train" else SHORT, held_out)


def test_prompts_that_fit_or_are_made_to_fit(make_config):
    long = [*SHORT, {"prompt": "x" * (ROOM + 1)}]
    made(make_config, [*SHORT, {"prompt": "x" * ROOM}])
    made(make_config, long, max_prompt_length=ROOM)
    trainer = made(make_config, [*SHORT, *long], max_prompt_length=ROOM, overlong_prompts="drop")
    assert len(trainer.train_dataset) == 12


def test_every_form_of_a_prompt_is_tried(make_config):
    """28 ids with thinking on and one letter, 11 more with thinking off."""
    chat = [{"prompt": [{"role": "user", "content": "x" * 18}]}] * 6
    made(make_config, chat, thinking_ratio=1.0)
    with raises_naming(ValueError, "row 0", ROOM + 1):
        made(make_config, [{"prompt": [{"role": "user", "content": "x" * 19}]}] * 6, thinking_ratio=0.999)


@pytest.mark.parametrize("ends", [[0], [0, 2]])
def test_an_end_of_turns_that_ends_no_completion_is_said(make_config, caplog, ends):
    tokenizer, model = make_tokenizer(), make_policy()
    tokenizer.eos_token, model.generation_config.eos_token_id = tokenizer.pad_token, ends
    chats = [{"prompt": [{"role": "user", "content": "a"}]}] * 4
    with caplog.at_level("WARNING", "minimind_hf"):
        GRPOTrainer(model, "length", make_config(), train_dataset=chats, processing_class=tokenizer)
    assert ("ends answers with '<|im_end|>'" in caplog.text) == (ends == [0])
