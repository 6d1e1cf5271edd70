# SPDX-License-Identifier: Apache-2.0
"""Modes that the trainers refuse by name, and weights that lend and drop what is shared."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from accelerate.utils import DistributedType
from naming import raises_naming
from tiny import make_policy, random_ids

from minimind_hf.trainer.distributed.rollout_weights import RolloutWeights
from minimind_hf.trainer.distributed.sharding import check_each_node, check_mode, without_copies
from minimind_hf.trainer.experience.micro_batch import MicroBatch
from minimind_hf.trainer.experience.parts import split_by_tokens


def accelerator(kind, **plugin):
    state = SimpleNamespace(fsdp_plugin=SimpleNamespace(**plugin), deepspeed_plugin=SimpleNamespace(**plugin))
    is_fsdp2 = plugin.get("fsdp_version") == 2
    return SimpleNamespace(distributed_type=kind, state=state, is_fsdp2=is_fsdp2)


@pytest.mark.parametrize(
    ("kind", "plugin", "named"),
    [
        (DistributedType.MEGATRON_LM, {}, ["MEGATRON_LM", "accelerate_configs/"]),
        (DistributedType.DEEPSPEED, {"zero_stage": 0}, ["zero_stage", 0, "accelerate_configs/ddp.yaml"]),
        (
            DistributedType.FSDP,
            {"fsdp_version": 1},
            ["fsdp_version", 1, "fsdp_version: 2", "accelerate_configs/fsdp2.yaml"],
        ),
        (
            DistributedType.FSDP,
            {"fsdp_version": 2, "cpu_ram_efficient_loading": True},
            ["fsdp_cpu_ram_efficient_loading", "false", "accelerate_configs/fsdp2.yaml"],
        ),
    ],
)
def test_other_modes_are_refused(kind, plugin, named):
    with raises_naming(ValueError, *named):
        check_mode(accelerator(kind, **plugin))


@pytest.mark.parametrize("kind", [DistributedType.NO, DistributedType.MULTI_GPU, DistributedType.DEEPSPEED])
def test_modes_that_are_not(kind):
    check_mode(accelerator(kind, zero_stage=2))
    check_mode(accelerator(DistributedType.FSDP, fsdp_version=2, cpu_ram_efficient_loading=False))


@pytest.mark.parametrize(
    ("kind", "each_node", "on_this_machine", "refused"),
    [
        (DistributedType.FSDP, True, 1, True),
        (DistributedType.DEEPSPEED, True, 1, True),
        (DistributedType.FSDP, True, 2, False),
        (DistributedType.DEEPSPEED, False, 1, False),
        (DistributedType.MULTI_GPU, True, 1, False),
    ],
)
def test_each_machine_saves_only_what_it_holds(kind, each_node, on_this_machine, refused, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(on_this_machine))
    args = SimpleNamespace(save_on_each_node=each_node, world_size=2)
    with raises_naming(ValueError, "save_on_each_node", kind.value, "output_dir") if refused else nullcontext():
        check_each_node(args, accelerator(kind))


def test_the_twin_of_a_sharded_policy_owns_no_weights_and_computes_with_lent_ones():
    policy = make_policy()
    rollout_weights = RolloutWeights(policy, accelerator(DistributedType.FSDP))
    twin = rollout_weights._twin
    assert sum(parameter.numel() for parameter in twin.parameters()) == 0
    ids = torch.tensor(random_ids(1, low=9, high=9))
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(1.1)  # it learns
        with rollout_weights.gathered(policy, policy) as lent:
            assert lent is twin
            assert lent.lm_head.weight is lent.model.embed_tokens.weight
            assert torch.equal(lent(ids).logits, policy(ids).logits)
    assert sum(parameter.numel() for parameter in twin.parameters()) == 0


def test_tied_weights_are_saved_once():
    policy = make_policy()
    kept = without_copies(policy, policy.state_dict())
    assert policy.state_dict().keys() - kept.keys() == {"lm_head.weight"}
    assert without_copies(policy, None) is None


@pytest.mark.parametrize("count", [1, 3, 4, 6])
def test_a_batch_is_split_into_as_many_parts_as_another_process_needs(count):
    rows = 6
    completions = [[7] * length for length in (5, 1, 3, 2, 4, 5)]
    batch = MicroBatch(
        prompt_ids=[[1, 2]] * rows,
        completion_ids=completions,
        group_ids=[0, 0, 0, 1, 1, 1],
        device=torch.device("cpu"),
        rows=list(range(rows)),
        sampled_at=0,
        loss_mask=torch.ones(rows, 5, dtype=torch.long),
        old_logps=torch.zeros(rows, 5),
    )
    parts = split_by_tokens(batch, 100, at_least=count)
    assert len(parts) == count
    assert sorted(row for part in parts for row in part.rows_in_whole) == list(range(rows))
    assert sum(part.share for part in parts) == pytest.approx(1)


@pytest.mark.parametrize(
    ("variable", "value", "named"),
    [
        ("ACCELERATE_USE_FSDP", "true", ["FSDP", "distributed_type", "NO", "accelerate_configs/zero3.yaml"]),
        ("ACCELERATE_USE_DEEPSPEED", "true", ["DEEPSPEED", "distributed_type", "NO", "--use_cpu"]),
        ("WORLD_SIZE", "2", ["2 processes", "distributed_type", "NO", "--use_cpu"]),
    ],
)
def test_another_mode_than_the_config_file_asks_for_is_refused(monkeypatch, variable, value, named):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    check_mode(accelerator)
    monkeypatch.setenv(variable, value)
    with raises_naming(ValueError, *named):
        check_mode(accelerator)
