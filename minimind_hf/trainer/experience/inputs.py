# SPDX-License-Identifier: Apache-2.0
"""Prepares the inputs of a trainer: tokenizer, prompts, rollout engine, output folder."""

import copy
from pathlib import Path
from typing import Any

from peft import PeftConfig
from torch import nn
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils.quantization_config import QuantizationConfigMixin

from ...agent import Agent, AgentError
from ...data import PromptDataset
from ...data.prompts import say_how_many_think
from ...data.tokenizers import say_plain_prompts
from ...paths import check_loadable, check_tokenizer_files
from ...rewards import RewardScorer
from ...rollout import RolloutEngine, SGLangEngine, TorchEngine
from ..settings.base import RLConfig
from ..settings.engines import check_own_engine
from .sampler import RolloutSampler


def check_config_class(args: Any, expected: type[RLConfig]) -> None:
    """Refuses the settings of another trainer, including trl's.

    Raises:
        ValueError: Naming both classes.
    """
    if not isinstance(args, expected):
        found = f"{type(args).__module__.split('.')[0]}.{type(args).__name__}"
        raise ValueError(
            f"args is a {found}, but this trainer takes a minimind_hf.{expected.__name__}. Import it from "
            "minimind_hf: it has trl's fields."
        )


def check_objects(model: Any, processing_class: Any, peft_config: Any) -> None:
    """Refuses arguments of the wrong type.

    Raises:
        TypeError: Naming the argument, its type and what is expected.
    """
    expected = {
        "model": (model, (str, nn.Module), "a name or folder (a str), or a model"),
        "processing_class": (processing_class, (PreTrainedTokenizerBase, type(None)), "a tokenizer of transformers"),
        "peft_config": (peft_config, (PeftConfig, type(None)), "a configuration of peft, such as LoraConfig(r=16)"),
    }
    for name, (value, kinds, wanted) in expected.items():
        if not isinstance(value, kinds):
            found = f"the class {value.__name__}" if isinstance(value, type) else f"a {type(value).__name__}"
            raise TypeError(f"{name} is {found}, expected {wanted}.")


def with_quantization(
    model: str | PreTrainedModel, args: RLConfig, quantization_config: QuantizationConfigMixin | None
) -> RLConfig:
    """Moves trl's argument `quantization_config` into `model_init_kwargs`.

    Raises:
        ValueError: If the model is loaded already, or `model_init_kwargs` holds one too.
    """
    if quantization_config is None:
        return args
    init_kwargs = args.model_init_kwargs or {}
    if not isinstance(model, str) or "quantization_config" in init_kwargs:
        fault = "the model is loaded already" if not isinstance(model, str) else "model_init_kwargs holds one too"
        raise ValueError(f"quantization_config was given, but {fault}. Pass it once, where the model is loaded.")
    return replace_settings(args, model_init_kwargs={**init_kwargs, "quantization_config": quantization_config})


def replace_settings(args: RLConfig, **changes: Any) -> RLConfig:
    """Returns a shallow copy with changed values, which are not checked again."""
    changed = copy.copy(args)
    for name, value in changes.items():
        setattr(changed, name, value)
    return changed


def make_agent(
    args: RLConfig, tools: Any, environment_factory: Any, rollout_func: Any, tokenizer: PreTrainedTokenizerBase
) -> Agent | None:
    """Returns the tools and environments of a run, `None` if it has none.

    Raises:
        AgentError: If one of them, or the chat template, cannot be used.
    """
    if not tools and environment_factory is None:
        return None
    if rollout_func is not None:
        raise AgentError(
            "rollout_func draws whole completions, so nobody would call tools or an environment_factory. Leave out "
            "one of them."
        )
    return Agent(
        tools,
        environment_factory,
        tokenizer,
        (tokenizer.eos_token_id,),
        template_kwargs=args.chat_template_kwargs,
        max_prompt_length=args.max_prompt_length,
        max_turns=args.max_turns,
        max_observation_length=args.max_observation_length or args.max_completion_length,
        tool_timeout=args.tool_timeout,
        tool_workers=args.tool_workers,
    )


def check_reward_source(reward_funcs: Any, environments: Any) -> None:
    """Refuses a run without any reward.

    Raises:
        ValueError: If there is neither a reward function nor an environment that rewards.
    """
    if reward_funcs is None and not environments:
        raise ValueError(
            "No reward source provided: reward_funcs is None. Pass at least one reward function, or an "
            "environment_factory whose environments have get_reward() or give rewards in their replies."
        )


def make_scorer(reward_funcs: Any, processing_classes: Any, args: RLConfig, agent: Agent | None) -> RewardScorer:
    """Returns the reward functions: those given, and the rewards of environments, whose weight is 1.

    Raises:
        ValueError: If there is no reward at all.
    """
    added = [] if agent is None else agent.reward_functions(are_only=not reward_funcs)
    check_reward_source(reward_funcs, added)
    given = list(reward_funcs) if isinstance(reward_funcs, list | tuple) else [reward_funcs]
    if reward_funcs is None:
        given = []
    weights = args.reward_weights
    if weights is not None:
        weights = [*weights, *[1.0] * len(added)]
    if isinstance(processing_classes, list | tuple):
        processing_classes = [*processing_classes, *[None] * len(added)]
    further = {"trust_remote_code": args.trust_remote_code}
    return RewardScorer([*given, *added], weights, processing_classes, model_kwargs=further)


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
) -> PromptDataset | None:
    """Returns the data set as a `PromptDataset`, unless it is one already."""
    if agent is not None:
        dataset = agent.with_prompts(dataset)
        agent.check_rows(dataset or ())
    if dataset is None or isinstance(dataset, PromptDataset):
        return dataset
    with_tools = {} if agent is None else {"tools": agent.schemas, "implemented": agent.implemented}
    prompts = PromptDataset(
        dataset,
        tokenizer,
        max_prompt_length=args.max_prompt_length,
        overlong_prompts=args.overlong_prompts,
        thinking_ratio=args.thinking_ratio,
        system_prompt_ratio=args.system_prompt_ratio,
        seed=args.seed,
        chat_template_kwargs=args.chat_template_kwargs,
        **with_tools,
    )
    if agent is not None and not prompts.conversational:
        raise AgentError(
            "The prompts are strings, but tools and environments answer in messages of a chat template. Give "
            'messages: [{"role": "user", "content": ...}].'
        )
    if args.process_index == 0:
        say_how_many_think(prompts, args.thinking_ratio)
        say_plain_prompts(tokenizer, prompts.conversational)
    return prompts


def make_eval_prompts(
    dataset: Any, tokenizer: PreTrainedTokenizerBase, args: RLConfig, agent: Agent | None = None
) -> PromptDataset | dict[str, PromptDataset] | None:
    """The same for a data set or a dictionary of them."""
    if isinstance(dataset, dict):
        return {name: make_prompts(part, tokenizer, args, agent) for name, part in dataset.items()}
    return make_prompts(dataset, tokenizer, args, agent)


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


def make_sampler(prompts: PromptDataset | None, args: RLConfig) -> RolloutSampler | None:
    """Returns the sampler that sets the order of the prompts.

    Raises:
        ValueError: If the prompts do not fill one rollout.
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
            "The model was created in memory, so there is no folder to load a tokenizer from. Pass processing_class."
        )
    check_loadable(name)
    check_tokenizer_files(name)
    revision = (args.model_init_kwargs or {}).get("revision")
    tokenizer = AutoTokenizer.from_pretrained(name, revision=revision, trust_remote_code=args.trust_remote_code)
    if tokenizer.pad_token is None and tokenizer.eos_token is not None:
        tokenizer.pad_token = tokenizer.eos_token  # harmless: padding never decides where a completion ends
    return tokenizer


def make_engine(args: RLConfig, own: RolloutEngine | None = None) -> RolloutEngine:
    """Returns the engine that was passed, or the one named in `args`.

    Raises:
        ValueError: If the engine would ignore settings.
    """
    if own is not None:
        check_own_engine(args, own)
        return own
    if args.rollout_engine == "sglang":
        return SGLangEngine(
            args.sglang_base_url,
            weight_sync=args.rollout_weight_sync,
            sync_folder=args.rollout_sync_dir or Path(args.output_dir) / "_rollout_weights",
            server_timeout=args.server_timeout,
            keeps_sent=args.sync_every > 1,
        )
    dtype = args.rollout_dtype or ("bfloat16" if args.bf16 else None)
    return TorchEngine(args.max_batch_rows, dtype=dtype, path=args.torch_engine_path)
