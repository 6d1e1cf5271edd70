# SPDX-License-Identifier: Apache-2.0
"""What the calculator adds up, and what it says of runs whose memory was measured."""

import pytest

from minimind_hf import MiniMindConfig
from minimind_hf.cli import main
from minimind_hf.estimate import Setting, adapter_parameters, estimate, shape_of

CONFIG = MiniMindConfig(
    vocab_size=6400, hidden_size=512, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=2
)
MEASURED = [  # MiB of a run on a CPU above its imports: prompts of about 12 tokens, completions of 96, groups of 8
    ({"algorithm": "grpo", "rows": 16}, 1123),
    ({"algorithm": "ppo", "rows": 8}, 1744),
    ({"algorithm": "ppo", "rows": 16}, 2615),
    ({"algorithm": "grpo", "rows": 32, "lora": 8}, 828),
]


@pytest.mark.parametrize(("setting", "measured"), MEASURED)
def test_within_15_percent_of_what_was_measured(setting, measured):
    shape = shape_of(CONFIG)
    rank = setting.pop("lora", None) if "lora" in setting else None
    trained = None if rank is None else adapter_parameters(shape, rank)
    found = estimate(shape, Setting(group=8, prompt=12, completion=96, on_cpu=True, trained=trained, **setting))
    assert found.total / 2**20 == pytest.approx(measured, rel=0.15)


def test_what_a_mode_shards_is_divided():
    shape = shape_of(CONFIG)
    weights = shape.parameters * 4

    def parts(mode):
        found = estimate(shape, Setting(algorithm="ppo", mode=mode, processes=4))
        return found.policy, found.reference, found.critic, found.gradients, found.optimizer

    whole = (weights, weights, weights, 2 * weights, 4 * weights)
    assert parts("ddp") == whole
    assert parts("zero1") == (*whole[:4], whole[4] // 4)
    assert parts("zero2") == (*whole[:3], whole[3] // 4, whole[4] // 4)
    assert parts("zero3") == parts("fsdp2") == tuple(part // 4 for part in whole)


def test_adapters_need_neither_reference_nor_critic_of_their_own():
    shape = shape_of(CONFIG)
    found = estimate(shape, Setting(algorithm="ppo", trained=adapter_parameters(shape, 8)))
    assert found.reference == found.critic == 0
    assert found.optimizer < shape.parameters


@pytest.mark.parametrize(
    ("change", "message"), [({"mode": "zero4"}, "mode must be one of"), ({"rows": 0}, "at least 1")]
)
def test_refused(change, message):
    with pytest.raises(ValueError, match=message):
        Setting(**change)


def test_command(tmp_path, capsys):
    CONFIG.save_pretrained(tmp_path)
    assert main(["estimate", str(tmp_path), "--lora_r", "8", "--mode", "zero2", "--processes", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "million parameters" in lines[0]
    assert lines[-1].split()[0] == "total"
