# SPDX-License-Identifier: Apache-2.0
"""From the data sets that a trainer was given to prompts, for training and evaluation."""

from typing import Any

from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from ...agent import Agent
from ...data import PromptDataset, check_tokenizer
from ...data.files import is_stream
from ...data.prompts import say_how_many_think
from ...data.streams import PromptStream, read_whole
from ...data.tokenizers import say_plain_prompts
from ..settings.base import RLConfig

logger = logging.get_logger(__name__)


def prompts_of_run(
    train_dataset: Any, eval_dataset: Any, tokenizer: PreTrainedTokenizerBase, args: RLConfig, agent: Agent | None
) -> dict[str, Any]:
    """The prompts of training and evaluation, by the names of the trainer's arguments.

    Raises:
        ValueError: If data, tokenizer and settings do not fit together.
    """
    train_prompts = make_prompts(with_rows(train_dataset, args, agent), tokenizer, args, agent)
    eval_prompts = make_eval_prompts(eval_dataset, tokenizer, args, agent)
    check_tokenizer(tokenizer, train_prompts.conversational if train_prompts else False)
    return {"train_dataset": train_prompts, "eval_dataset": eval_prompts}


def with_rows(dataset: Any, args: RLConfig, agent: Agent | None) -> Any:
    """The train data set; where environments write all prompts, it may be left out and has rows without a prompt.

    Raises:
        ValueError: If the length of such a run is not set.
    """
    if dataset is not None or agent is None or not agent.writes_prompts:
        return dataset
    if args.max_steps <= 0:
        raise ValueError(
            f"max_steps is {args.max_steps}, but without a train_dataset nothing else says how long to train. Set it."
        )
    return agent.empty_prompts(args.prompts_per_rollout * args.world_size)


def make_prompts(
    dataset: Any, tokenizer: PreTrainedTokenizerBase, args: RLConfig, agent: Agent | None = None
) -> PromptDataset | PromptStream | None:
    """Returns the train dataset as prompts, unless it is so already.

    Raises:
        ValueError: If it is a stream, and `max_steps` does not say where training ends, or a setting contradicts it.
    """
    if dataset is None or isinstance(dataset, PromptDataset | PromptStream):
        return dataset
    if not is_stream(dataset):
        return _rendered(PromptDataset, dataset, tokenizer, args, agent)
    _settle_for_stream(type(dataset).__name__, args)
    chunk = args.prompts_per_rollout * args.world_size
    return _rendered(PromptStream, dataset, tokenizer, args, agent, at_least=chunk, shuffle=args.shuffle_dataset)


def _settle_for_stream(kind: str, args: RLConfig) -> None:
    accelerator = args.accelerator_config
    if accelerator.dispatch_batches:
        raise ValueError(
            f"Iterable datasets require `dispatch_batches=False`, but train_dataset is a stream ({kind}) and "
            "accelerator_config has dispatch_batches=True: each process reads the stream and takes its own prompts. "
            "Leave it out."
        )
    if args.max_steps <= 0:
        raise ValueError(
            f"train_dataset is a stream ({kind}), whose length is unknown, but max_steps is {args.max_steps}. Set "
            "max_steps to the number of optimizer steps: it ends the run, and the learning rate follows it. "
            "num_train_epochs has no meaning here."
        )
    if args.dataloader_num_workers:
        logger.warning(
            "dataloader_num_workers is %d, but a stream is read by the process that trains on it. It is set to 0.",
            args.dataloader_num_workers,
        )
    accelerator.dispatch_batches, args.dataloader_num_workers = False, 0


def make_eval_prompts(
    dataset: Any, tokenizer: PreTrainedTokenizerBase, args: RLConfig, agent: Agent | None = None
) -> PromptDataset | dict[str, PromptDataset] | None:
    """The same for evaluation, or for a dictionary of data sets. A stream is read whole: each prompt counts once."""
    if isinstance(dataset, dict):
        return {name: make_eval_prompts(part, tokenizer, args, agent) for name, part in dataset.items()}
    if dataset is None or isinstance(dataset, PromptDataset):
        return dataset
    rows = read_whole(dataset, "eval_dataset") if is_stream(dataset) else dataset
    return _rendered(PromptDataset, rows, tokenizer, args, agent)


def _rendered(
    kind: type[PromptDataset] | type[PromptStream],
    dataset: Any,
    tokenizer: PreTrainedTokenizerBase,
    args: RLConfig,
    agent: Agent | None,
    **further: Any,
) -> Any:
    if agent is not None:
        dataset = agent.with_prompts(dataset)
        if kind is PromptDataset:
            agent.check_rows(dataset)
        further |= {"tools": agent.schemas, "implemented": agent.tool_names}
    prompts = kind(
        dataset,
        tokenizer,
        max_prompt_length=args.max_prompt_length,
        overlong_prompts=args.overlong_prompts,
        thinking_ratio=args.thinking_ratio,
        system_prompt_ratio=args.system_prompt_ratio,
        seed=args.seed,
        chat_template_kwargs=args.chat_template_kwargs,
        **further,
    )
    if agent is not None:
        agent.check_prompts(prompts)
    if args.process_index == 0:
        say_how_many_think(prompts, args.thinking_ratio)
        say_plain_prompts(tokenizer, prompts.conversational)
    return prompts


def named_prompts(prompts: Any, name: str) -> PromptDataset:
    """Returns one of a dictionary of evaluation data sets.

    Raises:
        ValueError: If there is none with this name.
    """
    if not isinstance(prompts, dict) or name not in prompts:
        names = (
            ", ".join(map(repr, prompts)) if isinstance(prompts, dict) else "none, eval_dataset is not a dictionary"
        )
        raise ValueError(
            f"There is no evaluation data set named {name!r}; names: {names}. Pass one of them, or rows with prompts."
        )
    return prompts[name]
