# SPDX-License-Identifier: Apache-2.0
"""The recipe from end to end, in short: as a command on the embedded task, and on a model and prompts of one's own."""

import json

import grpo
import pytest
from launching import launch
from tiny import make_llama, make_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

PNG = b"\x89PNG\r\n\x1a\n"
SMALL = ["--use_cpu", "--max_steps", "2", "--num_generations", "4", "--disable_tqdm", "true", "--report_to", "none"]


def last_line(output: str) -> dict:
    return json.loads(output.strip().splitlines()[-1])


@pytest.mark.slow
def test_embedded_task_as_a_command(recipes_dir, tmp_path):
    flags = ["--output_dir", str(tmp_path / "out"), "--seed", "1", "--sft_steps", "5"]
    flags += ["--per_device_train_batch_size", "16"]
    done = launch(recipes_dir / "grpo.py", *SMALL, *flags, folder=tmp_path)
    result = last_line(done.stdout)
    rewards = ["reward_start", "reward_end"]
    assert list(result) == ["algorithm", "accuracy_before", "accuracy_after", *rewards, "seconds", "output_dir"]
    assert result["algorithm"] == "cispo"
    assert 0 <= result["accuracy_before"] <= 1 and 0 <= result["accuracy_after"] <= 1
    out = tmp_path / "out"
    *_, report, saved, completions, then, _ = done.stdout.splitlines()
    assert (out / "report.html").is_file() and report == f"report: {out}/report.html"
    assert saved == f"model: {out}" and completions.startswith(f"completions: {out}/samples, ")
    assert then.startswith("next: ") and then.endswith(f" chat {out} --thinking --prompt '27 + 35 = ?'")
    assert (out / "reward_curve.png").read_bytes().startswith(PNG)
    card = (out / "README.md").read_text()
    assert f"| eval_accuracy_after |  | {result['accuracy_after']:.4g} |" in card
    assert "correct_answer" in card
    assert len(AutoTokenizer.from_pretrained(out)) == AutoModelForCausalLM.from_pretrained(out).vocab_size


def test_own_model_prompts_and_rewards(tmp_path, capsys):
    start, out = tmp_path / "start", tmp_path / "out"
    make_llama().save_pretrained(start)
    make_tokenizer().save_pretrained(start)
    rows = [{"question": f"{n} apples?", "answer": str(n)} for n in range(8)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "rewards.py").write_text(
        "def long_ones(completions, answer, **columns):\n"
        "    return [len(c[0]['content']) + float(a in c[0]['content']) for c, a in zip(completions, answer)]\n"
    )
    before = LlamaForCausalLM.from_pretrained(start).lm_head.weight
    grpo.main(
        [
            *SMALL, "--model_name_or_path", str(start), "--dataset_name", str(tmp_path / "prompts.jsonl"),
            "--question_column", "question", "--reward_funcs", "length", f"{tmp_path / 'rewards.py'}:long_ones",
            "--output_dir", str(out), "--per_device_train_batch_size", "4", "--max_completion_length", "8",
            "--learning_rate", "1e-2", "--save_strategy", "no", "--loss_type", "grpo",
        ]
    )  # fmt: skip
    output = capsys.readouterr().out
    then, result = output.splitlines()[-2], last_line(output)
    assert list(result) == ["algorithm", "reward_start", "reward_end", "seconds", "output_dir"]
    assert result["algorithm"] == "grpo"
    assert f"report: {out}/report.html" in output and then.startswith("next: ") and then.endswith(f" chat {out}")
    assert result["output_dir"] == str(out)
    assert {"README.md", "reward_curve.png", "model.safetensors", "tokenizer.json"} <= {p.name for p in out.iterdir()}
    assert not LlamaForCausalLM.from_pretrained(out).lm_head.weight.equal(before)
