# SPDX-License-Identifier: Apache-2.0
"""What a yaml file of settings says of the memory of a run, for `minimind-hf estimate --config`."""

import quiet  # noqa: F401 - before libraries that talk about themselves are imported

# isort: split
from dataclasses import fields
from typing import Any

from agent import ALGORITHMS, AgentArguments
from common import parse_arguments
from flags import CONFIG, separate_config, split_config

from minimind_hf import GRPOConfig, PPOConfig
from minimind_hf.estimate import DTYPES

AS_IN_THE_CONFIG = (
    "per_device_train_batch_size",
    "steps_per_generation",
    "num_generations",
    "mini_batch_size",
    "max_batch_rows",
    "max_prompt_length",
    "max_completion_length",
    "max_tokens_per_microbatch",
    "bf16",
)


def estimated_settings(file: str, algorithm: str | None = None) -> dict[str, Any]:
    """The settings of recipes/grpo.py, ppo.py or agent.py that shape the memory of a run, by the names of the flags.

    Args:
        file (`str`): The yaml file, or the name of one beside the recipes.
        algorithm (`str`, *optional*): `"grpo"` or `"ppo"`. Unset: what the file says, or what its settings belong to.

    Raises:
        ValueError: If the recipes would refuse the file.
    """
    arguments = separate_config([CONFIG, file])
    written = split_config(arguments)[1]
    algorithm = algorithm or written.get("algorithm") or _algorithm_with(written)
    if algorithm not in ALGORITHMS:
        raise ValueError(f"algorithm is {algorithm!r} in {file}; give one of: {', '.join(ALGORITHMS)}.")
    on_any_machine = ["--use_cpu", "true"]  # what is estimated need not be a run here
    _, args, model = parse_arguments(ALGORITHMS[algorithm][0], {}, [*arguments, *on_any_machine], AgentArguments)
    found = {name: getattr(args, name, None) for name in AS_IN_THE_CONFIG} | {
        "algorithm": algorithm,
        "model": model.model_name_or_path,
        "dtype": model.dtype if "dtype" in written and model.dtype in DTYPES else None,
        "lora_r": model.lora_r if model.use_peft else None,
        "no_reference": (args.kl_coef if algorithm == "ppo" else args.beta) == 0,
        "use_cpu": bool(written.get("use_cpu")),
        "trust_remote_code": args.trust_remote_code,
    }
    return {name: value for name, value in found.items() if value is not None}


def _algorithm_with(names: dict[str, Any]) -> str:
    of_grpo, of_ppo = ({each.name for each in fields(config)} for config in (GRPOConfig, PPOConfig))
    return "ppo" if (of_ppo - of_grpo).intersection(names) else "grpo"
