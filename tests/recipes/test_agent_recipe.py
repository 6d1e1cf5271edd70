# SPDX-License-Identifier: Apache-2.0
"""The recipe of agents from end to end, in short, and what it refuses before anything is loaded."""

import json

import agent
import minimind_tools
import pytest
from agent import AgentArguments, chosen, offered
from common import parse_arguments
from launching import launch
from naming import raises_naming
from tiny import make_llama, make_tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer

from minimind_hf import GRPOConfig, PPOConfig
from minimind_hf.agent.games import TextArenaGame
from minimind_hf.import_paths import ImportPathError

SMALL = ["--use_cpu", "--max_steps", "2", "--disable_tqdm", "true", "--report_to", "none"]
REWARDS = ["reward_start", "reward_end"]


def last_line(output: str) -> dict:
    return json.loads(output.strip().splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "algorithm", "sizes"),
    [
        ("calculator", "grpo", ["--num_generations", "4"]),
        pytest.param("guess", "grpo", ["--num_generations", "4"], marks=pytest.mark.slow),
        pytest.param("calculator", "ppo", ["--mini_batch_size", "16"], marks=pytest.mark.slow),
        pytest.param("guess", "ppo", ["--mini_batch_size", "16"], marks=pytest.mark.slow),
    ],
)
def test_embedded_task_as_a_command(recipes_dir, tmp_path, task, algorithm, sizes):
    out = tmp_path / "out"
    flags = ["--task", task, "--algorithm", algorithm, "--output_dir", str(out), "--sft_steps", "3", *sizes]
    done = launch(
        recipes_dir / "agent.py", *SMALL, *flags, "--per_device_train_batch_size", "16", folder=tmp_path, timeout=240
    )
    result = last_line(done.stdout)
    turns = ["turns_before", "turns_after"] if task == "guess" else []
    assert list(result) == [
        "algorithm",
        "accuracy_before",
        "accuracy_after",
        *turns,
        *REWARDS,
        "seconds",
        "output_dir",
    ]
    assert result["algorithm"] == ("ppo" if algorithm == "ppo" else "cispo")
    assert 0 <= result["accuracy_before"] <= 1 and 0 <= result["accuracy_after"] <= 1
    assert (out / "report.html").is_file() and (out / "README.md").is_file()
    assert len(AutoTokenizer.from_pretrained(out)) == AutoModelForCausalLM.from_pretrained(out).vocab_size


def test_own_model_with_the_settings_and_tools_of_minimind(recipes_dir, tmp_path, capsys, monkeypatch):
    start, out = tmp_path / "start", tmp_path / "out"
    make_llama().save_pretrained(start)
    tokenizer = make_tokenizer()
    tokenizer.chat_template = (recipes_dir / "journey" / "chat_template.jinja").read_text()
    tokenizer.save_pretrained(start)
    tools = minimind_tools.TOOLBOX.schemas[:1]
    rows = [
        {
            "conversations": [
                {"role": "system", "content": "", "tools": json.dumps(tools)},
                {"role": "user", "content": f"{n}*{n}?"},
                {"role": "assistant", "content": ""},
            ],
            "gt": [str(n * n)],
        }
        for n in range(4)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.chdir(recipes_dir.parent)
    agent.main(
        [
            *SMALL, "--config", str(recipes_dir / "agent_minimind.yaml"), "--model_name_or_path", str(start),
            "--dataset_name", str(tmp_path / "rows.jsonl"), "--output_dir", str(out), "--save_strategy", "no",
            "--max_completion_length", "12", "--max_turn_length", "8",
        ]
    )  # fmt: skip
    result = last_line(capsys.readouterr().out)
    assert list(result) == ["algorithm", *REWARDS, "seconds", "output_dir"] and result["algorithm"] == "cispo"
    assert {"README.md", "model.safetensors", "report.html"} <= {path.name for path in out.iterdir()}


def test_the_settings_of_an_embedded_task_follow_task_and_algorithm(tmp_path):
    config = tmp_path / "settings.yaml"
    config.write_text("task: guess\nalgorithm: ppo\n")
    assert chosen(["--config", str(config)]) == ("guess", "ppo")
    assert chosen(["--config", str(config), "--algorithm", "grpo"]) == ("guess", "grpo")
    assert chosen([]) == ("calculator", "grpo")
    for kind, algorithm in ((GRPOConfig, "grpo"), (PPOConfig, "ppo")):
        embedded = agent.TASKS["guess"]
        defaults = {**embedded.defaults[algorithm], **embedded.settings}
        script, args, _ = parse_arguments(kind, defaults, ["--use_cpu", "--task", "guess"], AgentArguments)
        assert (script.task, args.max_turns, args.max_turn_length) == ("guess", 5, 5)
        assert args.output_dir == defaults["output_dir"]


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--task", "chess"], ["--task", "'chess'", "calculator", "guess"]),
        (["--algorithm", "dqn"], ["--algorithm", "'dqn'", "grpo", "ppo"]),
    ],
)
def test_unknown_choices(flags, named):
    with raises_naming(ValueError, *named):
        agent.main(flags)


def test_tools_are_functions_or_lists_of_them(recipes_dir):
    path = f"{recipes_dir / 'minimind_tools.py'}"
    script = AgentArguments(tools=[f"{path}:TOOLS", "minimind_hf.agent:calculate"])
    tools, environment = offered(script)
    assert [tool.__name__ for tool in tools] == [*minimind_tools.TOOLBOX, "calculate"]
    assert environment is None
    named = offered(AgentArguments(environment="textarena:FrozenLake-v0"))
    assert named[0] == [] and (named[1].func, named[1].args) == (TextArenaGame, ("FrozenLake-v0",))
    game = offered(AgentArguments(environment=f"{recipes_dir / 'agent_tasks.py'}:GuessGame"))[1]
    assert game.__name__ == "GuessGame"


@pytest.mark.parametrize(
    ("script", "named"),
    [
        (AgentArguments(tools=["calculate"]), ["--tools", "'calculate'", "file.py:name"]),
        (AgentArguments(environment="Game"), ["--environment", "'Game'", "file.py:name"]),
    ],
)
def test_names_that_are_no_import_paths(script, named):
    with raises_naming(ValueError, *named):
        offered(script)


def test_tools_that_cannot_be_found(recipes_dir):
    with raises_naming(ImportPathError, "absent.py"):
        offered(AgentArguments(tools=["absent.py:search"]))
