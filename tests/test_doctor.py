# SPDX-License-Identifier: Apache-2.0
"""`minimind-hf doctor`: versions, fast paths and runs, without secrets, and of broken runs too."""

import json
import sys

import pytest
from launching import Running
from naming import raises_naming
from tiny import make_llama, make_policy, make_tokenizer
from transformers import GPT2Config, GPT2LMHeadModel

from minimind_hf import cli
from minimind_hf.reports.diagnosis import HIDDEN, diagnose, without_secrets

SECRET = "hf_abcdefghijklmnop"


def doctor(capsys, *arguments) -> dict:
    assert cli.main(["doctor", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out.strip().splitlines()[-1])


def test_versions_and_devices(capsys):
    found = doctor(capsys)
    assert found["versions"]["torch"] and found["versions"]["transformers"] and found["devices"]["cpu_threads"] >= 1
    assert "run" not in found and "model" not in found


@pytest.mark.parametrize("make", [make_policy, make_llama])
def test_a_model_that_takes_the_fast_paths(make, tmp_path, capsys):
    make().save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    found = doctor(capsys, "--model", tmp_path)["model"]
    assert found["rollouts: fast decoder (CPU)"] == found["training: shared_prompt layout"] == "taken"
    assert found["parameters"] == sum(parameter.numel() for parameter in make().parameters())


def test_a_model_that_does_not_is_told_why(tmp_path, capsys):
    shape = {"n_layer": 1, "n_head": 2, "n_embd": 8, "vocab_size": 64, "n_positions": 64}
    GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=0, eos_token_id=0)).save_pretrained(tmp_path)
    assert (
        "GPT2LMHeadModel is not one of" in doctor(capsys, "--model", tmp_path)["model"]["rollouts: fast decoder (CPU)"]
    )


def test_a_run_that_an_error_ended(make_trainer, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("JUDGE_API_KEY", "very-secret-value")

    def broken(completions, **kwargs):
        raise RuntimeError(f"the judge refused very-secret-value and {SECRET}")

    trainer = make_trainer(reward=broken, hub_token=SECRET, beta=0.25, output_dir=str(tmp_path / "run"))
    with raises_naming(Exception, "judge"):
        trainer.train()
    found = doctor(capsys, tmp_path / "run")
    run = found["run"]
    assert run["error"]["type"] and "judge" in run["error"]["message"] and run["error"]["where"]
    assert run["settings"]["beta"] == 0.25 and "epsilon" not in run["settings"] and run["last_step"] == 0
    text = json.dumps(found) + "".join(path.read_text() for path in (tmp_path / "run").glob("*.json"))
    assert SECRET not in text and "very-secret-value" not in text and HIDDEN in text
    assert cli.main(["doctor", str(tmp_path / "run")]) == 0
    assert "beta: 0.25" in capsys.readouterr().out


def test_a_run_that_ends_well_forgets_the_error_before(make_trainer, tmp_path, capsys):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "error.json").write_text('{"type": "OSError", "message": "before"}')
    make_trainer(output_dir=str(folder), max_steps=1).train()
    assert diagnose(folder)["error"] is None and diagnose(folder)["last_step"] == 1


def test_broken_files_are_named_not_raised(tmp_path):
    (tmp_path / "run.json").write_text('{"algorithm": "CI')
    (tmp_path / "trainer_state.json").write_text("[]")
    (tmp_path / "health.jsonl").write_text('{"step": 1\n')
    found = diagnose(tmp_path)
    assert set(found["unreadable"]) == {"run.json", "trainer_state.json", "health.jsonl"}


@pytest.mark.parametrize("name", ["nothing", "."])
def test_what_is_not_a_run_is_refused(name, tmp_path, capsys):
    assert cli.main(["doctor", str(tmp_path / name)]) == 1
    assert "output_dir" in capsys.readouterr().err


def test_secrets():
    found = without_secrets(
        {
            "hub_token": "x",
            "eos_token": "<e>",
            "api_key": ["k"],
            "text": f"a {SECRET} b",
            "url": "http://me:pw@host/v1",
        }
    )
    assert found == {
        "hub_token": HIDDEN, "eos_token": "<e>", "api_key": [HIDDEN], "text": f"a {HIDDEN} b",
        "url": f"http://{HIDDEN}host/v1",
    }  # fmt: skip


def test_a_run_alone_needs_no_torch(tmp_path):
    (tmp_path / "run.json").write_text('{"algorithm": "CISPO", "changed": {"beta": 0.5}}')
    code = (
        "import sys; from minimind_hf.cli import main; main(sys.argv[1:]); "
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    done = Running([sys.executable, "-c", code, "doctor", tmp_path]).finish()
    assert "beta: 0.5" in done.stdout
