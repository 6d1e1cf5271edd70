# SPDX-License-Identifier: Apache-2.0
"""There and back: pushed to a Hub on loopback by the real client, and loaded from it by plain transformers."""

import json

import pytest
from hub_double import HubDouble
from launching import launch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

TOKEN = "hf_ThisMustNeverBeWrittenAnywhere0123"
CODE_FILES = {"configuration_minimind.py", "modeling_minimind.py"}


@pytest.fixture(scope="module")
def round_trip(tmp_path_factory):
    """(what the worker reports, the Hub, everything that it printed, its folder)"""
    folder = tmp_path_factory.mktemp("hub")
    with HubDouble() as hub:
        variables = {
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(folder / "home"),
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
        }
        done = launch("hub_worker.py", folder / "runs", TOKEN, timeout=380, **variables)
        yield json.loads(done.stdout.splitlines()[-1]), hub, done.stdout + done.stderr, folder


@pytest.mark.parametrize("run", ["grpo", "grpo-lora", "ppo", "ppo-lora"])
def test_what_was_pushed_loads_by_its_name(round_trip, run):
    report, hub, _, _ = round_trip
    assert report[run]["equal"]
    files = set(hub.repos[f"tester/{run}"])
    assert files >= ({"adapter_model.safetensors"} if "lora" in run else {"model.safetensors", *CODE_FILES})
    assert not any(name.startswith(("_", "checkpoint-")) for name in files)
    critic = {name for name in files if name.startswith("critic/")}
    assert bool(critic) == (run == "ppo")  # ppo-lora leaves it out by choice


def test_the_critic_loads_from_its_folder(round_trip):
    assert round_trip[0]["critic_labels"] == 1


def test_the_strategy_is_kept(round_trip):
    _, hub, _, _ = round_trip
    checkpoint = {name for name in hub.repos["tester/ppo"] if name.startswith("last-checkpoint/")}
    assert {"last-checkpoint/trainer_state.json", "last-checkpoint/rollout_state_0.pt"} <= checkpoint
    assert any("critic" in name for name in checkpoint)
    assert not any(name.startswith("last-checkpoint/") for name in hub.repos["tester/grpo"])
    assert any(message.startswith("Training in progress, step 1") for message in hub.messages)


@pytest.mark.parametrize("run", ["grpo", "grpo-lora", "ppo", "ppo-lora"])
def test_the_card_says_what_it_is(round_trip, run):
    report, hub, _, _ = round_trip
    card, text = report[run]["card"], report[run]["text"]
    assert card["base_model"] == "tester/base"
    assert card["datasets"] == ["tester/prompts"]
    assert card["library_name"] == ("peft" if "lora" in run else "transformers")
    assert {"reinforcement-learning", "cispo" if "grpo" in run else "ppo"} <= set(card["tags"])
    assert f'from_pretrained("tester/{run}")' in text
    for part in ("learning_rate", "max_completion_length", "| reward |", "| transformers |", "reward_curve.png"):
        assert part in text, part
    assert "reward_curve.png" in hub.repos[f"tester/{run}"]


def test_the_token_is_nowhere_but_in_the_requests(round_trip):
    _, hub, printed, folder = round_trip
    assert hub.tokens == {TOKEN}
    assert TOKEN not in printed
    for repo, files in hub.repos.items():
        for name, content in files.items():
            assert TOKEN.encode() not in content, (repo, name)
    for path in (folder / "runs").rglob("*"):
        assert path.is_dir() or TOKEN.encode() not in path.read_bytes(), path
