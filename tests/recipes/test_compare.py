# SPDX-License-Identifier: Apache-2.0
"""The comparison of algorithms, in short: what is equal for all, that it goes on where it ended, and its page."""

import json
from pathlib import Path

import compare
import embedded_task
import pytest
from naming import raises_naming

from minimind_hf.reports.record import read_run

SHORT = ["--algorithms", "ppo", "rloo", "--seeds", "1", "2", "--completions", "40", "--evaluations", "1"]


@pytest.mark.parametrize("algorithm", compare.SETTINGS)
def test_completions_and_rewards_are_equal_for_all(algorithm, tmp_path):
    args = compare.settings_of(algorithm, 1, 1000, 3, tmp_path)
    per_rollout = args.completions_per_rollout if algorithm == "ppo" else args.per_device_train_batch_size
    rollouts = args.max_steps / compare.steps_per_rollout(algorithm)
    assert per_rollout * rollouts == 1024  # whole rollouts
    assert args.eval_steps * 3 >= args.max_steps > args.eval_steps * 2
    assert args.reward_weights == [0.25, 0.25] and args.temperature == embedded_task.TEMPERATURE
    assert compare.steps_per_rollout(algorithm) * args.gradient_accumulation_steps == args.micro_batches_per_rollout


def test_names_of_the_algorithms(tmp_path):
    labels = {name: compare.settings_of(name, 1, 128, 1, tmp_path).algorithm.label for name in compare.SETTINGS}
    assert labels == {"cispo": "CISPO", "grpo": "GRPO", "ppo": "PPO", "rloo": "GRPO with leave-one-out advantages"}


@pytest.mark.slow
def test_the_comparison(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(embedded_task, "NUM_HELD_OUT", 16)
    monkeypatch.setattr(compare, "SFT_STEPS", 5)
    monkeypatch.setitem(compare.SHARED, "per_device_train_batch_size", 32)
    for _, _, settings in compare.SETTINGS.values():
        for name, value in (("use_cpu", True), ("disable_tqdm", True)):
            monkeypatch.setitem(settings, name, value)
    compare.main([*SHORT, "--output_dir", str(tmp_path)])
    output = capsys.readouterr().out
    result = json.loads(output.splitlines()[-1])
    assert set(result["algorithms"]) == {"ppo", "rloo"} and Path(result["page"]).is_file()
    assert all(set(found) == {"accuracy", "half_width"} for found in result["algorithms"].values())
    assert "held-out accuracy, 2 seeds" in output
    runs = [read_run(tmp_path / f"{name}_seed_{seed}") for name in ("ppo", "rloo") for seed in (1, 2)]
    assert {sum(run.series("completions/count").values()) for run in runs} == {64}
    assert len({run.settings["rewards"] for run in runs}) == 1
    starts = [list(run.series(compare.ACCURACY).items())[0] for run in runs]
    assert {step for step, _ in starts} == {0} and starts[0] == starts[2]  # the same start, the same random numbers
    page = Path(result["page"]).read_text()
    assert "4 runs compared" in page and "held-out correct_answer" in page

    monkeypatch.setattr(compare, "train", lambda *args: pytest.fail("made again"))
    compare.main([*SHORT, "--output_dir", str(tmp_path)])
    again = capsys.readouterr().out
    assert again.count("made before") == 4 and json.loads(again.splitlines()[-1]) == result


@pytest.mark.parametrize("name", ["completions", "evaluations"])
def test_numbers_below_one_are_refused(name, capsys):
    with raises_naming(SystemExit, 2):
        compare.main([f"--{name}", "0"])
    assert f"--{name} is 0" in capsys.readouterr().err
