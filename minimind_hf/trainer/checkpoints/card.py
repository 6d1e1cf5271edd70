# SPDX-License-Identifier: Apache-2.0
"""The README of a trained model: what it is, how to load it, how it was trained, and the results.

Everything comes from the trainer. Unknown facts are left out rather than guessed: the licence, a data set in a local
file, a base model in a local folder (the Hub would look for a repository with that name).
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

from accelerate.utils import is_peft_model
from huggingface_hub import ModelCard, ModelCardData
from huggingface_hub.utils import HFValidationError, validate_repo_id
from transformers import Trainer, TrainingArguments

from ...data import PromptDataset
from ...data.streams import PromptStream
from ...reports.record import FROM_DATA
from ..settings.trl_fields import unsupported_fields

REWARD_CURVE = "reward_curve.png"  # next to the card
# Arguments of transformers that affect the result. All additional settings of a trainer are listed.
_SHARED_SETTINGS = (
    "learning_rate",
    "lr_scheduler_type",
    "warmup_steps",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "max_grad_norm",
    "weight_decay",
    "seed",
    "bf16",
)
_NOT_OF_THE_RESULT = (
    "model_init_kwargs",
    "trust_remote_code",
    "defaults",
    "log_completions",
    "completions_interval",
    "num_completions_to_print",
    "log_unique_prompts",
    "debug_mode",
    "debug_interval",
    "sglang_base_url",
    "server_timeout",
    "rollout_sync_dir",
    "max_sampling_k3",
    "health",
    "language",
)
_OF_ADAPTERS = ("peft_type", "r", "lora_alpha", "target_modules")
_PACKAGES = ("minimind-hf", "torch", "transformers", "accelerate", "datasets", "peft", "trl", "tokenizers")
_METRICS = (
    "reward",
    "reward_std",
    "divergence",
    "kl_ref",
    "entropy",
    "completions/mean_length",
    "completions/clipped_ratio",
)

_TEMPLATE = """\
---
{{ card_data }}
---

# {{ model_name }}

{{ summary }}

## How to load it

{{ code }}

## Training

Optimizer steps: {{ steps }}. Processes: {{ processes }}.
{%- if rewards %} The reward is the weighted sum of: {{ rewards }}.{% endif %}

{{ settings }}

## Results

{{ results }}
{{ curve }}

## Versions

{{ versions }}
"""


def model_card(
    trainer: Trainer,
    model_name: str | None = None,
    dataset_name: str | Sequence[str] | None = None,
    tags: str | Sequence[str] | None = None,
) -> ModelCard:
    """Describes a model that was trained by a trainer of this project.

    Args:
        trainer (`Trainer`): After training. The last logged `reward`, ... and `eval_*` are the results.
        model_name (`str`, *optional*): Default: taken from `hub_model_id`, or from `output_dir`.
        dataset_name (`str` or list of them, *optional*): The training data; listed if it can be a Hub name.
        tags (`str` or list of them, *optional*): Additional tags.

    Returns:
        `ModelCard`: With valid metadata; `save(path)` writes it.
    """
    model = trainer.policy
    name = model_name or _name(trainer.args)
    algorithm = trainer.args.algorithm
    source = f" ([{algorithm.paper}](https://arxiv.org/abs/{algorithm.arxiv}))" if algorithm.paper else ""
    base_model = _base_model(model)
    data = ModelCardData(
        library_name="peft" if is_peft_model(model) else "transformers",
        model_name=name,
        base_model=base_model,
        datasets=[dataset for dataset in _as_list(dataset_name) if _is_hub_name(dataset)] or None,
        pipeline_tag="text-generation",
        tags=[
            "generated_from_trainer",
            "minimind-hf",
            algorithm.label.lower(),
            algorithm.kind,
            *_as_list(tags),
        ],
    )
    summary = f"{_described(base_model, model)}, trained by {algorithm.label}{source}."
    return ModelCard.from_template(
        data,
        template_str=_TEMPLATE,
        summary=summary,
        code=_loading_code(_loadable_name(trainer), model),
        steps=trainer.state.global_step,
        processes=trainer.args.world_size,
        rewards=", ".join(f"`{signal}`" for signal in reward_names(trainer)),
        settings=_table(("setting", "value"), settings(trainer)),
        results=_table(("metric", "first", "last"), _results(trainer.state.log_history)),
        curve=f"\n![Reward over optimizer steps]({REWARD_CURVE})\n" if _has_curve(trainer) else "",
        versions=_table(("package", "version"), ((package, version(package)) for package in _PACKAGES)),
    )


def _has_curve(trainer: Trainer) -> bool:
    return any("reward" in entry for entry in trainer.state.log_history)


def _name(args: TrainingArguments) -> str:
    return (args.hub_model_id or Path(args.output_dir).resolve().name).rsplit("/", 1)[-1]


def _base_model(model: Any) -> str | None:
    name = _name_or_path(model)
    return name if _is_hub_name(name) else None


def _name_or_path(model: Any) -> str:
    """Name or path of the model; for adapters, of their base."""
    adapters = model.peft_config[model.active_adapter].base_model_name_or_path if is_peft_model(model) else None
    return adapters or getattr(model.config, "_name_or_path", "")


def _is_hub_name(name: str) -> bool:
    """Whether this can be a Hub repository. An existing local file or folder is not one."""
    if not name or Path(name).exists():
        return False
    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True


def _as_list(value: str | Iterable[str] | None) -> list[str]:
    return [value] if isinstance(value, str) else list(value or [])


def _described(base_model: str | None, model: Any) -> str:
    kind = f"A {model.config.model_type} model of {model.num_parameters() / 1e6:.1f} million parameters"
    if is_peft_model(model):
        kind = f"Adapters for a {model.config.model_type} model"
    if base_model:
        return f"{kind}, from [{base_model}](https://huggingface.co/{base_model})"
    folder = Path(_name_or_path(model)).name
    return f"{kind}, from the folder `{folder}`" if folder else kind


def _loadable_name(trainer: Trainer) -> str:
    """The name under which the model can be loaded: on the Hub, or in the folder as the user wrote it."""
    if trainer.args.push_to_hub:
        return getattr(trainer, "hub_model_id", None) or trainer.args.hub_model_id or _name(trainer.args)
    return str(trainer.args.output_dir)


def _loading_code(name: str, model: Any) -> str:
    """One example; of a MiniMind two, since without the package its code comes from the folder."""
    needs_peft = " (needs peft)" if is_peft_model(model) else ""
    if model.config.model_type != "minimind":
        return f"With transformers{needs_peft}:\n\n{_example(name)}"
    return (
        f"With this package, which makes MiniMind known to transformers{needs_peft}:\n\n"
        f"{_example(name, first='import minimind_hf')}\n\n"
        f"With transformers alone, by the code that comes with the weights:\n\n"
        f"{_example(name, further=', trust_remote_code=True')}"
    )


def _example(name: str, first: str = "", further: str = "") -> str:
    lines = [
        *([first] if first else []),
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        "",
        f"tokenizer = AutoTokenizer.from_pretrained({json.dumps(name, ensure_ascii=False)}{further})",
        f"model = AutoModelForCausalLM.from_pretrained({json.dumps(name, ensure_ascii=False)}{further})",
    ]
    return "\n".join(["```python", *lines, "```"])


def reward_names(trainer: Trainer) -> list[str]:
    """Names of the reward signals, as logged."""
    return list(trainer.scorer.names)


def settings(trainer: Trainer) -> list[tuple[str, Any]]:
    """Settings that affect the result, with their values; without settings of the prompts that have no effect."""
    return _settings(trainer.args, _idle(trainer.train_dataset))


def _settings(args: TrainingArguments, idle: Iterable[str] = ()) -> list[tuple[str, Any]]:
    inherited = {field.name for field in fields(TrainingArguments)}
    left_out = {*_NOT_OF_THE_RESULT, *unsupported_fields(type(args)), *idle}
    own = [f.name for f in fields(args) if f.name not in inherited and f.name not in left_out]
    values = ((name, getattr(args, name)) for name in (*_SHARED_SETTINGS, *own))
    return [(name, getattr(value, "value", value)) for name, value in values if value is not None]


def _idle(prompts: PromptDataset | PromptStream | None) -> list[str]:
    """Settings that have no effect on these prompts."""
    idle = ["thinking_ratio"] if prompts is not None and prompts.thinking_argument is None else []
    return idle + (["system_prompt_ratio"] if prompts is not None and not prompts.conversational else [])


def described_run(trainer: Trainer) -> dict[str, Any]:
    """The algorithm, the settings and the weights of the rewards of a run, for its run.json."""
    return {
        "algorithm": trainer.args.algorithm.label,
        "settings": what_is_trained(trainer) | dict(settings(trainer)),
        "weights": dict(zip(reward_names(trainer), trainer.scorer.weights.tolist(), strict=True)),
    }


def described_run_on_data(trainer: Trainer, label: str, of_data: Mapping[str, Any]) -> dict[str, Any]:
    """The same of a run that learns from given texts, as those of trl's trainers in the recipes.

    Args:
        trainer (`Trainer`): With a `policy`, the model that is trained.
        label (`str`): What the algorithm is called.
        of_data (`Mapping[str, Any]`): Settings of the data, which are not among the trainer's.
    """
    model = trainer.policy
    trained = {"model": _model_name(model), "rows": len(trainer.train_dataset), "steps": trainer.state.max_steps}
    return {
        "algorithm": label,
        "learns_from": FROM_DATA,
        "settings": trained | _adapter_settings(model) | dict(of_data) | dict(_settings(trainer.args)),
    }


def what_is_trained(trainer: Trainer) -> dict[str, Any]:
    """The differences between runs with equal settings: model, adapters, number of prompts, rewards, steps."""
    model, prompts = trainer.policy, trainer.train_dataset
    weighted = zip(trainer.scorer.weights.tolist(), reward_names(trainer), strict=True)
    described = {
        "model": _model_name(model),
        "prompts": "a stream" if isinstance(prompts, PromptStream) else len(prompts),
        "rewards": ", ".join(f"{weight:g} x {name}" for weight, name in weighted) or "none",
        "steps": trainer.state.max_steps,
    }
    return described | _adapter_settings(model)


def _model_name(model: Any) -> str:
    return getattr(model.config, "_name_or_path", "") or type(model).__name__


def _adapter_settings(model: Any) -> dict[str, Any]:
    if not is_peft_model(model):
        return {}
    adapter = model.peft_config[model.active_adapter].to_dict()
    targets = adapter.get("target_modules")
    adapter["target_modules"] = targets if isinstance(targets, str) else ", ".join(sorted(targets or []))
    return {f"adapter_{name}": adapter[name] for name in _OF_ADAPTERS if adapter.get(name)}


def _results(log_history: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """The first and the last value of what was logged; of what was measured once, the last alone."""
    found: dict[str, list[float]] = {}
    for log in log_history:
        for name, value in log.items():
            if isinstance(value, int | float):
                found.setdefault(name, []).append(value)
    names = [name for name in _METRICS if name in found]
    names += [name for name in found if name.startswith("eval_")]
    return [(name, f"{v[0]:.4g}" if len(v) > 1 else "", f"{v[-1]:.4g}") for name in names for v in [found[name]]]


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join(lines + [f"| {' | '.join(map(str, row))} |" for row in rows])
