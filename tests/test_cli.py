# SPDX-License-Identifier: Apache-2.0
"""The command line: what it passes on, what it prints, how it fails."""

import argparse
import json
import sys

import pytest
import torch
from launching import Running
from naming import assert_names, raises_naming
from tiny import make_tokenizer
from transformers import AutoConfig

import minimind_hf
from minimind_hf.cli import COMMANDS, main
from minimind_hf.commands.convert import parse_config_values
from minimind_hf.models.pth import save_tensors


@pytest.fixture
def folder(tiny_minimind, tmp_path):
    tiny_minimind(use_moe=True).half().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_convert_goes_round(folder, tmp_path, capsys):
    pth, back = tmp_path / "weights.pth", tmp_path / "back"
    assert main(["convert", str(folder), str(pth)]) == 0
    read, wrote = capsys.readouterr().out.splitlines()
    assert read.startswith(f"{folder}: ") and "4 experts" in read and wrote == f"wrote {pth}"
    (tmp_path / "more.json").write_text('{"num_experts_per_tok": 3, "rope_theta": 1e4}')
    overrides = ["--config", str(tmp_path / "more.json"), "num_experts_per_tok=2"]
    assert main(["convert", str(pth), str(back), *overrides, "--dtype", "bfloat16"]) == 0
    config = AutoConfig.from_pretrained(back)
    assert (config.num_experts_per_tok, config.rope_parameters["rope_theta"]) == (2, 1e4)
    assert config.dtype == torch.bfloat16
    assert main(["convert", str(back), str(tmp_path / "qwen3"), "--to", "qwen3"]) == 0
    assert AutoConfig.from_pretrained(tmp_path / "qwen3").model_type == "qwen3_moe"


def test_error_is_one_line_and_status_1(folder, tmp_path, capsys):
    assert main(["convert", str(tmp_path / "absent.pth"), str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("minimind-hf convert: error: ")
    assert_names(error, tmp_path / "absent.pth", "exist")
    assert error.count("\n") == 1
    assert main(["convert", str(folder), str(tmp_path / "out"), "--to", "gguf"]) == 1
    assert_names(capsys.readouterr().err, "target", "'gguf'", "qwen3")


def test_overwrite_is_asked_for(folder, tmp_path, capsys):
    arguments = ["convert", str(folder), str(tmp_path / "weights.pth")]
    assert main(arguments) == 0
    assert main(arguments) == 1
    assert_names(capsys.readouterr().err, tmp_path / "weights.pth", "exists", "--overwrite")
    assert main([*arguments, "--overwrite"]) == 0


def test_what_was_read_and_assumed_is_told(tiny_minimind, tmp_path, capsys):
    model = tiny_minimind().half()
    save_tensors({name: tensor for name, tensor in model.state_dict().items()}, model.config, tmp_path / "a.pth")
    make_tokenizer().save_pretrained(tmp_path / "tokenizer")  # of another model
    tokens, shape = len(make_tokenizer()), f"{model.config.num_hidden_layers} x {model.config.hidden_size}"
    flags = ["--config", "rms_norm_eps=1e-5", "--tokenizer", str(tmp_path / "tokenizer")]
    assert main(["convert", str(tmp_path / "a.pth"), str(tmp_path / "out"), *flags]) == 0
    printed = capsys.readouterr()
    read, assumed, _ = printed.out.splitlines()
    size = f"{model.num_parameters() / 1e6:.2f} M parameters, {shape}, dense, vocabulary {model.config.vocab_size}"
    assert read == f"{tmp_path / 'a.pth'}: {size}, float16"
    assert_names(assumed, "rope_theta 1e6", "max_position_embeddings", "eos_token_id 2", "--config KEY=VALUE")
    assert "rms_norm_eps" not in assumed and "num_experts_per_tok" not in assumed
    assert tokens != model.config.vocab_size
    assert_names(printed.err, "warning", tmp_path / "tokenizer", tokens, model.config.vocab_size, "--tokenizer DIR")
    assert main(["convert", str(tmp_path / "a.pth"), str(tmp_path / "without")]) == 0
    assert_names(capsys.readouterr().err, "warning", "no tokenizer", "--tokenizer DIR")


NAMES = {
    "convert": ["a", "b"],
    "chat": ["a"],
    "eval": ["a", "--dataset_name", "b"],
    "report": ["a"],
    "estimate": ["a"],
    "doctor": [],
}
USAGES = [([], 2), (["--help"], 0), (["nonsense"], 2), (["--vers"], 2)]
USAGES += [([command], 2) for command in NAMES if NAMES[command]] + [([command, "--help"], 0) for command in NAMES]
USAGES += [([command, *names, "--nonsense"], 2) for command, names in NAMES.items()]


@pytest.mark.parametrize("arguments, status", USAGES)
def test_usage(arguments, status, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == status
    printed = capsys.readouterr()
    assert "usage: minimind-hf" in printed.out + printed.err


def test_version(capsys):
    with raises_naming(SystemExit, 0):
        main(["--version"])
    assert capsys.readouterr().out == f"minimind-hf {minimind_hf.__version__}\n"


def test_the_package_is_the_command():
    done = Running([sys.executable, "-m", "minimind_hf", "--version"]).finish()
    assert done.stdout == f"minimind-hf {minimind_hf.__version__}\n"


def test_help_lists_all_commands(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    printed = capsys.readouterr().out
    assert NAMES.keys() == COMMANDS.keys()
    assert all(f"  {command}" in printed and said in printed for command, said in COMMANDS.items())


@pytest.mark.parametrize("command", NAMES)
def test_help_describes_each_option_and_names_its_default(command, monkeypatch):
    parsers = []
    parse_args = argparse.ArgumentParser.parse_args

    def note(self, arguments=None):
        parsers.append(self)
        return parse_args(self, arguments)

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", note)
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert parsers[-1].prog == f"minimind-hf {command}"
    for action in parsers[-1]._actions:
        assert action.help, action
        if isinstance(action.default, int | float | str) and action.default not in (False, argparse.SUPPRESS):
            assert "default" in action.help, action


@pytest.mark.parametrize(
    ("command", "flag"),
    [
        ("convert", "--over"),
        ("chat", "--think"),
        ("eval", "--sample=2"),
        ("report", "--out=page.html"),
        ("estimate", "--proc=2"),
        ("doctor", "--mod=a"),
    ],
)
def test_a_flag_is_not_abbreviated(command, flag, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([command, *NAMES[command], flag])
    assert stopped.value.code == 2
    assert flag in capsys.readouterr().err


def test_flags_may_stand_before_the_names(folder, tmp_path):
    """A switch takes no value, and a flag of one value takes no second."""
    back = tmp_path / "back"
    arguments = ["--overwrite", str(folder), "--dtype", "bfloat16", str(back), "--config", "rope_theta=1e4"]
    assert main(["convert", *arguments, "--config", "bos_token_id=3", "eos_token_id=4"]) == 0
    config = AutoConfig.from_pretrained(back)
    assert (config.dtype, config.bos_token_id, config.eos_token_id) == (torch.bfloat16, 3, 4)
    assert config.rope_parameters["rope_theta"] == 1e4


def test_config_values_are_json_or_text():
    items = ["a=2", "b=1e-6", "c=true", "d=True", "e=silu", "f=None", 'g={"rope_type": "default"}', "a=3"]
    assert parse_config_values(items) == {
        "a": 3,
        "b": 1e-6,
        "c": True,
        "d": True,
        "e": "silu",
        "f": None,
        "g": {"rope_type": "default"},
    }


@pytest.mark.parametrize(
    "content, named", [(None, ["KEY=VALUE"]), ("{", ["JSON", "line 1"]), ("[1]", ["JSON", "list"])]
)
def test_config_file_that_is_none(tmp_path, content, named):
    path = tmp_path / "config.json"
    if content is not None:
        path.write_text(content)
    with raises_naming(ValueError, path, *named):
        parse_config_values([str(path)])


def test_config_file_is_read(tmp_path):
    (tmp_path / "a=b.json").write_text(json.dumps({"vocab_size": 7}))
    assert parse_config_values([str(tmp_path / "a=b.json"), "hidden_size=8"]) == {"vocab_size": 7, "hidden_size": 8}
