# SPDX-License-Identifier: Apache-2.0
"""The program that measures a device, run whole on a CPU with tiny shapes; its page, and its failures."""

import json
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(FOLDER))
import gpu  # noqa: E402
import gpu_page  # noqa: E402
import gpu_proofs  # noqa: E402

CPU = torch.device("cpu")


def lines_of(capsys) -> list[dict]:
    """The program's lines: trainers print their logs between them."""
    return [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith('{"case"')]


@pytest.mark.slow
def test_the_whole_program(tmp_path, capsys):
    page = tmp_path / "benchmarks-gpu.md"
    status = gpu.main(["--device", "cpu", "--quick", "--page", str(page)])
    machine, *lines = lines_of(capsys)
    assert machine["case"] == "machine" and machine["device"] == "cpu"
    by_case = {line["case"]: line for line in lines}
    assert list(by_case) == [name for name, _ in gpu.cases(CPU, quick=True)]
    proofs = [line for name, line in by_case.items() if name.startswith(("attention", "proof"))]
    assert status == 0 and all(line.get("holds") for line in proofs), proofs
    for name, line in by_case.items():
        if name.startswith("rollout/") and not name.endswith("vllm"):
            assert line["tokens"] == 12 * 12 and line["tokens_per_s"] > 0, line
        if name.startswith("step/"):
            assert line["step_s"] > 0 and 0 < line["mean_completion"] <= 12, line
    text = page.read_text(encoding="utf-8")
    assert all(name in text for name in by_case)
    assert text.startswith("# Benchmarks on a GPU")


def test_cases_are_chosen_by_name_beginning_or_pattern(capsys):
    names = [name for name, _ in gpu.cases(CPU, quick=False)]
    assert [name for name in names if gpu.chosen(name, ["rollout/26M"])] == [
        f"rollout/26M/{who}" for who in ("ours", "generate", "continuous_batching", "vllm")
    ]
    assert [name for name in names if gpu.chosen(name, ["step/*/trl"])] == [
        f"step/{size}/trl" for size in ("26M", "64M", "135M", "0.6B")
    ]
    assert gpu.main(["--device", "cpu", "--case", "attention", "--list"]) == 0
    assert capsys.readouterr().out.split() == ["attention/float32", "attention/bfloat16"]
    with pytest.raises(SystemExit):
        gpu.main(["--device", "cpu", "--case", "rollout/27M"])
    assert "27M" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_without_a_device_it_says_so(capsys):
    with pytest.raises(SystemExit):
        gpu.main([])
    assert "no CUDA device" in capsys.readouterr().err


def test_a_case_that_fails_says_why_and_the_others_go_on(monkeypatch, capsys, tmp_path):
    def fails():
        raise torch.OutOfMemoryError("CUDA out of memory. Tried\nto allocate")

    monkeypatch.setattr(
        gpu, "cases", lambda *of: [("rollout/a/ours", fails), ("step/a/ours", lambda: {"step_s": 1.5})]
    )
    page = tmp_path / "page.md"
    assert gpu.main(["--device", "cpu", "--quick", "--page", str(page)]) == 0
    _, failed, done = lines_of(capsys)
    assert failed["error"] == "OutOfMemoryError: CUDA out of memory. Tried" and done["step_s"] == 1.5
    assert "not measured: OutOfMemoryError" in page.read_text(encoding="utf-8")


def test_a_proof_that_fails_is_the_exit_status(monkeypatch, capsys):
    right = gpu_proofs.flex.flex_row_attention
    monkeypatch.setattr(gpu_proofs.flex, "flex_row_attention", lambda *given: 1.01 * right(*given))
    assert gpu.main(["--device", "cpu", "--quick", "--case", "attention/float32"]) == 1
    assert not lines_of(capsys)[1]["holds"]


def test_no_case_begins_after_the_time(monkeypatch, capsys):
    monkeypatch.setattr(gpu, "cases", lambda *of: [("step/a/ours", lambda: {"step_s": 1.0})])
    assert gpu.main(["--device", "cpu", "--quick", "--minutes", "0"]) == 0
    assert lines_of(capsys)[1] == {"case": "step/a/ours", "skipped": "after 0 minutes"}


def test_the_page_of_a_device(tmp_path):
    machine = {
        "name": "H100",
        "gib": 79.1,
        "cuda": "12.9",
        "torch": "2.13",
        "transformers": "5.24",
        "date": "2026-12-01",
    }
    lines = [
        {"case": "machine", **machine},
        {"case": "attention/float32", "holds": True, "flex": 1e-6, "took_s": 3.0},
        {"case": "rollout/26M/ours", "tokens_per_s": 20000.5, "seconds": 0.61, "warm_up_s": 9.0, "peak_gib": 1.25},
        {"case": "rollout/26M/vllm", "skipped": "vLLM is not installed"},
    ]
    gpu_page.write_page(tmp_path / "page.md", lines)
    text = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert "H100 (79.1 GiB, CUDA 12.9), torch 2.13" in text
    assert "| rollout/26M/ours | 20000.5 | 0.61 | 9 | 1.25 |" in text
    assert "| rollout/26M/vllm | not measured: vLLM is not installed |" in text
