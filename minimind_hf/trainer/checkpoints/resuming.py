# SPDX-License-Identifier: Apache-2.0
"""Finds the checkpoint to resume from, and checks it completely before anything is loaded.

Errors name files that are missing, truncated or damaged, and parts that do not fit the model: the Trainer would
silently continue without them.
"""

import json
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.utils import DistributedType, is_peft_model
from peft.utils import CONFIG_NAME as ADAPTER_CONFIG_NAME
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import TrainingArguments
from transformers.trainer import OPTIMIZER_NAME, SCALER_NAME, SCHEDULER_NAME, TRAINER_STATE_NAME
from transformers.trainer_utils import sort_checkpoints
from transformers.utils import logging

from ...rollout.agreement import failing_together
from .checksums import changed_files
from .state import world_size_of

logger = logging.get_logger(__name__)

LATEST = "latest"  # this file names the folder of DeepSpeed
WEIGHTS = ("model*.safetensors", "adapter_model.*", "*/adapter_model.*", "pytorch_model*", "global_step*")  # any of
ZIPPED = (
    OPTIMIZER_NAME,
    SCHEDULER_NAME,
    SCALER_NAME,
    "reference.pt",
    "rng_state*.pth",
    "rollout_state_*.pt",
    "global_step*/*.pt",
)
# Where an adapter is and how it was initialized: these do not tell adapters apart
NOT_OF_THE_ADAPTER = {
    "arrow_config",
    "auto_mapping",
    "base_model_name_or_path",
    "corda_config",
    "eva_config",
    "inference_mode",
    "init_lora_weights",
    "loftq_config",
    "lora_dropout",
    "lora_ga_config",
    "peft_version",
    "revision",
    "runtime_config",
}


class CheckpointError(ValueError):
    """A run cannot resume from this checkpoint."""


@dataclass(frozen=True)
class Needs:
    """Requirements for a checkpoint.

    Args:
        mode (`DistributedType`): How the run is distributed, which decides where the optimizer is stored.
        rank (`int`, *optional*): The process whose state must be there. Default: all processes.
        zero_stage (`int`, *optional*): The ZeRO stage, under DeepSpeed.
    """

    mode: DistributedType
    rank: int | None = None
    zero_stage: int | None = None


def checkpoint_to_resume(
    wanted: str | Path | bool | None, args: TrainingArguments, model: nn.Module, accelerator: Accelerator
) -> str | None:
    """Returns the checkpoint to resume from, if any; every process calls it.

    Args:
        wanted (`str`, `Path`, `bool`, *optional*): As for `train`: a folder, or `True` for the newest complete
            checkpoint in the output folder.
        args (`TrainingArguments`): Settings of the run.
        model (`nn.Module`): The policy.
        accelerator: Connects the processes; the main process reads the files.

    Raises:
        CheckpointError: If there is no checkpoint, it is damaged, or its adapters differ from the model's.
        FileNotFoundError: If one of its files is missing.
    """
    if wanted is None or wanted is False:
        return None
    with failing_together("checking the checkpoint"):
        plugin = accelerator.state.deepspeed_plugin
        needs = Needs(
            accelerator.distributed_type,
            args.process_index if args.save_on_each_node else None,
            plugin.zero_stage if plugin else None,
        )
        found = _newest_whole(Path(args.output_dir), needs) if wanted is True else Path(wanted)
        check_whole(found, needs, reads=accelerator.is_main_process)
        _check_adapters(found, model)
    return str(found)


def check_whole(folder: Path, needs: Needs, reads: bool = True) -> None:
    """Refuses a checkpoint with missing files or, if this process reads them, truncated or damaged files.

    Raises:
        CheckpointError or FileNotFoundError: Naming the file, and another checkpoint to use.
    """
    if not folder.is_dir():
        raise CheckpointError(f"There is no checkpoint {folder} (looked in {Path.cwd()}). Check the path.")
    _check_kind(folder, needs)
    missing = _missing(folder, needs)
    if missing is not None:
        raise FileNotFoundError(
            f"{folder / missing} is missing, so the run cannot continue exactly where it stopped. It is written with "
            f"every checkpoint of this trainer{_unless(missing)}. {_remedy(folder, needs)}"
        )
    damage = next(_damages(folder), None) if reads else None
    if damage is not None:
        raise CheckpointError(f"{damage}. It was truncated or changed after it was written. {_remedy(folder, needs)}")


def zero_tag(folder: str | Path) -> str:
    """Returns the name of the folder that holds DeepSpeed's part of a checkpoint."""
    return (Path(folder) / LATEST).read_text(encoding="utf-8").strip()


def _check_kind(folder: Path, needs: Needs) -> None:
    """Refuses a checkpoint whose optimizer is stored in another format than that of this run."""
    uses_deepspeed = needs.mode == DistributedType.DEEPSPEED
    if (folder / LATEST).is_file():
        is_zero3 = any(True for _ in (folder / zero_tag(folder)).glob("zero_pp_rank_*_model_states.pt"))
        written, use = ("ZeRO-3", "zero3") if is_zero3 else ("ZeRO-1 or ZeRO-2", "zero2")
        fits = uses_deepspeed and is_zero3 == (needs.zero_stage == 3)
    elif uses_deepspeed and (folder / OPTIMIZER_NAME).is_file():
        written, use, fits = "no DeepSpeed", "ddp", False
    else:
        return
    if not fits:
        now = f"ZeRO-{needs.zero_stage}" if uses_deepspeed else "no DeepSpeed"
        raise CheckpointError(
            f"{folder} was written under {written}, and this run is under {now}, which stores the optimizer in "
            f"another format. Resume as it was written (accelerate_configs/{use}.yaml, with any --num_processes), or "
            "start from the folder as a model (--model_name_or_path), with a fresh optimizer."
        )


def _newest_whole(output_dir: Path, needs: Needs) -> Path:
    folders = [Path(path) for path in reversed(sort_checkpoints(str(output_dir)))]
    if not folders:
        raise CheckpointError(
            f"resume_from_checkpoint is True, but {output_dir} holds no checkpoint. Check output_dir, or leave "
            "resume_from_checkpoint unset to start a new run."
        )
    found = next((folder for folder in folders if _missing(folder, needs) is None), folders[0])
    for skipped in folders[: folders.index(found)]:
        logger.warning(
            "%s is incomplete (%s is missing), so the run continues from %s, the newest complete checkpoint.",
            skipped,
            _missing(skipped, needs),
            found,
        )
    return found


def _missing(folder: Path, needs: Needs) -> str | None:
    """Returns the name of the first missing file, if any."""
    if not any(True for _ in folder.glob("rollout_state_*.pt")):
        return "rollout_state_0.pt"
    present = {path.name for path in folder.iterdir()}
    if not any(True for pattern in WEIGHTS for _ in folder.glob(pattern)):
        return "model.safetensors"
    names = [TRAINER_STATE_NAME]
    if needs.mode == DistributedType.DEEPSPEED:  # stores optimizer and schedule in a separate folder
        names += [LATEST]
    elif needs.mode != DistributedType.FSDP or not any(folder.glob("optimizer*")):
        names += [OPTIMIZER_NAME]
    if needs.mode != DistributedType.DEEPSPEED:
        names += [SCHEDULER_NAME]
    return next((name for name in names if name not in present), None) or _missing_of_processes(folder, needs, present)


def _missing_of_processes(folder: Path, needs: Needs, present: set[str]) -> str | None:
    if any(_damage_of_zip(path) for path in folder.glob("rollout_state_*.pt")):
        return None  # `_damages` reports it
    count = world_size_of(folder)
    ranks = range(count) if needs.rank is None else [needs.rank] * (needs.rank < count)
    states = [f"rollout_state_{rank}.pt" for rank in ranks]
    random = ["rng_state.pth"] if count == 1 else [f"rng_state_{rank}.pth" for rank in ranks]
    missing = next((name for name in [*states, *random] if name not in present), None)
    return missing or (_missing_shard(folder, ranks) if needs.mode == DistributedType.DEEPSPEED else None)


def _missing_shard(folder: Path, ranks: Iterable[int]) -> str | None:
    for rank in ranks:
        name = f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        if not any(True for _ in (folder / zero_tag(folder)).glob(f"*{name}")):  # bf16_... if it computes in bfloat16
            return f"{zero_tag(folder)}/{name}"
    return None


def _unless(missing: str) -> str:
    return "" if missing in (TRAINER_STATE_NAME, "model.safetensors") else " unless save_only_model is set"


def _damages(folder: Path) -> Iterator[str]:
    for pattern in ZIPPED:
        for path in sorted(folder.glob(pattern)):
            damage = _damage_of_zip(path)
            if damage is not None:
                yield damage
    for path in sorted(folder.rglob("*.safetensors")):
        try:
            with safe_open(path, framework="pt"):  # compares the header with the file size
                pass
        except (SafetensorError, OSError) as error:
            yield f"{path} cannot be read ({error})"
    for path in (folder / TRAINER_STATE_NAME, folder / ADAPTER_CONFIG_NAME, folder / "config.json"):
        if path.exists():
            try:
                json.loads(path.read_text(encoding="utf-8"))
            except (json.JSONDecodeError, UnicodeDecodeError) as error:
                yield f"{path} is not valid JSON ({error})"
    yield from changed_files(folder)


def _damage_of_zip(path: Path) -> str | None:
    try:
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError, struct.error) as error:
        return f"{path} cannot be read ({error})"
    return None if broken is None else f"{path} is damaged (in {broken})"


def _remedy(folder: Path, needs: Needs) -> str:
    others = [Path(path) for path in sort_checkpoints(str(folder.parent))] if folder.parent.is_dir() else []
    whole = [
        other
        for other in others
        if other.resolve() != folder.resolve()
        and _missing(other, needs) is None
        and next(_damages(other), None) is None
    ]
    as_a_model = "start from this folder as a model (--model_name_or_path), if its weights are complete"
    if not whole:
        return f"No other checkpoint next to it is complete: {as_a_model}."
    return f"Resume from {whole[-1]}, which is complete, or {as_a_model}."


# Adapters


def _check_adapters(folder: Path, model: nn.Module) -> None:
    """Refuses adapters that differ from the checkpoint's: the Trainer would silently train new ones instead."""
    if not is_peft_model(model):
        if (folder / ADAPTER_CONFIG_NAME).is_file():
            raise CheckpointError(
                f"{folder} holds adapters ({ADAPTER_CONFIG_NAME}), but the model has none. Resume with the settings "
                f"of the run that wrote it: {_short(_saved_adapter(folder / ADAPTER_CONFIG_NAME))}."
            )
        return
    name = model.active_adapter
    paths = [folder / ADAPTER_CONFIG_NAME, folder / name / ADAPTER_CONFIG_NAME]
    path = next((path for path in paths if path.is_file()), None)
    own = _plain(model.peft_config[name].to_dict())
    if path is None:
        if any(folder.glob("*_fsdp_*")):  # all weights are in one sharded state
            return
        raise CheckpointError(
            f"The model has adapters ({_short(own)}), but {folder} holds none. Resume without them, or start from "
            "this folder as a model (--model_name_or_path) to put adapters on it."
        )
    saved = _saved_adapter(path)
    names = [key for key in saved if key in own and saved[key] != own[key] and key not in NOT_OF_THE_ADAPTER]
    if names:
        differences = "; ".join(f"{key} is {own[key]!r}, in the checkpoint {saved[key]!r}" for key in names)
        raise CheckpointError(
            f"The adapters of the model are not those of {folder}, so their training would be lost: {differences}. "
            "Resume with the checkpoint's settings, or merge its adapters and start a new run."
        )


def _saved_adapter(path: Path) -> dict[str, Any]:
    return _plain(json.loads(path.read_text(encoding="utf-8")))


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config as in JSON, with sorted names (peft keeps them in sets); unset and empty values are equal."""
    plain = json.loads(
        json.dumps(dict(config), default=lambda value: sorted(value) if isinstance(value, set) else str(value))
    )
    return {
        key: (sorted(map(str, value)) if isinstance(value, list) else value) or None for key, value in plain.items()
    }


def _short(config: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={config.get(key)!r}" for key in ("peft_type", "r", "lora_alpha", "target_modules"))


# A new run


def warn_of_earlier_run(output_dir: str | Path) -> None:
    """Warns if a new run starts in a folder with checkpoints of an earlier run."""
    folders = [Path(path) for path in sort_checkpoints(str(output_dir))] if Path(output_dir).is_dir() else []
    if folders:
        logger.warning(
            "%s holds checkpoints of an earlier run (%s), but this is a new run. resume_from_checkpoint=True would "
            "continue from %s, the one with the highest step. Use another output_dir to keep the runs apart.",
            output_dir,
            ", ".join(folder.name for folder in folders),
            folders[-1].name,
        )
