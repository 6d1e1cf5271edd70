# SPDX-License-Identifier: Apache-2.0
"""Settings of the trainers, on top of transformers' TrainingArguments.

trl's names wherever trl has one. Everything that can be refused without a model or data is refused here, at
construction, with cause, values and remedy.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from transformers import TrainingArguments

from ...algorithms import ROLLOUT_CORRECTIONS
from ...environment import only_cpu
from ...forward.layouts import LAYOUTS
from ...rollout import WEIGHT_SYNCS
from ...rollout.torch.engine import DTYPES as ROLLOUT_DTYPES
from ...rollout.torch.engine import PATHS as TORCH_ENGINE_PATHS
from .bounds import check_numbers, check_switches
from .engines import ReplaceDefault, check_engine_settings

ROLLOUT_ENGINES = ("torch", "sglang")
OVERLONG_PROMPTS = ("truncate", "drop")


def _field(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


def _choice(name: str, value: Any, choices: tuple) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}.")


def _at_least(name: str, value: float, bound: float) -> None:
    if not value >= bound:
        raise ValueError(f"{name} must be at least {bound}, got {value}.")


def _share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{name} is a probability and must lie in [0, 1], got {value}.")


@dataclass(frozen=True)
class Algorithm:
    """How an algorithm is presented.

    Args:
        label (`str`): Its name.
        paper (`str`, *optional*), arxiv (`str`, *optional*): Title and arXiv number of its source.
    """

    label: str
    paper: str | None = None
    arxiv: str | None = None


@dataclass
class RLConfig(TrainingArguments):
    """What GRPO and PPO have in common: model, prompts, rollouts, rewards, logs. See each field's help."""

    # Dictionaries that may come from a command line as JSON text
    _VALID_DICT_FIELDS = TrainingArguments._VALID_DICT_FIELDS + ["model_init_kwargs", "chat_template_kwargs"]

    # Defaults of TrainingArguments that differ here
    learning_rate: float = _field(3e-7, "Peak learning rate. RL takes 10 to 1000 times less than supervised training.")
    lr_scheduler_type: str = _field("cosine_with_min_lr", "Schedule; the default falls as a cosine to a tenth.")
    lr_scheduler_kwargs: dict | str | None = _field(
        None, "Arguments of the schedule; unset, cosine_with_min_lr gets min_lr_rate 0.1."
    )
    logging_steps: float = _field(1, "Steps between two logs.")
    remove_unused_columns: bool = _field(
        False, "Leave off: every column of the dataset travels to the reward functions."
    )

    # Model
    model_init_kwargs: dict | str | None = _field(
        None, "Arguments of AutoModelForCausalLM.from_pretrained when the model is given by its name."
    )
    trust_remote_code: bool = _field(False, "Run code that a model or tokenizer folder brings along.")
    merge_adapters: bool = _field(
        False, "Where adapters are trained, also save the model with them merged, into the folder's `merged`."
    )
    disable_dropout: bool = _field(False, "Set every dropout of policy and reference to 0.")
    router_aux_loss_coef: float | None = _field(
        None, "Weight of a mixture-of-experts router's balancing loss. Unset: the model's own; 0: off."
    )

    # Prompts
    max_prompt_length: int | None = _field(None, "Prompts longer than this many tokens are overlong. Unset: no limit.")
    overlong_prompts: str = _field("truncate", "'truncate' keeps an overlong prompt's last tokens, 'drop' skips it.")
    thinking_ratio: float = _field(0.9, "Probability that a prompt's chat template opens a thinking block.")
    system_prompt_ratio: float = _field(
        0.0, "Probability that a conversation without a system prompt gets one at random."
    )
    chat_template_kwargs: dict | str | None = _field(None, "Further arguments of the tokenizer's chat template.")
    shuffle_dataset: bool = _field(True, "Draw the prompts in a new random order each epoch.")

    # Rollouts
    num_generations: int = _field(6, "Completions per prompt (G).")
    num_generations_eval: int | None = _field(None, "Completions per prompt in evaluation. Unset: num_generations.")
    max_completion_length: int = _field(256, "Tokens after which a completion is cut.")
    temperature: float = _field(0.8, "Sampling temperature; log-probabilities are scored at it too.")
    top_p: float = _field(1.0, "Only 1.0: see the error for why.")
    top_k: int | None = _field(0, "Only 0: see the error for why.")
    min_p: float | None = _field(None, "Only unset or 0: see the error for why.")
    repetition_penalty: float = _field(1.0, "Only 1.0: see the error for why.")
    generation_batch_size: int | None = _field(
        None, "Completions per rollout over all processes; an alternative to steps_per_generation."
    )
    steps_per_generation: int | None = _field(
        None, "Micro-batches that one rollout fills. Unset: gradient_accumulation_steps."
    )
    rollout_engine: str = _field(
        "torch", "Who draws the completions: 'torch' decodes in this process, 'sglang' asks servers that you run."
    )
    max_batch_rows: int = _field(256, "Completions that the torch engine decodes at a time.")
    rollout_dtype: str | None = _field(
        None,
        "'float32' or 'bfloat16' for the torch engine to decode in; the ratio absorbs the difference. Unset: bfloat16 "
        "with bf16=True, otherwise the model's own.",
    )
    torch_engine_path: str = _field(
        "auto",
        "'auto' decodes MiniMind-, Qwen- and Llama-shaped models on packed weights, others by their own forward; "
        "'general' always the latter, 'fast' always the former (an error where it does not fit). 'graph' replays "
        "the model's own forward as CUDA graphs; it was never run on a GPU.",
    )

    # Rollout servers
    sglang_base_url: list[str] | None = field(
        default=None,
        metadata={
            "help": "The SGLang servers, such as http://localhost:30000; each gets a share of the prompts. Keys come "
            "from the environment: SGLANG_API_KEY, SGLANG_ADMIN_API_KEY.",
            "action": ReplaceDefault,  # the flag may be repeated
        },
    )
    server_timeout: float = _field(
        300.0, "Seconds that a server may fail or take for an answer; then a checkpoint is saved and the run ends."
    )
    rollout_weight_sync: str = _field(
        "disk", "How servers get weights: by a folder they can see ('disk'), or broadcast to them ('distributed')."
    )
    rollout_sync_dir: str | None = _field(
        None,
        "Folder of 'disk', for this run alone, which servers see under the same path; /dev/shm/NAME spares the disk. "
        "Unset: OUTPUT_DIR/_rollout_weights.",
    )
    sync_every: int = _field(
        1, "Rollouts from one set of weights. Above 1, servers are sent weights less often and sample from older ones."
    )
    rollout_correction: str = _field(
        "none",
        "For engines that sample from another distribution: 'truncate' weighs each token by trainer / engine, at most "
        "rollout_correction_cap; 'mask' leaves tokens above it out; both take the ratio against the trainer.",
    )
    rollout_correction_cap: float = _field(2.0, "Largest weight of rollout_correction.")

    # Training forward
    forward_layout: str = _field(
        "shared_prompt",
        "'shared_prompt' computes each prompt once for its completions; 'padded' is the plain layout, for models that "
        "cannot and for comparison. Both give the same numbers.",
    )
    max_tokens_per_microbatch: int | None = _field(
        None,
        "Compute at most this many tokens at a time (a prompt counted once), in the update and wherever completions "
        "are scored: micro-batches are split into parts, balanced by length. "
        "The mathematics stay the same; give it a large per_device_train_batch_size. Unset: no split; but GRPO on one "
        "CPU process computes a group at a time where several exceed 1024 tokens, which costs no time there.",
    )

    loss_aggregation: str = _field(
        "sequence", "'sequence': mean over tokens, then sequences; 'token': over all tokens; 'constant': fixed length."
    )
    mask_truncated_completions: bool = _field(False, "Leave completions that were cut out of the loss.")

    # Rewards
    reward_weights: list[float] | None = _field(None, "One weight per reward function. Unset: all 1.")

    # Logs
    health: bool = _field(
        True, "Say in one line what seems to go wrong and what to try; stop before an update that is not finite."
    )
    log_completions: bool = _field(
        False,
        "At each log, print completions as a table, write them to OUTPUT_DIR/completions as jsonl, and send them to "
        "those trackers of report_to that have tables (wandb, trackio, swanlab).",
    )
    num_completions_to_print: int | None = _field(None, "Rows of that table. Unset: all.")
    log_unique_prompts: bool = _field(False, "One row per prompt in that table.")
    debug_mode: bool = _field(
        False, "Print prompts with all their completions and rewards every debug_interval steps, at the next rollout."
    )
    debug_interval: int = _field(20, "Steps between two debug prints.")

    def __post_init__(self):
        # Unless told, transformers looks for GPUs: several processes then miss each other, and bf16 is refused.
        self.use_cpu = self.use_cpu or only_cpu()
        self._require_a_bound()
        self._check_json()
        check_numbers(self)
        check_switches(self)
        self._check_run()
        if self.lr_scheduler_type == "cosine_with_min_lr" and not self.lr_scheduler_kwargs:
            self.lr_scheduler_kwargs = {"min_lr_rate": 0.1}
        super().__post_init__()
        for name in ("model_init_kwargs", "chat_template_kwargs"):
            if not isinstance(getattr(self, name), dict | None):
                raise ValueError(f"{name} must be a dictionary or a JSON object, got {getattr(self, name)!r}.")
        self._check_bounds()
        self._check_rollouts()
        self._check_sampling_distribution()
        self._resolve_batch()

    def __getstate__(self) -> dict[str, Any]:
        """What a checkpoint keeps of the settings: never a token of the Hub."""
        return without_secrets(self.__dict__)

    def to_dict(self) -> dict[str, Any]:
        """What trackers are told of the settings: no token either, not in `model_init_kwargs`."""
        return without_secrets(super().to_dict())

    def _require_a_bound(self) -> None:
        if self.max_completion_length is None:
            raise ValueError(
                "max_completion_length is None, but a rollout needs a bound. Give a number of tokens; with the "
                "prompts it must fit into the model's context."
            )

    def _check_json(self) -> None:
        for name in self._VALID_DICT_FIELDS:
            text = getattr(self, name)
            if isinstance(text, str) and text.startswith("{"):
                try:
                    json.loads(text)
                except json.JSONDecodeError as error:
                    raise ValueError(f"{name} is no JSON object ({error}): {text!r}.") from error

    def _check_run(self) -> None:
        """Of transformers' settings those that it would follow into a run that learns nothing, or fail on late."""
        if self.output_dir == "":
            raise ValueError("output_dir is empty. Name the folder that the run is to write to.")
        for name in ("learning_rate", "max_grad_norm", "weight_decay", "num_train_epochs"):
            if getattr(self, name) is None:
                raise ValueError(f"{name} must be a number, got None; 0 switches it off.")
            _at_least(name, getattr(self, name), 0)
        if self.logging_steps < 0:
            raise ValueError(
                f"logging_steps must be above 0, got {self.logging_steps}. Below 1 it is a share of all steps; for no "
                "logs set logging_strategy='no'."
            )

    def _check_bounds(self) -> None:
        _choice("overlong_prompts", self.overlong_prompts, OVERLONG_PROMPTS)
        _choice("rollout_dtype", self.rollout_dtype, (None, *ROLLOUT_DTYPES))
        _choice("torch_engine_path", self.torch_engine_path, TORCH_ENGINE_PATHS)
        _choice("forward_layout", self.forward_layout, LAYOUTS)
        _share("thinking_ratio", self.thinking_ratio)
        _share("system_prompt_ratio", self.system_prompt_ratio)
        counts = ("max_completion_length", "num_generations", "max_batch_rows", "debug_interval")
        for name in (*counts, "per_device_train_batch_size", "gradient_accumulation_steps"):
            _at_least(name, getattr(self, name), 1)
        optional = (
            "max_prompt_length",
            "num_generations_eval",
            "num_completions_to_print",
            "max_tokens_per_microbatch",
        )
        for name in optional:
            if getattr(self, name) is not None:
                _at_least(name, getattr(self, name), 1)
        if not 0 < self.temperature < float("inf"):
            raise ValueError(
                f"temperature must be a finite number above 0, got {self.temperature}. Logits are divided by it "
                "when completions are drawn and when they are scored; for nearly greedy rollouts use e.g. 0.1."
            )
        if self.router_aux_loss_coef is not None:
            _at_least("router_aux_loss_coef", self.router_aux_loss_coef, 0)
        if self.remove_unused_columns:
            raise ValueError(
                "remove_unused_columns=True would take the dataset's columns from the reward functions. Leave it off."
            )
        if self.auto_find_batch_size:
            raise ValueError(
                "auto_find_batch_size is not supported: a smaller batch would no longer hold whole groups of "
                "num_generations completions. Set it to False and lower per_device_train_batch_size instead."
            )
        if self.label_smoothing_factor:
            raise ValueError(
                f"label_smoothing_factor={self.label_smoothing_factor} smooths the labels of supervised training; "
                "completions that the policy drew have none. Set it to 0."
            )
        if self.neftune_noise_alpha is not None:
            raise ValueError(
                f"neftune_noise_alpha={self.neftune_noise_alpha} adds noise to the embeddings of the update alone, so "
                "completions would not be scored under the policy that drew them. Leave it unset."
            )
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

    def _check_rollouts(self) -> None:
        if self.rollout_engine not in ROLLOUT_ENGINES:
            raise ValueError(
                f"rollout_engine must be one of {', '.join(map(repr, ROLLOUT_ENGINES))}, got "
                f"{self.rollout_engine!r}. An engine of your own goes to the trainer as an object: "
                "rollout_engine=MyEngine()."
            )
        _choice("rollout_weight_sync", self.rollout_weight_sync, WEIGHT_SYNCS)
        _choice("rollout_correction", self.rollout_correction, ROLLOUT_CORRECTIONS)
        _at_least("rollout_correction_cap", self.rollout_correction_cap, 1)
        _at_least("sync_every", self.sync_every, 1)
        if not self.server_timeout > 0:
            raise ValueError(f"server_timeout must be above 0 seconds, got {self.server_timeout}.")
        if isinstance(self.sglang_base_url, str):
            self.sglang_base_url = [self.sglang_base_url]
        check_engine_settings(self)
        is_server = self.rollout_engine == "sglang"
        if is_server and self.world_size > 1 and self.server_timeout >= self.ddp_timeout:
            raise ValueError(
                f"server_timeout ({self.server_timeout:g}) must be below ddp_timeout ({self.ddp_timeout}): processes "
                "that wait for each other would give up before the server is given up. Raise ddp_timeout."
            )

    def _check_sampling_distribution(self) -> None:
        changed = {
            "top_p": self.top_p != 1.0,
            "top_k": self.top_k not in (0, None),
            "min_p": self.min_p not in (0, None),
            "repetition_penalty": self.repetition_penalty != 1.0,
        }
        for name, is_changed in changed.items():
            if is_changed:
                neutral = {"top_p": 1.0, "top_k": 0, "min_p": None, "repetition_penalty": 1.0}[name]
                raise ValueError(
                    f"{name}={getattr(self, name)} draws completions from another distribution than the one they are "
                    "scored under, so ratio and KL would be wrong from the first step. "
                    f"Leave {name} at {neutral} and sharpen the distribution with temperature ({self.temperature})."
                )

    def _resolve_batch(self) -> None:
        """Settles how many completions make a rollout, and refuses rollouts that split a group."""
        per_step = self.per_device_train_batch_size * self.world_size
        if self.generation_batch_size is not None:
            _at_least("generation_batch_size", self.generation_batch_size, 1)
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
        _at_least("steps_per_generation", self.steps_per_generation, 1)
        self.generation_batch_size = per_step * self.steps_per_generation
        per_process = self.per_device_train_batch_size * self.steps_per_generation
        if per_process % self.num_generations:
            raise ValueError(
                f"per_device_train_batch_size ({self.per_device_train_batch_size}, counted in completions) x "
                f"steps_per_generation ({self.steps_per_generation}) = {per_process} completions per process and "
                f"rollout, which is not divisible by num_generations ({self.num_generations}): a group would be "
                f"split. Set per_device_train_batch_size to a multiple of {self.num_generations}, or raise "
                "gradient_accumulation_steps or steps_per_generation so that the product is one."
            )

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


SECRET = "token"


def without_secrets(settings: dict[str, Any]) -> dict[str, Any]:
    """Returns settings without the values of tokens, also those among the arguments of a model."""
    cleaned = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            value = without_secrets(value)
        is_secret = isinstance(name, str) and (name == SECRET or name.endswith(f"_{SECRET}"))
        cleaned[name] = None if is_secret and isinstance(value, str) and not _is_token_name(name) else value
    return cleaned


def _is_token_name(name: str) -> bool:
    """Tokens of a vocabulary (`eos_token`, ...) are no secrets."""
    return name in {"bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token"}
