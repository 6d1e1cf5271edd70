# SPDX-License-Identifier: Apache-2.0
"""State in a checkpoint beyond the Trainer's: the unused part of the rollout of every process.

With the same number of processes, a run continues bit for bit. With another number, the completions of the interrupted
rollout cannot be distributed as before, so the resumed policy samples them again; everything else continues.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments
from transformers.utils import logging

from ...agent import Agent
from ..experience.micro_batch import MicroBatch

logger = logging.get_logger(__name__)

ROLLOUT_STATE = "rollout_state_{rank}.pt"
IN_THE_BUFFER = (
    "temperature",
    "num_generations",
    "per_device_train_batch_size",
    "mini_batch_size",
    "micro_batches_per_rollout",
    "mask_truncated_completions",
    "rollout_correction",
    "rollout_correction_cap",
    "reward_weights",
    "advantage_estimator",
    "scale_rewards",
    "multi_objective_aggregation",
    "gamma",
    "lam",
    "turn_discount",
    "lmbda",
    "seq_kd",
)


def save_rollout_state(
    folder: str | Path,
    args: TrainingArguments,
    rollouts_made: int,
    buffer: Sequence[MicroBatch],
    order: Mapping[str, Any] | None = None,
    agent: Mapping[str, Any] | None = None,
    engine: Mapping[str, Any] | None = None,
) -> None:
    """Saves the unused micro-batches of this process, the order of the prompts (see `data_order`), what environments
    keep across episodes (see `Agent.state_dict`), and the state of the rollout engine."""
    state = {
        "world_size": args.world_size,
        "rollouts_made": rollouts_made,
        "buffer": [batch.state() for batch in buffer],
    }
    state["made_with"] = _made_with(args)
    state["optim"] = _optimizer(args)
    state["order"] = dict(order or {})
    state["agent"] = dict(agent or {})
    state["engine"] = dict(engine or {})
    torch.save(state, _path(folder, args.process_index))


def load_rollout_state(folder: str | Path, args: TrainingArguments) -> tuple[int, list[MicroBatch]]:
    """Loads the state from [`save_rollout_state`].

    Returns:
        `(rollouts_made, buffer)`: The buffer is empty if the checkpoint is from another number of processes.

    Raises:
        FileNotFoundError: If the checkpoint does not hold this state.
        ValueError: If the unused micro-batches were made with other settings.
    """
    world_size = world_size_of(folder)
    if world_size != args.world_size:
        logger.warning(
            "%s was written by %d processes and is resumed with %d: the interrupted rollout is sampled again, so the "
            "results are equivalent, but not the same bit for bit.",
            folder,
            world_size,
            args.world_size,
        )
        return _load(folder, 0)["rollouts_made"], []
    state = _load(folder, args.process_index)
    _check_optimizer(folder, state.get("optim"), _optimizer(args))
    buffer = [MicroBatch.from_state(_upgraded(saved), args.device) for saved in state["buffer"]]
    if any(buffer):
        _check_made_with(folder, state.get("made_with", {}), _made_with(args))
    return state["rollouts_made"], buffer


def _optimizer(args: TrainingArguments) -> str:
    return str(getattr(args.optim, "value", args.optim))


def _check_optimizer(folder: str | Path, saved: str | None, own: str) -> None:
    """Refuses an optimizer of another family; implementations of one, such as fused ones, share their state."""
    if saved is not None and saved.split("_")[0] != own.split("_")[0]:
        raise ValueError(
            f"optim is {own!r}, but {folder} was written with {saved!r}, whose state another optimizer cannot take "
            f"over. Set optim={saved!r}, or start a new run from the saved model."
        )


def engine_state(folder: str | Path, args: TrainingArguments) -> dict[str, Any]:
    """Returns the state of this process's engine; with another number of processes, as [`load_agent_state`] does."""
    return _load(folder, args.process_index % world_size_of(folder)).get("engine", {})


def load_agent_state(agent: Agent, folder: str | Path, args: TrainingArguments) -> None:
    """Loads what the environments of this process kept across episodes.

    With another number of processes, process `p` goes on with the environments of process `p` modulo the old number.

    Raises:
        AgentError: If a state does not fit.
    """
    state = _load(folder, args.process_index % world_size_of(folder)).get("agent")
    if state:
        agent.load_state_dict(state)


def _upgraded(saved: dict[str, Any]) -> dict[str, Any]:
    """Converts the state of a micro-batch from version 0.1, which saved only padded tensors."""
    if "prompt_mask" not in saved:
        return saved or MicroBatch.skipped(torch.device("cpu")).state()
    tokens = {
        f"{name}_ids": _unpadded(saved[f"{name}_ids"], saved[f"{name}_mask"]) for name in ("prompt", "completion")
    }
    kept = ("loss_mask", "old_logps", "advantages", "ref_logps", "token_weights", "old_values", "returns")
    lists = {name: saved[name].tolist() for name in ("group_ids", "rows")}
    sampled_at = int(saved["sampled_at"][0])
    return {**tokens, **lists, "sampled_at": sampled_at, **{name: saved[name] for name in kept if name in saved}}


def _unpadded(ids: torch.Tensor, mask: torch.Tensor) -> list[list[int]]:
    return [row[kept.bool()].tolist() for row, kept in zip(ids, mask, strict=True)]


def _made_with(args: TrainingArguments) -> dict[str, Any]:
    """The settings that the micro-batches of a rollout depend on: later changes do not affect them."""
    settings = {name: getattr(args, name) for name in IN_THE_BUFFER if hasattr(args, name)}
    for weight in ("beta", "kl_coef"):  # if above 0, the rollout holds the reference's log-probabilities
        if hasattr(args, weight):
            settings[f"{weight} > 0"] = getattr(args, weight) > 0
    return settings


def _check_made_with(folder: str | Path, saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    changed = [
        f"{name} was {saved[name]}, now it is {own[name]}" for name in own if saved.get(name, own[name]) != own[name]
    ]
    if changed:
        raise ValueError(
            f"{folder} was written within a rollout that has not been trained on completely, but "
            f"{'; '.join(changed)}. Resume with the settings of the run, or from a checkpoint at the end of a "
            "rollout, where all of them may change."
        )


def saved_order(folder: str | Path) -> dict[str, Any]:
    """Returns in which order prompts came in the run of a checkpoint; empty for checkpoints of earlier versions."""
    any_rank = next(Path(folder).glob(ROLLOUT_STATE.format(rank="*")), _path(folder, 0))
    return _read(any_rank).get("order", {})


def world_size_of(folder: str | Path) -> int:
    """Returns the number of processes that wrote a checkpoint."""
    any_rank = next(Path(folder).glob(ROLLOUT_STATE.format(rank="*")), _path(folder, 0))
    return _read(any_rank)["world_size"]


def _load(folder: str | Path, rank: int) -> dict:
    return _read(_path(folder, rank))


def _read(path: Path) -> dict:
    if not path.exists():
        raise FileNotFoundError(
            f"{path} is missing, so the run cannot continue exactly where it stopped. This file is written with every "
            "checkpoint of this trainer unless save_only_model is set, one per process. Start from this "
            "folder as a model instead (--model_name_or_path), or resume from another checkpoint."
        )
    return torch.load(path, map_location="cpu", weights_only=True)


def _path(folder: str | Path, rank: int) -> Path:
    return Path(folder) / ROLLOUT_STATE.format(rank=rank)
