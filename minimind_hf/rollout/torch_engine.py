# SPDX-License-Identifier: Apache-2.0
"""The in-process engine: any causal LM of transformers, decoded through its key/value cache.

A prompt is prefilled once and its cache copied to the rows of its group; rows leave the batch when they end;
log-probabilities are taken while sampling. Sampling draws from a generator of its own, so that rollouts neither
depend on nor disturb the global random state.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from ..forward.signature import cache_argument, forward_arguments, unwrap
from .engine import Rollout, RolloutEngine, SamplingParams


class TorchEngine(RolloutEngine):
    """Decodes in the process of the trainer, with the trainer's own weights (syncing them costs nothing).

    Args:
        max_batch_rows (`int`): Completions decoded at a time. Prompts beyond it wait for the next wave.
    """

    def __init__(self, max_batch_rows: int = 256):
        if max_batch_rows < 1:
            raise ValueError(f"max_batch_rows must be at least 1, got {max_batch_rows}.")
        self.max_batch_rows = max_batch_rows
        self.model: nn.Module | None = None
        self.weights_version = 0

    def sync_weights(self, model: nn.Module, version: int) -> None:
        self.model = model
        self.weights_version = version

    @torch.no_grad()
    def generate(
        self, prompt_ids: Sequence[Sequence[int]], num_generations: int, sampling: SamplingParams
    ) -> list[Rollout]:
        if self.model is None:
            raise RuntimeError("TorchEngine has no weights yet: call sync_weights(model, version) first.")
        device = next(self.model.parameters()).device
        generator = torch.Generator(device=device).manual_seed(sampling.seed)
        prompts_per_wave = max(1, self.max_batch_rows // num_generations)
        was_training = self.model.training
        self.model.eval()
        try:
            rollouts = []
            for start in range(0, len(prompt_ids), prompts_per_wave):
                wave = prompt_ids[start : start + prompts_per_wave]
                rollouts += self._decode_wave(wave, num_generations, sampling, generator)
        finally:
            self.model.train(was_training)
        return rollouts

    def _decode_wave(self, prompt_ids, num_generations, sampling, generator) -> list[Rollout]:
        decoder = _Decoder(self.model, prompt_ids, num_generations)
        eos = torch.tensor(sampling.eos_token_ids, device=generator.device)
        num_rows = len(prompt_ids) * num_generations
        tokens, logprobs, finished = ([[] for _ in range(num_rows)] for _ in range(3))
        rows = list(range(num_rows))  # which completion each row of the batch belongs to
        for length in range(1, sampling.max_completion_length + 1):
            next_ids, next_logps = _sample(decoder.logits, sampling, generator)
            ended = torch.isin(next_ids, eos)
            for row, token, logp in zip(rows, next_ids.tolist(), next_logps.tolist(), strict=True):
                tokens[row].append(token)
                logprobs[row].append(logp)
            alive = (~ended).nonzero().squeeze(1)
            for position in ended.nonzero().squeeze(1).tolist():
                finished[rows[position]] = True
            if len(alive) == 0 or length == sampling.max_completion_length:
                break
            if len(alive) < len(rows):
                rows = [rows[position] for position in alive.tolist()]
                decoder.keep_rows(alive)
                next_ids = next_ids[alive]
            decoder.step(next_ids)
        return [
            Rollout(ids, logps, "stop" if ended else "length", weights_version=self.weights_version)
            for ids, logps, ended in zip(tokens, logprobs, finished, strict=True)
        ]


def _sample(logits: Tensor, sampling: SamplingParams, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    logps = (logits.float() / sampling.temperature).log_softmax(dim=-1)
    if sampling.greedy:
        chosen = logps.argmax(dim=-1, keepdim=True)
    else:
        chosen = torch.multinomial(logps.exp(), num_samples=1, generator=generator)
    return chosen.squeeze(1), logps.gather(1, chosen).squeeze(1)


class _Decoder:
    """The model's state between tokens: cache, attention mask and next positions of the rows that still run.

    Attributes:
        logits (`Tensor` of shape `(rows, vocab)`): For the next token of each row.
    """

    def __init__(self, model: nn.Module, prompt_ids: Sequence[Sequence[int]], num_generations: int):
        self.model = model
        self.accepted = forward_arguments(model)
        self.cache_name = cache_argument(model)
        self.cache = DynamicCache(config=unwrap(model).config)
        device = next(model.parameters()).device
        longest = max(len(ids) for ids in prompt_ids)
        # The id in padded slots is never attended to; 0 is in every vocabulary.
        padded = [[0] * (longest - len(ids)) + list(ids) for ids in prompt_ids]
        mask = [[0] * (longest - len(ids)) + [1] * len(ids) for ids in prompt_ids]
        self.mask = torch.tensor(mask, device=device)
        positions = (self.mask.cumsum(dim=1) - 1).clamp(min=0)
        self._forward(torch.tensor(padded, device=device), positions)
        self.cache.batch_repeat_interleave(num_generations)
        self.logits = self.logits.repeat_interleave(num_generations, dim=0)
        self.mask = self.mask.repeat_interleave(num_generations, dim=0)
        self.next_position = self.mask.sum(dim=1, keepdim=True)

    def keep_rows(self, rows: Tensor) -> None:
        self.cache.batch_select_indices(rows)
        self.mask = self.mask[rows]
        self.next_position = self.next_position[rows]

    def step(self, token_ids: Tensor) -> None:
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(token_ids), 1)], dim=1)
        self._forward(token_ids.unsqueeze(1), self.next_position)
        self.next_position = self.next_position + 1

    def _forward(self, input_ids: Tensor, position_ids: Tensor) -> None:
        inputs = {"position_ids": position_ids, "logits_to_keep": 1}
        inputs = {name: value for name, value in inputs.items() if name in self.accepted}
        inputs[self.cache_name] = self.cache
        outputs = self.model(input_ids=input_ids, attention_mask=self.mask, use_cache=True, **inputs)
        self.logits = outputs.logits[:, -1]
