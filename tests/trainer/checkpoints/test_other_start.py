# SPDX-License-Identifier: Apache-2.0
"""A run that is resumed with another model or optimizer than it began with is told so."""

import pytest
from naming import assert_names, raises_naming
from tiny import GRPO, make_llama, tiny_trainer

from minimind_hf import GRPOConfig

SAVES = {**GRPO, "save_strategy": "steps", "save_steps": 1}


@pytest.fixture
def make(tmp_path):
    def make(seed: int = 0, **settings):
        return tiny_trainer(GRPOConfig(output_dir=str(tmp_path), **SAVES | settings), make_llama(seed))

    return make


def test_another_reference_is_said_and_the_same_is_not(make, tmp_path, caplog):
    make(beta=0.1).train()
    make(beta=0.1, max_steps=3).train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert "whose reference" not in caplog.text
    make(seed=5, beta=0.1, max_steps=3).train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    (said,) = [record.message for record in caplog.records if "whose reference" in record.message]
    assert_names(said, "checkpoint-1", "KL")


def test_another_optimizer_is_refused_by_name(make, tmp_path):
    make().train()
    with raises_naming(ValueError, "optim", "'adamw_torch'", "'sgd'", "checkpoint-1"):
        make(optim="adamw_torch", max_steps=3).train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))


@pytest.mark.parametrize(("name", "value"), [("seed", -1), ("seed", 2**32), ("output_dir", 5), ("output_dir", ["a"])])
def test_values_that_would_fail_late_are_refused_by_name(tmp_path, name, value):
    with raises_naming(ValueError, name, repr(value)):
        GRPOConfig(**{"output_dir": str(tmp_path), **GRPO, name: value})
