# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/extending.md: as long as the page says, and importable side by side; docs-check runs them."""

import re
from pathlib import Path

import pytest
from launching import launch

PAGE = Path(__file__).resolve().parents[2] / "docs" / "extending.md"
TEXT = PAGE.read_text(encoding="utf-8")
FILES = dict(re.findall(r'```python title="([\w.]+)"\n(.*?)```', TEXT, flags=re.DOTALL))
LINES = {
    "a-loss": "smooth_clip.py",
    "an-advantage-estimator": "median.py",
    "a-whole-algorithm": "rloo.py",
    "an-engine": "generate_engine.py",
}


@pytest.mark.parametrize("section", LINES)
def test_the_table_counts_lines(section):
    (stated,) = re.findall(rf"\(#{section}\) \| (\d+) \|", TEXT)
    lines = [line for line in FILES[LINES[section]].splitlines() if line.strip()]
    assert int(stated) == len(lines)


@pytest.mark.slow
def test_the_examples_train(tmp_path):
    """All of them in one process, on a tiny model under the names of the page."""
    for name, code in FILES.items():
        (tmp_path / name).write_text(code, encoding="utf-8")
    script = tmp_path / "all.py"
    script.write_text(SCRIPT, encoding="utf-8")
    done = launch(script, folder=tmp_path)
    assert (tmp_path / "outputs" / "rloo" / "README.md").exists()
    assert done.stdout.splitlines()[-1] == "4 runs"


SCRIPT = """
import json, runpy
import torch
torch.set_num_threads(1)
from tiny import make_policy, make_prompts, make_tokenizer
make_policy().save_pretrained("MODEL")
make_tokenizer().save_pretrained("MODEL")
with open("rlaif.jsonl", "w") as file:
    file.writelines(json.dumps(row) + "\\n" for row in make_prompts(8))
runpy.run_path("train_rloo.py")
runpy.run_path("train_with_engine.py")
from minimind_hf import GRPOConfig, GRPOTrainer, load_prompts
for name, settings in {
    "loss": dict(loss_type="smooth_clip.py:smooth_clip", num_iterations=2),
    "estimator": dict(advantage_estimator="median.py:median_advantages"),
}.items():
    args = GRPOConfig(output_dir=f"outputs/{name}", max_completion_length=32, max_steps=2, **settings)
    trainer = GRPOTrainer("MODEL", "length", args, load_prompts("rlaif.jsonl"))
    trainer.train()
    assert trainer.state.global_step == 2
print("4 runs")
"""
