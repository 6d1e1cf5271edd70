# SPDX-License-Identifier: Apache-2.0
"""The loading examples of a model card run as they are written, with the package and without it."""

import re
import sys
from pathlib import Path

import pytest
from launching import Running, environment
from peft import LoraConfig
from tiny import GRPO, make_llama, make_policy, make_tokenizer, tiny_trainer

from minimind_hf import GRPOConfig

LORA = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
WITHOUT_PACKAGE = "import sys\nsys.modules['minimind_hf'] = None\n"  # importing it would fail
CHECK = "\nassert len(tokenizer) == 259\nassert model.num_parameters() > 1000\n"


def examples(card: Path) -> list[str]:
    text = card.read_text(encoding="utf-8")
    return re.findall(
        r"```python\n(.*?)```", text[text.index("## How to load it") : text.index("## Training")], re.DOTALL
    )


@pytest.mark.slow
@pytest.mark.parametrize("adapters", [None, LORA], ids=["whole", "adapters"])
def test_the_examples_of_a_minimind_run(tmp_path, monkeypatch, adapters):
    monkeypatch.chdir(tmp_path)
    make_policy().save_pretrained("base")
    make_tokenizer().save_pretrained("base")
    trainer = tiny_trainer(GRPOConfig("runs/my model", **GRPO), "base", peft_config=adapters)
    trainer.train()
    trainer.save_model()
    with_package, without = examples(Path("runs/my model/README.md"))
    assert with_package.startswith("import minimind_hf\n") and "trust_remote_code" not in with_package
    assert "minimind_hf" not in without and without.count(", trust_remote_code=True)") == 2
    for code in (with_package + CHECK, WITHOUT_PACKAGE + without + CHECK):
        Running([sys.executable, "-c", code], environment(), tmp_path).finish()


def test_the_example_of_another_model_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trainer = tiny_trainer(GRPOConfig("run", **GRPO), make_llama())
    trainer.train()
    trainer.save_model()
    (code,) = examples(Path("run/README.md"))
    Running([sys.executable, "-c", WITHOUT_PACKAGE + code + CHECK], environment(), tmp_path).finish()


def test_the_card_has_its_curve_and_figures_of_start_and_end(tmp_path):
    trainer = tiny_trainer(GRPOConfig(str(tmp_path), **GRPO))
    trainer.train()
    trainer.log({"eval_accuracy_after": 0.75})
    trainer.save_model()
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    rewards = [log["reward"] for log in trainer.state.log_history if "reward" in log]
    assert f"| reward | {rewards[0]:.4g} | {rewards[-1]:.4g} |" in card
    assert "| eval_accuracy_after |  | 0.75 |" in card
    assert "](reward_curve.png)" in card and (tmp_path / "reward_curve.png").is_file()
