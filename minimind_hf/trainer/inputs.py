# SPDX-License-Identifier: Apache-2.0
"""What a trainer is given, made ready: tokenizer, prompts, rollout engine, output folder."""

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ..data import PromptDataset
from ..rollout import RolloutEngine, TorchEngine
from .config import RLConfig
from .sampler import RolloutSampler


def make_prompts(dataset: Any, tokenizer: PreTrainedTokenizerBase, args: RLConfig) -> PromptDataset | None:
    """Returns the data set as prompts; one that is so already stays as it is."""
    if dataset is None or isinstance(dataset, PromptDataset):
        return dataset
    return PromptDataset(
        dataset,
        tokenizer,
        max_prompt_length=args.max_prompt_length,
        overlong_prompts=args.overlong_prompts,
        thinking_ratio=args.thinking_ratio,
        system_prompt_ratio=args.system_prompt_ratio,
        seed=args.seed,
        chat_template_kwargs=args.chat_template_kwargs,
    )


def make_eval_prompts(
    dataset: Any, tokenizer: PreTrainedTokenizerBase, args: RLConfig
) -> PromptDataset | dict[str, PromptDataset] | None:
    """The same for a data set or a dictionary of them."""
    if isinstance(dataset, dict):
        return {name: make_prompts(part, tokenizer, args) for name, part in dataset.items()}
    return make_prompts(dataset, tokenizer, args)


def make_sampler(prompts: PromptDataset | None, args: RLConfig) -> RolloutSampler | None:
    """Returns the order in which the prompts are drawn.

    Raises:
        ValueError: If they do not fill one rollout.
    """
    if prompts is None:
        return None
    return RolloutSampler(
        num_prompts=len(prompts),
        chunk_size=args.prompts_per_rollout * args.world_size,
        repeats=args.micro_batches_per_rollout,
        shuffle=args.shuffle_dataset,
        seed=args.seed,
    )


def default_output_dir(model: str | PreTrainedModel, trainer: str) -> str:
    name = model if isinstance(model, str) else model.config._name_or_path or type(model).__name__
    return f"{Path(name).name}-{trainer.removesuffix('Trainer')}"


def load_tokenizer(model: str | PreTrainedModel, args: RLConfig) -> PreTrainedTokenizerBase:
    name = model if isinstance(model, str) else model.config._name_or_path
    if not name:
        raise ValueError(
            "The model was made in memory and names no folder to take a tokenizer from. Pass processing_class."
        )
    revision = (args.model_init_kwargs or {}).get("revision")
    return AutoTokenizer.from_pretrained(name, revision=revision, trust_remote_code=args.trust_remote_code)


def make_engine(args: RLConfig) -> RolloutEngine:
    if args.rollout_engine == "torch":
        dtype = args.rollout_dtype or ("bfloat16" if args.bf16 else None)
        return TorchEngine(args.max_batch_rows, dtype=dtype, path=args.torch_engine_path)
    raise ValueError(
        f"rollout_engine must be 'torch', got {args.rollout_engine!r}. An engine of your own goes to the trainer as "
        "an object: rollout_engine=MyEngine()."
    )
