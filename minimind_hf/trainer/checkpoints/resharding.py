# SPDX-License-Identifier: Apache-2.0
"""Continues a checkpoint of DeepSpeed with another number of processes, through DeepSpeed's universal checkpoints.

DeepSpeed saves weights and optimizer in one part per process. Its converter joins each parameter and its moments in a
folder of the run, which is deleted when every process has read its new part. The checkpoint does not change.
"""

import copy
import io
import shutil
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn
from transformers.utils import logging

from ...rollout.agreement import failing_together
from .atomic import STAGING
from .resuming import CheckpointError, zero_tag
from .state import world_size_of

logger = logging.get_logger(__name__)


def is_of_other_processes(checkpoint: str | Path, accelerator: Accelerator) -> bool:
    """Whether a checkpoint has more or fewer parts than there are processes."""
    return world_size_of(checkpoint) != accelerator.num_processes


def load_resharded(
    deepspeed_engine: Any, checkpoint: str | Path, output_dir: str | Path, accelerator: Accelerator
) -> None:
    """Loads what another number of processes saved with the same ZeRO stage. Every process calls it.

    Args:
        deepspeed_engine (`DeepSpeedEngine`): Receives weights, optimizer, schedule and step counts.
        checkpoint (`str` or `Path`): A checkpoint of this trainer that has been checked.
        output_dir (`str` or `Path`): The output folder of the run, which all processes see. The converted checkpoint
            is there in the meantime.
        accelerator: Its main process converts.

    Raises:
        CheckpointError: If it cannot be converted, or belongs to a model that trains other parameters.
    """
    folder, tag = Path(output_dir) / STAGING / "universal", zero_tag(checkpoint)
    try:
        with failing_together("converting the checkpoint"):
            if accelerator.is_main_process:
                _convert(Path(checkpoint), folder)
                _check_parameters(folder / tag, deepspeed_engine.module, checkpoint)
        with failing_together("looking for the converted checkpoint"):
            if not (folder / "latest_universal").is_file():
                raise CheckpointError(
                    f"The first process converted {checkpoint} for {accelerator.num_processes} processes into "
                    f"{folder}, which this process does not see. Put output_dir on a file system that all processes "
                    "share."
                )
        _load(deepspeed_engine, folder, tag)
        accelerator.wait_for_everyone()
    finally:
        if accelerator.is_main_process:
            shutil.rmtree(folder.parent, ignore_errors=True)


def _convert(checkpoint: Path, folder: Path) -> None:
    from deepspeed.checkpoint.ds_to_universal import main

    tag, count = zero_tag(checkpoint), world_size_of(checkpoint)
    parts = len(list((checkpoint / tag).glob("*_optim_states.pt")))
    if parts != count:
        raise CheckpointError(
            f"{checkpoint} has {parts} of the {count} parts of its optimizer; the others are on other machines. Copy "
            f"them all there to continue with another number of processes than {count}."
        )
    logger.warning("%s: joining what %d processes saved.", checkpoint, count)
    settings = Namespace(
        input_folder=str(checkpoint / tag),
        output_folder=str(folder / tag),
        num_extract_workers=1,  # in this process, because a process that uses a GPU must not be forked
        num_merge_workers=1,
        keep_temp_folder=False,
        strict=True,
        inject_missing_state=True,  # which exists only if tensors are split
    )
    try:
        shutil.rmtree(folder, ignore_errors=True)
        (folder / tag).mkdir(parents=True)
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):  # a progress bar per parameter
            main(settings)
    except OSError as error:
        raise CheckpointError(
            f"{checkpoint} could not be converted into {folder}, which needs as much disk space as the checkpoint: "
            f"{error}"
        ) from error
    except Exception as error:
        raise CheckpointError(
            f"{checkpoint} was written by {count} processes, and DeepSpeed could not convert it for another number "
            f"({type(error).__name__}: {error}). It can convert only the state of Adam and AdamW (exp_avg, "
            f"exp_avg_sq). Resume with {count} processes, or start from the folder as a model (--model_name_or_path)."
        ) from error


def _check_parameters(converted: Path, model: nn.Module, checkpoint: str | Path) -> None:
    saved = {path.parent.name for path in (converted / "zero").glob("*/exp_avg.pt")}
    own = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    if saved != own:
        raise CheckpointError(
            f"{checkpoint} belongs to a model that trains other parameters: only here {_some(own - saved)}, only "
            f"there {_some(saved - own)}. Resume with the model and the adapters of the run that wrote it."
        )


def _some(names: set[str]) -> str:
    return (", ".join(sorted(names)[:3]) or "none") + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _load(deepspeed_engine: Any, folder: Path, tag: str) -> None:
    zero = deepspeed_engine.optimizer
    deepspeed_engine._config.load_universal_checkpoint = True
    try:
        with _groups_held_here(zero), _without_warnings():
            deepspeed_engine.load_checkpoint(str(folder), tag)
    finally:
        deepspeed_engine._config.load_universal_checkpoint = False
    saved = torch.load(folder / tag / "zero" / "optimizer_state.pt", map_location="cpu", weights_only=False)
    _repair(zero.optimizer, saved["param_groups"])


def _repair(optimizer: torch.optim.Optimizer, settings: list[dict]) -> None:
    """Undoes what ZeRO-3 does: all groups share one step tensor and the settings of the first group."""
    for group, saved in zip(optimizer.param_groups, settings, strict=True):
        group.update({name: value for name, value in saved.items() if name != "params"})
    on_device = any(group.get("fused") or group.get("capturable") for group in optimizer.param_groups)
    for part, state in optimizer.state.items():
        step = copy.deepcopy(state["step"])  # an int in DeepSpeed's own Adam
        state["step"] = step.to(part.device) if on_device else step


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Hides DeepSpeed's warning that tensors are not split by rows or columns."""
    from deepspeed.utils import logger as of_deepspeed

    level = of_deepspeed.level
    of_deepspeed.setLevel(logging.ERROR)
    try:
        yield
    finally:
        of_deepspeed.setLevel(level)


@contextmanager
def _groups_held_here(zero: Any) -> Iterator[None]:
    """Leaves out groups so small that the part of this process is only padding, for which ZeRO-1 and 2 fail."""
    name = next((name for name in ("bit16_groups", "bf16_groups") if hasattr(zero, name)), None)
    if name is None:
        yield
        return
    groups, settings = getattr(zero, name), zero.optimizer.param_groups
    held = [number for number, group in enumerate(groups) if any(one._hp_mapping is not None for one in group)]
    setattr(zero, name, [groups[number] for number in held])
    zero.optimizer.param_groups = [settings[number] for number in held]
    try:
        yield
    finally:
        setattr(zero, name, groups)
        zero.optimizer.param_groups = settings
    state = zero.optimizer.state
    parts = [group["params"][0] for group in settings]  # one flat tensor each
    like = state[parts[held[0]]] if held else {}
    for number in set(range(len(parts))) - set(held):  # no moments, and the same step as the others
        part = parts[number]
        state[part] = {
            key: torch.zeros_like(part) if torch.is_tensor(value) and value.dim() else copy.deepcopy(value)
            for key, value in like.items()
        }
