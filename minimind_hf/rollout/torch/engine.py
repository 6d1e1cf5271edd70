# SPDX-License-Identifier: Apache-2.0
"""The in-process engine: any causal LM of transformers, decoded with the trainer's own weights.

Known models (see `fast_support`) are decoded on packed copies of their weights with as few operations as possible, all
others with their own forward and cache. In both cases a prompt is computed once for its whole group, rows leave the
batch when they end, and log-probabilities are taken while sampling. Sampling has its own generator, so rollouts
neither depend on nor change the global random state.
"""

from collections.abc import Sequence

import torch
from torch import nn
from transformers.utils import logging

from ...forward.introspection import refuse_learned_prompts
from ..engine import Rollout, RolloutEngine, SamplingParams
from .cache_decoder import CacheDecoder
from .fast_decoder import FastDecoder
from .fast_support import why_not_fast
from .fast_weights import pack
from .scheduler import Decoder, Scheduler
from .static_decoder import StaticDecoder, why_not_static

logger = logging.get_logger(__name__)

PATHS = ("auto", "fast", "general", "graph")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# Tokens between two looks at what a GPU has drawn. On a CPU looking costs nothing.
GPU_SYNC_EVERY = 8


class TorchEngine(RolloutEngine):
    """Decodes in the process of the trainer.

    Weights are packed at the start of each `generate` and released at its end, so that the copy is never outdated and
    costs no memory during training.

    Args:
        max_batch_rows (`int`): Completions decoded at a time. The fast path replaces one that ends with the next; the
            general path starts the next groups when all have ended.
        dtype (`str`, *optional*): Decode in `"float32"` or `"bfloat16"`. Unset: the dtype of the model.
        path (`str`): `"auto"` takes the fast path on a CPU for known models, `"general"` never, `"fast"` always (an
            error for other models). `"graph"` is the general path with steps of constant shape, captured as CUDA
            graphs on a GPU. On other devices than a CPU `"fast"` and `"graph"` are unverified.
    """

    weights_are_shared = True

    def __init__(self, max_batch_rows: int = 256, dtype: str | None = None, path: str = "auto"):
        if max_batch_rows < 1:
            raise ValueError(f"max_batch_rows must be at least 1, got {max_batch_rows}.")
        if dtype is not None and dtype not in DTYPES:
            raise ValueError(f"dtype must be None or one of {', '.join(DTYPES)}, got {dtype!r}.")
        if path not in PATHS:
            raise ValueError(f"path must be one of {', '.join(PATHS)}, got {path!r}.")
        self.max_batch_rows = max_batch_rows
        self.dtype = DTYPES[dtype] if dtype else None
        self.path = path
        self.model: nn.Module | None = None
        self.weights_version = 0

    def sync_weights(self, model: nn.Module, version: int) -> None:
        refuse_learned_prompts(model)
        self.model = model
        self.weights_version = version

    def generate(
        self, prompt_ids: Sequence[Sequence[int]], num_generations: int, sampling: SamplingParams
    ) -> list[Rollout]:
        if self.model is None:
            raise RuntimeError("TorchEngine has no weights yet: call sync_weights(model, version) first.")
        if len(prompt_ids) == 0:
            return []
        is_fast = self._takes_fast_path()
        was_training = self.model.training
        self.model.eval()
        try:
            with torch.inference_mode() if is_fast else torch.no_grad():
                make_decoder = self._fast_decoder if is_fast else self._general_decoder
                decoder = make_decoder(prompt_ids, num_generations, sampling)
                return Scheduler(
                    decoder,
                    prompt_ids,
                    num_generations,
                    sampling,
                    max_batch_rows=self.max_batch_rows,
                    sync_every=1 if decoder.device.type == "cpu" else GPU_SYNC_EVERY,
                    weights_version=self.weights_version,
                ).run()
        finally:
            self.model.train(was_training)

    def _takes_fast_path(self) -> bool:
        if self.path in ("general", "graph"):
            return False
        reason = why_not_fast(self.model)
        if self.path == "fast":
            if reason:
                raise ValueError(f"path='fast' does not work for this model: {reason}. Use path='auto'.")
            return True
        device = next(self.model.parameters()).device
        if reason is None and device.type != "cpu":
            reason = f"it is on {device.type}, where the fast path is unverified"
        if reason:
            logger.info_once(f"Rollouts use the model's own forward, token by token: {reason}.")
        return reason is None

    def _fast_decoder(self, prompt_ids, num_generations: int, sampling: SamplingParams) -> Decoder:
        rows = min(self.max_batch_rows, len(prompt_ids) * num_generations)
        return FastDecoder(
            pack(self.model, self.dtype),
            max_rows=rows,
            max_groups=min(rows, len(prompt_ids)),
            max_prompt_length=max(map(len, prompt_ids)),
            max_completion_length=sampling.max_completion_length,
        )

    def _general_decoder(self, prompt_ids, num_generations: int, sampling: SamplingParams) -> Decoder:
        own = next(self.model.parameters()).dtype
        # accelerate's mixed precision wraps the model's forward.
        autocast = hasattr(self.model, "_original_forward")
        if self.dtype == torch.float32 and (own != torch.float32 or autocast):
            computes_in = "under autocast" if autocast else f"in {own}"
            raise ValueError(
                f"The rollout dtype is float32, but the model computes {computes_in}. This needs the fast path, which "
                "this model does not take. Leave the rollout dtype unset."
            )
        dtype = None if self.dtype in (None, own) else self.dtype
        if self.path != "graph":
            return CacheDecoder(self.model, dtype)
        if reason := why_not_static(self.model, sampling.max_completion_length):
            raise ValueError(f"path='graph' does not work for this model: {reason}. Use path='auto'.")
        captures = next(self.model.parameters()).device.type == "cuda"
        return StaticDecoder(self.model, sampling.max_completion_length, dtype, captures=captures)
