# SPDX-License-Identifier: Apache-2.0
"""What `gpu.py` measures: tokens per second of rollouts, and seconds of whole steps, of each contestant."""

import importlib.util
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import trl
from gpu_proofs import now
from gpu_shapes import Shape, make_tokenizer
from step_time import LOSS, make_dataset, variety
from transformers import ContinuousBatchingConfig, GenerationConfig, TrainerCallback
from workloads import median

from minimind_hf import GRPOConfig, GRPOTrainer, MiniMindForCausalLM
from minimind_hf.models.convert import convert
from minimind_hf.rollout import SamplingParams, TorchEngine

TEMPERATURE = 0.8
_NO_EOS = (-1,)
_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


# Rollouts: each draws `rows` completions of full length


def ours(device: torch.device, shape: Shape) -> dict[str, Any]:
    model = shape.model().to(device)
    engine = TorchEngine(dtype=_DTYPES[shape.dtype])
    engine.sync_weights(model, 0)
    prompts, sampling = shape.prompt_ids(_vocab(model)), SamplingParams(shape.completion, TEMPERATURE, _NO_EOS)
    return _tokens_per_second(device, shape, lambda: _count(engine.generate(prompts, shape.group, sampling)))


def generate(device: torch.device, shape: Shape) -> dict[str, Any]:
    """transformers' `generate` with its default cache."""
    model = shape.model().to(device, shape.dtype)
    ids = torch.tensor([ids for ids in shape.prompt_ids(_vocab(model)) for _ in range(shape.group)], device=device)
    options = {"do_sample": True, "temperature": TEMPERATURE, "top_k": 0, "max_new_tokens": shape.completion}

    def draw() -> int:
        drawn = model.generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=0, **options)
        return (drawn.shape[1] - ids.shape[1]) * len(ids)

    return _tokens_per_second(device, shape, draw)


def continuous_batching(device: torch.device, shape: Shape) -> dict[str, Any]:
    """transformers' `generate_batch`."""
    model = shape.model().to(device, shape.dtype)
    prompts = [ids for ids in shape.prompt_ids(_vocab(model)) for _ in range(shape.group)]
    options = {"do_sample": True, "temperature": TEMPERATURE, "top_k": 0, "max_new_tokens": shape.completion}
    config = GenerationConfig(**options, eos_token_id=-1, pad_token_id=0)
    # It takes most of the memory that is free; on a CPU others need theirs.
    memory = ContinuousBatchingConfig(max_memory_percent=None if device.type == "cuda" else 0.05)

    def draw() -> int:
        results = model.generate_batch(prompts, generation_config=config, continuous_batching_config=memory)
        return sum(len(each.generated_tokens) for each in results.values())

    return _tokens_per_second(device, shape, draw)


def vllm(device: torch.device, shape: Shape) -> dict[str, Any]:
    """vLLM on the same weights, in the layout that it knows."""
    if importlib.util.find_spec("vllm") is None:
        return {"skipped": "vLLM is not installed"}
    from vllm import LLM
    from vllm import SamplingParams as Sampling

    with tempfile.TemporaryDirectory() as root:
        model = shape.model()
        prompts, folder = shape.prompt_ids(_vocab(model)), Path(root) / "model"
        model.to(shape.dtype).save_pretrained(folder)
        make_tokenizer().save_pretrained(folder)
        if isinstance(model, MiniMindForCausalLM):
            folder = convert(folder, Path(root) / "qwen3", to="qwen3")
        engine = LLM(str(folder), dtype=_DTYPES[shape.dtype], skip_tokenizer_init=True, gpu_memory_utilization=0.5)
        sampling = Sampling(
            n=shape.group, temperature=TEMPERATURE, max_tokens=shape.completion, ignore_eos=True, logprobs=0
        )

        def draw() -> int:
            answers = engine.generate([{"prompt_token_ids": ids} for ids in prompts], sampling, use_tqdm=False)
            return sum(len(each.token_ids) for answer in answers for each in answer.outputs)

        return _tokens_per_second(device, shape, draw)


def _tokens_per_second(device: torch.device, shape: Shape, draw: Callable[[], int]) -> dict[str, Any]:
    """Draws once to warm up, which compiles and captures, then `steps` times."""
    first = now(device)
    draw()
    times, counts = [], []
    warm_up = now(device) - first
    for _ in range(shape.steps):
        start = now(device)
        counts.append(draw())
        times.append(now(device) - start)
    seconds = median(times)
    found = {"tokens_per_s": round(counts[-1] / seconds, 1), "tokens": counts[-1], "seconds": round(seconds, 4)}
    return found | {"warm_up_s": round(warm_up, 2), **_peak(device)}


def _count(rollouts: list) -> int:
    return sum(len(rollout.completion_ids) for rollout in rollouts)


def _vocab(model: torch.nn.Module) -> int:
    return model.config.vocab_size


# Steps: rollout, scoring, reference and update


class StepTimes(TrainerCallback):
    """The time when each step was done, and when the first began."""

    def __init__(self, device: torch.device):
        self.device, self.times = device, []

    def on_train_begin(self, args, state, control, **kwargs):
        self.times.append(now(self.device))

    def on_step_end(self, args, state, control, **kwargs):
        self.times.append(now(self.device))


def our_step(device: torch.device, shape: Shape) -> dict[str, Any]:
    settings = {"loss_aggregation": "token", **LOSS, **_settings(device, shape)}
    return _step(device, shape, GRPOTrainer, lambda folder: GRPOConfig(output_dir=folder, **settings))


def trl_step(device: torch.device, shape: Shape) -> dict[str, Any]:
    """trl's GRPOTrainer with its rollouts by `generate`, on the same loss."""
    settings = {"gradient_checkpointing": False, "use_bias_correction_kl": False, **LOSS, **_settings(device, shape)}
    return _step(device, shape, trl.GRPOTrainer, lambda folder: trl.GRPOConfig(output_dir=folder, **settings))


def _settings(device: torch.device, shape: Shape) -> dict[str, Any]:
    return {
        "use_cpu": device.type == "cpu",
        "bf16": shape.dtype == torch.bfloat16,
        "max_steps": shape.steps + 1,
        "per_device_train_batch_size": shape.rows,
        "num_generations": shape.group,
        "max_completion_length": shape.completion,
        "temperature": TEMPERATURE,
        "learning_rate": 0.0,
        "report_to": "none",
        "save_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": True,
    }


def _step(
    device: torch.device, shape: Shape, trainer_class: type, make_config: Callable[[str], Any]
) -> dict[str, Any]:
    lengths: list[int] = []

    def reward(completion_ids, **kwargs) -> list[float]:
        lengths.extend(map(len, completion_ids))
        return variety(completion_ids)

    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "model"
        shape.model().save_pretrained(folder)
        config = make_config(str(Path(root) / "run"))
        data = make_dataset(shape.prompt, shape.prompts * (shape.steps + 2))
        clock = StepTimes(device)
        trainer = trainer_class(
            str(folder), reward, config, train_dataset=data, processing_class=make_tokenizer(), callbacks=[clock]
        )
        trainer.train()
    warm_up, *times = [end - start for start, end in zip(clock.times, clock.times[1:], strict=False)]
    found = {"step_s": round(median(times), 4), "warm_up_s": round(warm_up, 2), **_peak(device)}
    return found | {"mean_completion": round(sum(lengths) / len(lengths), 1)}


def _peak(device: torch.device) -> dict[str, float]:
    return {"peak_gib": round(torch.cuda.max_memory_allocated(device) / 2**30, 2)} if device.type == "cuda" else {}


ROLLOUTS = {"ours": ours, "generate": generate, "continuous_batching": continuous_batching, "vllm": vllm}
STEPS = {"ours": our_step, "trl": trl_step}
