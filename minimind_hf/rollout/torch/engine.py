# SPDX-License-Identifier: Apache-2.0
"""The in-process engine: any causal LM of transformers, decoded with the trainer's own weights.

On a CPU known models (see `fast_support`) are decoded on packed copies of their weights with as few operations as
possible; on CUDA the steps of a model's own forward are captured as graphs (see `static_decoder`). All others are
decoded with their own forward and cache. In all cases a prompt is computed once for its whole group, rows leave the
batch when they end, and log-probabilities are taken while sampling. Sampling has its own generator, so rollouts
neither depend on nor change the global random state.

A fast path is taken on another device than a CPU only after this run has compared it with the model's own forward
there (see `proof`).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from weakref import WeakSet

import torch
from torch import nn
from transformers.utils import logging

from ...forward.introspection import refuse_learned_prompts, unwrap, vocabulary_size
from ...forward.proof import MODES, Finding
from ..engine import Rollout, RolloutEngine, SamplingParams
from ..observers import Observers
from ..refill import Refill
from ..session import Session
from .buckets import Buckets
from .cache_decoder import CacheDecoder
from .caches import is_recurrent, why_not_parked
from .decoder import Decoder
from .fast_decoder import FastDecoder
from .fast_support import why_not_fast
from .fast_weights import FastWeights, pack
from .graphs import CudaGraphs
from .looks import pace
from .proof import ROWS_EACH, TOKENS, Proofs, compare_decoders, few_prompts
from .recurrent_decoder import RecurrentDecoder
from .scheduler import Scheduler
from .sessions import SessionScheduler, groups_of
from .speculating import NO_DRAFTS_IN_GRAPHS, Speculating
from .static_decoder import StaticDecoder, why_not_static
from .trials import ShortSession

logger = logging.get_logger(__name__)

PATHS = ("auto", "fast", "general", "graph")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
REDUCED = (torch.bfloat16, torch.float16)
_FAULTS_OF_MODELS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)


class TorchEngine(Speculating, RolloutEngine):
    """Decodes in the process of the trainer.

    Weights are packed at the start of each `generate` and released at its end, so that the copy is never outdated and
    costs no memory during training.

    Args:
        max_batch_rows (`int`): Completions decoded at a time. The fast path replaces one that ends with the next; the
            general path starts the next groups when all have ended.
        dtype (`str`, *optional*): Decode in `"float32"` or `"bfloat16"`. Unset: the dtype of the model.
        path (`str`): `"fast"` decodes known models on packed weights (an error for others). `"graph"` is the model's
            own forward with steps of constant shape, captured as CUDA graphs on a GPU; `"general"` is the same
            without graphs. `"auto"` is `"fast"` on a CPU and `"graph"` on CUDA where they apply, else `"general"`.
        verify_fast_paths (`str`): `"first"` compares a fast path with the model's own forward before it is first taken
            on another device than a CPU, and does not take it if they differ; `"always"` compares before every
            rollout, on CPUs too; `"off"` takes it without comparing.
        speculation (`str`, *optional*): `"self"` decodes several tokens of a row at once where it can guess them from
            texts of the same prompt. What is drawn is the same.
    """

    weights_are_shared = True

    def __init__(
        self,
        max_batch_rows: int = 256,
        dtype: str | None = None,
        path: str = "auto",
        verify_fast_paths: str = "first",
        speculation: str | None = None,
    ):
        if max_batch_rows < 1:
            raise ValueError(f"max_batch_rows must be at least 1, got {max_batch_rows}.")
        if dtype is not None and dtype not in DTYPES:
            raise ValueError(f"dtype must be None or one of {', '.join(DTYPES)}, got {dtype!r}.")
        if path not in PATHS:
            raise ValueError(f"path must be one of {', '.join(PATHS)}, got {path!r}.")
        if verify_fast_paths not in MODES:
            raise ValueError(f"verify_fast_paths must be one of {', '.join(MODES)}, got {verify_fast_paths!r}.")
        self._speculate(speculation, path)
        self.max_batch_rows = max_batch_rows
        self.dtype = DTYPES[dtype] if dtype else None
        self.path = path
        self.model: nn.Module | None = None
        self.weights_version = 0
        self.proofs = Proofs(verify_fast_paths)
        self.buckets: Buckets | None = None
        self._is_trying = False
        self._playable: WeakSet[nn.Module] = WeakSet()  # models that passed check_sessions

    def sync_weights(self, model: nn.Module, version: int) -> None:
        refuse_learned_prompts(model)
        self.model = model
        self.weights_version = version

    def check_ready(self, model: nn.Module, max_prompt_length: int | None, max_completion_length: int) -> None:
        """Tries a few tokens of a model that is decoded with its own forward, before any training.

        Raises:
            ValueError: If decoding with the model fails; the message gives the reason.
        """
        self._check_drafts(model)
        if why_not_fast(model) is None:
            return
        top = vocabulary_size(model) - 1
        prompts = [[min(5, top), min(6, top), min(7, top)], [min(8, top)]]
        self._try(model, "decode", lambda: self.generate(prompts, 2, SamplingParams(2, 1.0, ())))

    def check_sessions(self, model: nn.Module) -> None:
        """Refuses a model whose episodes cannot be put aside and continued, and tries a short one.

        Raises:
            ValueError: With the model's class and the reason.
        """
        if self._takes_packed(model):
            return
        if reason := why_not_parked(model):
            raise ValueError(
                f"The torch rollout engine cannot play episodes with {type(unwrap(model)).__name__}: {reason}. Use "
                "rollout_engine='sglang' or an engine of your own, or train another model."
            )
        top = vocabulary_size(model) - 1
        sessions = [ShortSession([min(5, top), min(6, top)], top), ShortSession([min(8, top)], top)]
        params = SamplingParams(6, 1.0, tuple(range(top + 1)))
        self._try(model, "play episodes", lambda: self._converse(sessions, params))

    def _takes_packed(self, model: nn.Module) -> bool:
        takes_packed = self.path == "fast" or (self.path == "auto" and next(model.parameters()).device.type == "cpu")
        return takes_packed and why_not_fast(model) is None

    def _try(self, model: nn.Module, doing: str, work: Callable[[], object]) -> None:
        """Runs a short trial on a model that has not been synced yet."""
        synced = self.model
        self._is_trying = True
        self.sync_weights(model, self.weights_version)
        try:
            work()
        except _FAULTS_OF_MODELS as error:
            raise ValueError(
                f"The torch rollout engine cannot {doing} with {type(unwrap(model)).__name__}: trying it raised "
                f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]} Pass a rollout engine of your own as "
                "`rollout_engine`, or train another model."
            ) from error
        finally:
            self.model, self._is_trying = synced, False

    def generate(
        self,
        prompt_ids: Sequence[Sequence[int]],
        num_generations: int,
        sampling: SamplingParams,
        refill: Refill | None = None,
    ) -> list[Rollout]:
        sizes = [num_generations] * len(prompt_ids)
        rows = min(self.max_batch_rows, sum(sizes))
        return self._run(
            prompt_ids,
            sampling,
            lambda decoder, **options: Scheduler(decoder, prompt_ids, sizes, sampling, refill=refill, **options),
            max_rows=rows,
            max_groups=min(rows, len(prompt_ids)),
        )

    def converse(
        self, sessions: Sequence[Session], sampling: SamplingParams, refill: Refill | None = None
    ) -> list[Rollout]:
        """Plays episodes, each at its own pace; see [`RolloutEngine.converse`].

        Raises:
            ValueError: If the model cannot play episodes, see [`check_sessions`].
        """
        if self.model is not None and self.model not in self._playable:
            self.check_sessions(self.model)
            self._playable.add(self.model)
        return self._converse(sessions, sampling, refill)

    def _converse(
        self, sessions: Sequence[Session], sampling: SamplingParams, refill: Refill | None = None
    ) -> list[Rollout]:
        prompts, _ = groups_of(sessions)
        with Observers(self.tool_workers) as observers:
            return self._run(
                prompts,
                sampling,
                lambda decoder, **options: SessionScheduler(
                    decoder, sessions, sampling, observers, refill=refill, **options
                ),
                max_rows=min(self.max_batch_rows, len(sessions)),
                max_groups=len(prompts),  # including those of waiting episodes
            )

    def _run(
        self,
        prompt_ids: Sequence[Sequence[int]],
        sampling: SamplingParams,
        make_scheduler: Callable[..., Scheduler],
        **sizes: int,
    ) -> list[Rollout]:
        if self.model is None:
            raise RuntimeError("TorchEngine has no weights yet: call sync_weights(model, version) first.")
        if len(prompt_ids) == 0:
            return []
        if not self._is_trying:
            self._check_drafts(self.model)
        was_training = self.model.training
        self.model.eval()
        try:
            path = self._proved_path(prompt_ids, sampling)
            with torch.inference_mode() if path == "fast" else torch.no_grad():
                decoder = self._decoder(path, prompt_ids, sampling, **sizes)
                drafts = self._begin_drafts(path, prompt_ids, sampling, decoder)
                rollouts = make_scheduler(
                    decoder,
                    max_batch_rows=self.max_batch_rows,
                    weights_version=self.weights_version,
                    drafts=drafts,
                    **pace(decoder.device, drafts is not None),
                ).run()
                self._end_drafts(drafts)
                return rollouts
        finally:
            if self.buckets is not None:
                self.buckets.settle(self._device())
            self.model.train(was_training)

    def _proved_path(self, prompt_ids: Sequence[Sequence[int]], sampling: SamplingParams) -> str:
        """The path to take: the chosen one, if it equals the model's own forward on this device."""
        path = self._path(sampling.max_completion_length)
        if path == "general" or self._is_trying:
            return path
        compare = partial(self._compare, path, prompt_ids, sampling)
        return path if self.proofs.holds(path, self.model, self._device(), compare) else "general"

    @torch.no_grad()
    def _compare(self, path: str, prompt_ids: Sequence[Sequence[int]], sampling: SamplingParams) -> Finding:
        prompts = few_prompts(prompt_ids)
        sizes = {"max_rows": ROWS_EACH * len(prompts), "max_groups": len(prompts)}
        few = replace(sampling, max_completion_length=min(sampling.max_completion_length, TOKENS))
        own = next(self.model.parameters()).dtype
        reduced = next((dtype for dtype in (own, self.dtype) if dtype in REDUCED), None)
        return compare_decoders(
            fast=lambda: self._decoder(path, prompts, few, **sizes, buckets=Buckets(self._graphs())),
            plain=lambda: CacheDecoder(self.model, None if self.dtype in (own, torch.float32) else self.dtype),
            prompts=prompts,
            sampling=few,
            dtype=torch.bfloat16 if self._is_under_autocast() else reduced or own,
        )

    def _path(self, max_length: int) -> str:
        """The path that was asked for or is best on the device.

        Raises:
            ValueError: If the model does not take the one that was asked for.
        """
        if self.path == "general" or (self.path == "auto" and self._is_trying):
            return "general"
        if self.path == "auto":
            path = {"cpu": "fast", "cuda": "graph"}.get(self._device().type)
            if path is None:
                return "general"
            if path == "graph" and self.speculator is not None:
                logger.info_once(f"Rollouts use the model's own forward: {NO_DRAFTS_IN_GRAPHS}.")
                return "general"
        else:
            path = self.path
        reason = why_not_fast(self.model) if path == "fast" else why_not_static(self.model, max_length)
        if reason is None:
            return path
        if self.path != "auto":
            raise ValueError(f"path={path!r} does not work for this model: {reason}. Use path='auto'.")
        logger.info_once(f"Rollouts use the model's own forward, token by token: {reason}.")
        return "general"

    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    def _decoder(
        self,
        path: str,
        prompt_ids: Sequence[Sequence[int]],
        sampling: SamplingParams,
        max_rows: int,
        max_groups: int,
        packed: FastWeights | None = None,
        buckets: Buckets | None = None,
    ) -> Decoder:
        if path == "fast":
            return FastDecoder(
                packed or pack(self.model, self.dtype),
                max_rows=max_rows,
                max_groups=max_groups,
                max_prompt_length=max(map(len, prompt_ids)),
                max_completion_length=sampling.max_completion_length,
            )
        dtype = self._cast_dtype()
        if path == "graph":
            module = self._buckets().module_for(self.model, dtype)
            return StaticDecoder(module, sampling.max_completion_length, buckets or self._buckets())
        return (RecurrentDecoder if is_recurrent(self.model) else CacheDecoder)(self.model, dtype)

    def _is_under_autocast(self) -> bool:
        return hasattr(self.model, "_original_forward")  # accelerate's mixed precision wraps the model's forward

    def _buckets(self) -> Buckets:
        """Those of the graph path, which are kept over rollouts."""
        if self.buckets is None:
            self.buckets = Buckets(self._graphs())
        return self.buckets

    def _graphs(self) -> CudaGraphs | None:
        return CudaGraphs() if self._device().type == "cuda" else None

    def _cast_dtype(self) -> torch.dtype | None:
        """The dtype in which a model's own forward has to be told to compute.

        Raises:
            ValueError: If it cannot compute in the dtype of the rollouts.
        """
        own = next(self.model.parameters()).dtype
        if self.dtype == torch.float32 and (own != torch.float32 or self._is_under_autocast()):
            computes_in = "under autocast" if self._is_under_autocast() else f"in {own}"
            raise ValueError(
                f"The rollout dtype is float32, but the model computes {computes_in}. This needs the fast path, which "
                "this model does not take. Leave the rollout dtype unset."
            )
        return None if self.dtype in (None, own) else self.dtype
