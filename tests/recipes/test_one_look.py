# SPDX-License-Identifier: Apache-2.0
"""What the recipes before RL and RL itself print: lines of their own, none of the libraries below."""

import json
import sys

import pytest
from launching import Running, environment, launch
from tiny import make_llama, make_tokenizer

PREFERENCE = {
    "chosen": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
    "rejected": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "c"}],
}
BEFORE = ["--bf16", "false", "--activation_checkpointing", "false", "--logging_steps", "2"]
RL = ["--reward_funcs", "length", "--max_completion_length", "8"]
RECIPES = {
    "sft": ({"text": "abcdef"}, BEFORE, "loss"),
    "dpo": (PREFERENCE, BEFORE, "loss"),
    "reward": (PREFERENCE, BEFORE, "loss"),
    "grpo": ({"prompt": "a"}, [*RL, "--num_generations", "2"], "reward"),
    "ppo": ({"prompt": "a"}, [*RL, "--mini_batch_size", "4"], "reward"),
    "distill": (
        {"prompt": "a"},
        ["--max_completion_length", "8", "--teacher_model_name_or_path", "teacher"],
        "divergence",
    ),
}


@pytest.mark.parametrize(
    "recipe", [pytest.param(name, marks=[] if name == "sft" else pytest.mark.slow) for name in RECIPES]
)
def test_only_lines_of_our_own(recipes_dir, tmp_path, recipe):
    row, flags, shown = RECIPES[recipe]
    for seed, name in enumerate(("model", "teacher")):
        make_llama(seed).save_pretrained(tmp_path / name)
        make_tokenizer().save_pretrained(tmp_path / name)
    (tmp_path / "data.jsonl").write_text((json.dumps(row) + "\n") * 8)
    given = ["--model_name_or_path", "model", "--dataset_name", "data.jsonl", "--output_dir", "out", *flags]
    given += ["--use_cpu", "--report_to", "none", "--per_device_train_batch_size", "4", "--max_steps", "4"]
    done = launch(recipes_dir / f"{recipe}.py", *given, "--save_strategy", "no", folder=tmp_path)
    printed = done.stdout + done.stderr
    for foreign in (
        "Loading weights",
        "Writing model shards",
        "LOAD REPORT",
        "MISSING",
        "Warning",
        "it/s",
        "{'",
        "kernels",
    ):
        assert foreign not in printed, printed
    assert f"step 4/4: {shown} " in done.stdout
    assert json.loads(done.stdout.splitlines()[-1])["output_dir"] == "out"


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["agent", "distill"])
def test_importing_a_recipe_says_nothing(recipes_dir, recipe):
    """Nor do the modules that it imports before those that the others share."""
    done = Running([sys.executable, str(recipes_dir / f"{recipe}.py"), "--help"], environment()).finish()
    assert done.stderr == "" and done.stdout.startswith(f"usage: {recipe}.py ")
