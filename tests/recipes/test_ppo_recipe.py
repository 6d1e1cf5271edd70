# SPDX-License-Identifier: Apache-2.0
"""The PPO recipe from end to end, in short; test_grpo_recipe.py starts one as a command."""

import json
import runpy
import sys

import pytest
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification


@pytest.mark.slow
def test_embedded_task_leaves_policy_and_critic(recipes_dir, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    short = "--sft_steps 2 --max_steps 2 --per_device_train_batch_size 8 --mini_batch_size 8 --use_cpu"
    monkeypatch.setattr(sys, "argv", ["ppo.py", *short.split(), "--output_dir", str(out)])
    runpy.run_path(str(recipes_dir / "ppo.py"), run_name="__main__")
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["algorithm"] == "ppo" and result["output_dir"] == str(out)
    assert 0 <= result["accuracy_before"] <= 1 and 0 <= result["accuracy_after"] <= 1
    for name in ("README.md", "reward_curve.png", "model.safetensors", "tokenizer.json", "critic/model.safetensors"):
        assert (out / name).stat().st_size > 0, name
    for auto_class, folder in ((AutoModelForCausalLM, out), (AutoModelForTokenClassification, out / "critic")):
        _, info = auto_class.from_pretrained(folder, output_loading_info=True)
        assert not info["missing_keys"] and not info["unexpected_keys"]
