# SPDX-License-Identifier: Apache-2.0
"""`minimind-hf estimate`: estimates the memory of each process of a run, and which devices it fits."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from .. import default_sizes
from ..bounds import Count, check_settings
from ..estimate import (
    ALGORITHMS,
    DEVICES,
    DTYPES,
    MODES,
    Setting,
    adapter_parameters,
    estimate,
    fitting_devices,
    fitting_table,
    shape_of,
)
from ..flags import flag, make_parser, switch, taken
from .recipe import recipe_module

_SIZES = {"grpo": default_sizes.GRPO, "ppo": default_sizes.PPO}
PLACES = ("cpu", "cuda")
_number = partial(flag, metavar="N")


@dataclass
class EstimateFlags:
    """Flags of the command; sizes have the same names as in the configs."""

    config: str | None = flag(
        None, "settings of a run, as the recipes take them; flags win over them", metavar="FILE.yaml"
    )
    algorithm: str | None = flag(
        None,
        f"ppo has a critic (default: {Setting.algorithm}, or what the settings of --config are of)",
        choices=ALGORITHMS,
    )
    mode: str = flag(Setting.mode, "what is sharded (default %(default)s: nothing)", choices=MODES)
    processes: Count = _number(Setting.processes, "number of processes (default %(default)s)")
    dtype: str = flag(Setting.dtype, "dtype of weights (default %(default)s)", choices=tuple(DTYPES))
    lora_r: Count | None = _number(
        None, "train adapters of this rank on all linear layers (default: no adapters)", metavar="R"
    )
    no_reference: bool = switch("no KL penalty, so no reference model")
    per_device_train_batch_size: Count | None = _number(
        None,
        f"as in the config (default: {default_sizes.GRPO['per_device_train_batch_size']}; "
        f"ppo: {default_sizes.PPO['per_device_train_batch_size']})",
    )
    steps_per_generation: Count = _number(1, "as in the config (default %(default)s)")
    mini_batch_size: Count | None = _number(
        None, f"for ppo, as in the config (default: {default_sizes.PPO['mini_batch_size']})"
    )
    max_batch_rows: Count = _number(
        default_sizes.MAX_BATCH_ROWS, "completions decoded at a time (default %(default)s)"
    )
    num_generations: Count | None = _number(
        None,
        f"completions per prompt (default: {default_sizes.GRPO['num_generations']}; "
        f"ppo: {default_sizes.PPO['num_generations']})",
    )
    max_prompt_length: Count = _number(Setting.prompt, "tokens per prompt (default %(default)s)")
    max_completion_length: Count = _number(
        default_sizes.MAX_COMPLETION_LENGTH, "tokens per completion (default %(default)s)"
    )
    max_tokens_per_microbatch: Count | None = _number(None, "tokens computed at a time (default: as in training)")
    use_cpu: bool = switch("estimate a run on a CPU, which computes fewer tokens at a time")
    device: str | None = flag(
        None,
        "'cpu' is --use_cpu; 'cuda' adds what a CUDA device takes, and says which devices have room (without a model: "
        "a table of known ones)",
        choices=PLACES,
    )
    bf16: bool = switch("compute in bfloat16 with weights of --dtype, as in the config")
    trust_remote_code: bool = switch("run code that comes with the model")

    def __post_init__(self):
        self.algorithm = self.algorithm or Setting.algorithm
        check_settings(self)
        if self.mini_batch_size is not None and self.algorithm != "ppo":
            raise ValueError(
                f"--mini_batch_size {self.mini_batch_size} is a setting of PPO; GRPO updates on "
                "--per_device_train_batch_size completions at a time. Leave it out, or set --algorithm ppo."
            )

        if self.use_cpu and self.device == "cuda":
            raise ValueError("--use_cpu and --device cuda contradict each other. Leave one out.")

    def sizes(self) -> dict[str, int]:
        """Batch sizes of the algorithm, from the flags or else the defaults of its config."""
        defaults = _SIZES[self.algorithm]
        given = {name: getattr(self, name) for name in defaults}
        return {name: defaults[name] if value is None else value for name, value in given.items()}

    def setting(self, trained: int | None) -> Setting:
        """Returns the settings of the run; `trained` is the number of adapter parameters."""
        sizes = self.sizes()
        batch = sizes["per_device_train_batch_size"]
        return Setting(
            algorithm=self.algorithm,
            mode=self.mode,
            processes=self.processes,
            dtype=self.dtype,
            trained=trained,
            reference=not self.no_reference,
            rows=sizes.get("mini_batch_size", batch),
            rollout_rows=min(self.max_batch_rows, batch * self.steps_per_generation),
            group=sizes["num_generations"],
            prompt=self.max_prompt_length,
            completion=self.max_completion_length,
            max_tokens=self.max_tokens_per_microbatch,
            on_cpu=self.use_cpu or self.device == "cpu",
            on_cuda=self.device == "cuda",
            bf16=self.bf16,
        )


def main(arguments: Sequence[str]) -> int:
    parser = make_parser(
        "estimate",
        "Estimates the memory per process from a model's config, without loading it, and from settings given as flags "
        "or in a yaml file. See docs/scaling.md.",
        EstimateFlags,
    )
    parser.add_argument("model", nargs="?", help="folder or Hub name of the model")
    options = parser.parse_args(arguments)
    if options.config is not None:
        parser.set_defaults(**recipe_module("estimated").estimated_settings(options.config, options.algorithm))
        options = parser.parse_args(arguments)
    flags = taken(EstimateFlags, options)
    if options.model is None and flags.device != "cuda":
        parser.error("name a model, or ask what fits where: minimind-hf estimate --device cuda")
    if options.model is None:
        return _print_table(flags)

    from transformers import AutoConfig  # imported here to keep --help fast

    from ..paths import check_loadable

    check_loadable(options.model, needs_weights=False)
    model, lora_r = _base_and_rank(options.model, flags.lora_r)
    shape = shape_of(AutoConfig.from_pretrained(model, trust_remote_code=flags.trust_remote_code))
    setting = flags.setting(None if lora_r is None else adapter_parameters(shape, lora_r))
    processes = "1 process" if flags.processes == 1 else f"{flags.processes} processes"
    assumed = [f"{flags.algorithm}, {flags.mode}, {processes}, {flags.dtype}"]
    assumed += [f"{name} {value}" for name, value in flags.sizes().items()]
    assumed += [f"prompts of {setting.prompt} and completions of {setting.completion} tokens"]
    print(f"{shape.parameters / 1e6:.1f} million parameters; assumed: {', '.join(assumed)}; MiB per process:")
    found = estimate(shape, setting)
    for name, value in found.rows():
        print(f"  {name:<10}{value / 2**20:>10.0f}")
    if setting.on_cuda:
        fitting = fitting_devices(found.total)
        print(
            f"It fits devices of {', '.join(map(str, fitting))} GB." if fitting else f"It fits none of {DEVICES} GB."
        )
    return 0


def _print_table(flags: EstimateFlags) -> int:
    """What fits where, for known models."""
    setting = flags.setting(None)
    print(
        f"Completions in one pass of the update, for prompts of {setting.prompt} and completions of "
        f"{setting.completion} tokens, in {'bfloat16' if flags.bf16 else flags.dtype}, on devices of so many GB:"
    )
    table = [("model", "course", *map(str, DEVICES)), *fitting_table(setting)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0


def _base_and_rank(model: str, lora_r: int | None) -> tuple[str, int | None]:
    """Returns the model and the rank of its adapters; a folder of adapters stands for its base with adapters."""
    from ..paths import adapter_settings, holds_adapters

    if not holds_adapters(model):
        return model, lora_r
    adapters = adapter_settings(model)
    base, rank = adapters["base_model_name_or_path"], lora_r or adapters.get("r")
    if rank is None:
        raise ValueError(
            f"{model} holds adapters of type {adapters.get('peft_type')}, which have no rank. Set --lora_r to the "
            "rank of LoRA adapters of about the same size."
        )
    print(f"{model} holds adapters of {base}: estimated as LoRA of rank {rank} on all linear layers.")
    return base, rank
