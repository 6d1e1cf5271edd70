# SPDX-License-Identifier: Apache-2.0
"""Settings of the trainers, on top of transformers' TrainingArguments.

trl's names wherever trl has one. Everything that can be refused without a model or data is refused here, at
construction, with cause, values and remedy: types and bounds where a setting is declared, what relates two settings in
a method.
"""

import copy
from dataclasses import dataclass, field
from typing import Annotated, Any

from transformers import TrainingArguments

from ...algorithms import LOSS_AGGREGATIONS, ROLLOUT_CORRECTIONS
from ...bounds import Bounds, Count, NotNegative, Share
from ...default_sizes import GRPO, MAX_COMPLETION_LENGTH
from ...environment import only_cpu
from ...forward.layouts import LAYOUTS
from .agents import AgentSettings
from .algorithm import Algorithm
from .checks import check_intervals, check_json, check_output_dir, check_values
from .engines import EngineSettings, check_engine_settings
from .given import noting_given, noting_passed
from .logs import LogSettings
from .probes import ProbeSettings
from .secrets import without_secrets

OVERLONG_PROMPTS = ("truncate", "drop")


def _field(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


_Temperature = Annotated[
    float, Bounds(above=0, remedy="Logits are divided by it; for nearly greedy rollouts use 0.1.")
]
_TopP = Annotated[float, Bounds(above=0, at_most=1, remedy="1.0 draws from all tokens.")]
_TopK = Annotated[int | None, Bounds(at_least=0, remedy="0 draws from all tokens.")]


@dataclass
@noting_passed
class RLConfig(AgentSettings, EngineSettings, LogSettings, ProbeSettings, TrainingArguments):
    """What GRPO and PPO have in common: model, prompts, rollouts, rewards, logs. See each field's help."""

    # Settings whose value may follow from others
    _SETTLED = ("generation_batch_size", "steps_per_generation", "loss_aggregation", "scale_rewards")
    # Dictionaries that may come from a command line as JSON text
    _VALID_DICT_FIELDS = TrainingArguments._VALID_DICT_FIELDS + ["model_init_kwargs", "chat_template_kwargs"]

    # Defaults of TrainingArguments that differ here
    learning_rate: float = _field(3e-7, "Peak learning rate. RL takes 10 to 1000 times less than supervised training.")
    lr_scheduler_type: str = _field("cosine_with_min_lr", "Schedule; the default falls as a cosine to a tenth.")
    lr_scheduler_kwargs: dict | str | None = _field(
        None, "Arguments of the schedule; unset, cosine_with_min_lr gets min_lr_rate 0.1."
    )
    logging_steps: float = _field(1, "Steps between two logs.")
    logging_nan_inf_filter: bool = _field(
        False, "Off: it waits for the device at every micro-batch, and a loss that is not finite ends the run."
    )
    remove_unused_columns: bool = _field(
        False, "Leave off: every column of the dataset travels to the reward functions."
    )

    # Model
    model_init_kwargs: dict | str | None = _field(
        None, "Arguments of AutoModelForCausalLM.from_pretrained when the model is given by its name."
    )
    trust_remote_code: bool = _field(False, "Run code that comes with a model or tokenizer.")
    merge_adapters: bool = _field(
        False, "Where adapters are trained, also save the model with them merged, into the folder's `merged`."
    )
    disable_dropout: bool = _field(False, "Set every dropout of policy and reference to 0.")
    router_aux_loss_coef: NotNegative | None = _field(
        None, "Weight of a mixture-of-experts router's balancing loss. Unset: the model's own; 0: off."
    )

    # Prompts
    max_prompt_length: Count | None = _field(
        None, "Prompts longer than this many tokens are overlong. Unset: no limit."
    )
    overlong_prompts: Annotated[str, Bounds(choices=OVERLONG_PROMPTS)] = _field(
        "truncate", "'truncate' keeps the last tokens of an overlong prompt, 'drop' skips the prompt."
    )
    thinking_ratio: Share = _field(0.9, "Probability that a prompt's chat template opens a thinking block.")
    system_prompt_ratio: Share = _field(
        0.0, "Probability that a conversation without a system prompt gets one at random."
    )
    chat_template_kwargs: dict | str | None = _field(None, "Further arguments of the tokenizer's chat template.")
    shuffle_dataset: bool = _field(True, "A new random order of prompts each epoch; of a stream, by 1,000 rows.")

    # Rollouts
    num_generations: Count = _field(GRPO["num_generations"], "Completions per prompt (G).")
    num_generations_eval: Count | None = _field(None, "Completions per prompt in evaluation. Unset: num_generations.")
    max_completion_length: Count = _field(
        MAX_COMPLETION_LENGTH,
        "Tokens after which a completion is cut; with the prompt they must fit into the model's context.",
    )
    temperature: _Temperature = _field(0.8, "Sampling temperature; log-probabilities are scored at it too.")
    top_k: _TopK = _field(0, "Draw from this many of the likeliest tokens, and score over them. 0: from all.")
    top_p: _TopP = _field(
        1.0, "Draw from the fewest of the likeliest tokens that have this probability together, and score over them."
    )
    min_p: Share | None = _field(
        None, "Draw from tokens with at least this share of the likeliest one's probability, and score over them."
    )
    repetition_penalty: float = _field(1.0, "Only 1.0: see the error for why.")
    generation_batch_size: Count | None = _field(
        None, "Completions per rollout over all processes; an alternative to steps_per_generation."
    )
    steps_per_generation: Count | None = _field(
        None, "Micro-batches that one rollout fills. Unset: gradient_accumulation_steps."
    )

    # Where the engine is not quite the trainer
    rollout_correction: Annotated[str, Bounds(choices=ROLLOUT_CORRECTIONS)] = _field(
        "none",
        "For engines that sample from another distribution: 'truncate' weighs each token by trainer / engine, at most "
        "rollout_correction_cap; 'mask' leaves tokens above it out; both take the ratio against the trainer.",
    )
    rollout_correction_cap: Annotated[float, Bounds(at_least=1)] = _field(2.0, "Largest weight of rollout_correction.")

    max_sampling_k3: Annotated[float | None, Bounds(above=0, remedy="Unset, it stops nothing.")] = _field(
        1.0,
        "Stop before an update on completions whose mean sampling/k3 is above this many nats per token: the engine "
        "draws from other weights. Unset: never.",
    )

    # Training forward
    forward_layout: Annotated[str, Bounds(choices=LAYOUTS)] = _field(
        "shared_prompt",
        "'shared_prompt' computes each prompt once for its completions; 'padded' is the plain layout, for models that "
        "cannot and for comparison. Both give the same numbers.",
    )
    max_tokens_per_microbatch: Count | None = _field(
        None,
        "Compute at most this many tokens at a time (a prompt counted once), in the update and wherever completions "
        "are scored: micro-batches are split into parts, balanced by length. "
        "The result is the same; give it a large per_device_train_batch_size. Unset: no split; but GRPO on one "
        "CPU process computes a group at a time where several exceed 1024 tokens, which costs no time there.",
    )

    loss_aggregation: Annotated[str, Bounds(choices=LOSS_AGGREGATIONS)] = _field(
        "sequence", "'sequence': mean over tokens, then sequences; 'token': over all tokens; 'constant': fixed length."
    )
    mask_truncated_completions: bool = _field(False, "Leave completions that were cut out of the loss.")

    # Rewards
    reward_weights: list[float] | None = _field(None, "One weight per reward function. Unset: all 1.")

    def __post_init__(self):
        if not hasattr(self, "_given"):
            self._given = {name: getattr(self, name) for name in self._SETTLED if hasattr(self, name)}
        # Unless told, transformers looks for GPUs: several processes then miss each other, and bf16 is refused.
        self.use_cpu = self.use_cpu or only_cpu()
        check_json(self)
        check_values(self)
        self.settle_turns()
        check_output_dir(self.output_dir)
        if self.lr_scheduler_type == "cosine_with_min_lr" and not self.lr_scheduler_kwargs:
            self.lr_scheduler_kwargs = {"min_lr_rate": 0.1}
        check_intervals(self)
        if not hasattr(self, "_settled"):  # transformers' part has effects, and is for the first time alone
            super().__post_init__()
        for name in ("model_init_kwargs", "chat_template_kwargs"):
            if not isinstance(getattr(self, name), dict | None):
                raise ValueError(f"{name} must be a dictionary or a JSON object, got {getattr(self, name)!r}.")
        self._check_processes()
        self._check_servers()
        self._resolve_batch()
        self.note_settled()

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        cls.__post_init__ = noting_given(cls.__post_init__)

    def check_again(self) -> None:
        """Checks settings that may have been changed since they were made, and settles what follows from them."""
        checked = copy.copy(self)
        for name, settled in self._settled.items():
            if getattr(checked, name) == settled:  # not changed since: it may follow from what was
                setattr(checked, name, self._given[name])
        checked.__post_init__()
        for name in self._given:
            setattr(self, name, getattr(checked, name))
        self.note_settled()

    def note_settled(self) -> None:
        """Remembers what was settled when the settings were made; see `check_again`."""
        self._settled = {name: getattr(self, name) for name in self._given}

    def __getstate__(self) -> dict[str, Any]:
        """What a checkpoint keeps of the settings: never a token of the Hub."""
        return without_secrets(self.__dict__)

    def to_dict(self) -> dict[str, Any]:
        """What trackers are told of the settings: no token either, not in `model_init_kwargs`."""
        return without_secrets(super().to_dict())

    def _check_processes(self) -> None:
        if self.parallelism_config is not None and (
            self.parallelism_config.cp_enabled or self.parallelism_config.sp_enabled
        ):
            raise ValueError(
                "parallelism_config splits sequences over processes (cp_size or sp_size above 1), which is not "
                "supported: micro-batches are made inside the trainer. Set both to 1."
            )
        if self.n_gpu > 1:
            raise ValueError(
                f"{self.n_gpu} GPUs are visible to a single process, which transformers would drive by "
                "nn.DataParallel. Start the script with `accelerate launch`, or show it one by CUDA_VISIBLE_DEVICES=0."
            )

    def _check_servers(self) -> None:
        if isinstance(self.sglang_base_url, str):
            self.sglang_base_url = [self.sglang_base_url]
        check_engine_settings(self)
        is_server = self.rollout_engine == "sglang"
        if is_server and self.world_size > 1 and self.server_timeout >= self.ddp_timeout:
            raise ValueError(
                f"server_timeout ({self.server_timeout:g}) must be below ddp_timeout ({self.ddp_timeout}): processes "
                "that wait for each other would give up before the server is given up. Raise ddp_timeout."
            )

    def _resolve_batch(self) -> None:
        """Settles how many completions make a rollout, and refuses rollouts that split a group."""
        per_step = self.per_device_train_batch_size * self.world_size
        if self.generation_batch_size is not None:
            if self.generation_batch_size % per_step:
                raise ValueError(
                    f"generation_batch_size ({self.generation_batch_size}) must be a multiple of "
                    f"per_device_train_batch_size x processes ({self.per_device_train_batch_size} x {self.world_size} "
                    f"= {per_step})."
                )
            steps = self.generation_batch_size // per_step
            if self.steps_per_generation not in (None, steps):
                raise ValueError(
                    f"generation_batch_size ({self.generation_batch_size}) and steps_per_generation "
                    f"({self.steps_per_generation}) say the same thing differently; set only one of them."
                )
            self.steps_per_generation = steps
        elif self.steps_per_generation is None:
            self.steps_per_generation = self.gradient_accumulation_steps
        self.generation_batch_size = per_step * self.steps_per_generation
        per_process = self.per_device_train_batch_size * self.steps_per_generation
        if per_process % self.num_generations:
            raise ValueError(
                f"per_device_train_batch_size ({self.per_device_train_batch_size}, counted in completions) x "
                f"steps_per_generation ({self.steps_per_generation}) = {per_process} completions per process and "
                f"rollout, which is not divisible by num_generations ({self.num_generations}): a group would be "
                f"split. Set per_device_train_batch_size to a multiple of {self.num_generations}, or raise "
                f"gradient_accumulation_steps or steps_per_generation so that the product is one.{self._of_trl()}"
            )

    def _of_trl(self) -> str:
        """For a script that was written for trl and leaves the number of completions to it."""
        default = type(self).__dataclass_fields__["num_generations"].default
        if self.num_generations != default or default == 1:
            return ""
        return f" {default} is the default here; trl's is 8, so a trl script needs num_generations=8."

    @property
    def algorithm(self) -> Algorithm:
        """What the model card and reports call the algorithm; by default the name of the class of settings."""
        return Algorithm(type(self).__name__.removesuffix("Config"))

    @property
    def completions_per_rollout(self) -> int:
        """Completions that one process draws at a time."""
        return self.per_device_train_batch_size * self.steps_per_generation

    @property
    def prompts_per_rollout(self) -> int:
        """Prompts that one process rolls out at a time."""
        return self.completions_per_rollout // self.num_generations

    @property
    def micro_batches_per_rollout(self) -> int:
        """Micro-batches that one process trains on between two rollouts, all passes together; by default one pass."""
        return self.steps_per_generation
