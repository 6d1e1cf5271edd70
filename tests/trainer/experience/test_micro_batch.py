# SPDX-License-Identifier: Apache-2.0
"""Micro-batches: rows and parts of them, and their way through a checkpoint, that of version 0.1 included."""

import torch
from tiny import collected

from minimind_hf.trainer.checkpoints.state import load_rollout_state, save_rollout_state
from minimind_hf.trainer.experience.micro_batch import MicroBatch, part_of, put_rows, select_rows

TENSORS = ("loss_mask", "old_logps", "ref_logps", "advantages")


def assert_same(one: MicroBatch, other: MicroBatch) -> None:
    assert one.prompt_ids == other.prompt_ids and one.completion_ids == other.completion_ids
    assert (one.group_ids, one.rows, one.sampled_at) == (other.group_ids, other.rows, other.sampled_at)
    for name in TENSORS:
        assert torch.equal(getattr(one, name), getattr(other, name)), name


def test_rows_are_as_wide_as_they_need(make_trainer):
    (batch,) = make_trainer().micro_batches(collected(make_trainer(), 2))
    lengths = [len(ids) for ids in batch.completion_ids]
    assert len(set(lengths)) > 1
    shortest = lengths.index(min(lengths))
    row = select_rows(batch, [shortest])
    assert row.loss_mask.shape == (1, min(lengths)) and row.width == min(lengths)
    assert row.completion_ids == [batch.completion_ids[shortest]] and row.rows == [batch.rows[shortest]]
    assert torch.equal(row.old_logps[0], batch.old_logps[shortest, : min(lengths)])
    filled = torch.zeros_like(batch.old_logps)
    put_rows(filled, [shortest], row.old_logps)
    assert torch.equal(filled[shortest, : min(lengths)], row.old_logps[0]) and filled.count_nonzero() <= min(lengths)


def test_parts_know_the_whole(make_trainer):
    trainer = make_trainer()
    (batch,) = trainer.micro_batches(collected(trainer, 2))
    part = part_of(batch, [4, 5])
    assert part.rows_in_whole == [4, 5] and part.share == 2 / 8
    assert part.local_tokens == batch.loss_mask.sum()


def test_an_empty_one_stands_for_a_skipped_update():
    skipped = MicroBatch.skipped(torch.device("cpu"))
    assert len(skipped) == 0 and not skipped and skipped.num_padded_tokens == 0
    assert len(MicroBatch.from_state(skipped.state(), torch.device("cpu"))) == 0


def test_through_a_checkpoint(make_trainer, tmp_path):
    trainer = make_trainer()
    batches = trainer.micro_batches(collected(trainer))
    save_rollout_state(tmp_path, trainer.args, 3, batches)
    made, loaded = load_rollout_state(tmp_path, trainer.args)
    assert made == 3 and len(loaded) == len(batches)
    for one, other in zip(batches, loaded, strict=True):
        assert_same(one, other)


def test_a_checkpoint_of_version_0_1(make_trainer, tmp_path):
    """It held padded tensors under the same names, and an empty dictionary for a skipped update."""
    trainer = make_trainer()
    (batch,) = trainer.micro_batches(collected(trainer, 2))
    names = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
    old = dict(zip(names, batch.padded(), strict=True)) | {name: getattr(batch, name) for name in TENSORS}
    old["rows"], old["group_ids"] = torch.tensor(batch.rows), torch.tensor(batch.group_ids)
    old["sampled_at"] = torch.full((8,), batch.sampled_at)
    state = {"world_size": 1, "rollouts_made": 1, "buffer": [old, {}], "made_with": {}}
    torch.save(state, tmp_path / "rollout_state_0.pt")
    _, (loaded, skipped) = load_rollout_state(tmp_path, trainer.args)
    assert_same(batch, loaded)
    assert len(skipped) == 0
