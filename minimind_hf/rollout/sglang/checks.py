# SPDX-License-Identifier: Apache-2.0
"""Checks of an SGLang server before the first step, so that a run does not start with the wrong one."""

import json
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

import torch
from torch import nn
from transformers.utils import CONFIG_NAME, logging

from ...forward.introspection import differing, unwrap
from ...forward.kept_tokens import KeptTokens
from ...forward.logprobs import completion_scores
from ...models import MiniMindConfig
from ..agreement import failing_together
from ..engine import Rollout
from ..errors import RolloutServerError
from ..exported_weights import exported_config, server_architectures
from .client import SGLangServer

logger = logging.get_logger(__name__)

# In nats, mean over tokens. Servers with lower precision are within a few hundredths; other weights are not.
PROBE_TOLERANCE = 0.25
_EXACT = 1e-3  # smaller differences tell nothing
_PROBED = 4  # completions


def how_to_start(model: nn.Module, url: str) -> str:
    """Returns the commands that serve this model at this URL."""
    config = unwrap(model).config
    folder = config._name_or_path or "MODEL_FOLDER"
    port = urlsplit(url).port or 80
    command = f"python -m sglang.launch_server --model-path {{}} --port {port}"
    if not isinstance(config, MiniMindConfig):
        return f"Start it with: {command.format(folder)}"
    served = f"{folder.rstrip('/')}-qwen3"
    return f"Start it with: minimind-hf convert {folder} {served} --to qwen3 && {command.format(served)}"


def check_server(server: SGLangServer, model: nn.Module) -> int:
    """Checks that a running server serves this architecture in a way that works for training.

    Returns:
        `int`: Room for a prompt and its completion, in tokens.

    Raises:
        RolloutServerError: If it does not, with the remedy.
    """
    info = server.get("/model_info")
    served, wanted = set(info.get("architectures") or ()), server_architectures(model)
    if not info.get("is_generation") or not served & wanted:
        raise RolloutServerError(
            f"{server.url} serves {', '.join(served) or 'another kind of model'} ({info.get('model_path')}), but the "
            f"policy is {' or '.join(sorted(wanted))}. {how_to_start(model, server.url)}"
        )
    _check_sizes(server, model, info)
    details = server.get("/server_info")
    if details.get("enable_deterministic_inference"):
        raise RolloutServerError(
            f"{server.url} was started with --enable-deterministic-inference, which makes all completions of a prompt "
            "equal. Start it without this flag."
        )
    _check_vocabulary(server, unwrap(model).config.get_text_config().vocab_size)
    context = server.get("/v1/models")["data"][0]["max_model_len"]
    return min(context, details.get("max_total_num_tokens") or context)


def _check_sizes(server: SGLangServer, model: nn.Module, info: dict) -> None:
    """Compares sizes where the server's folder can be read here: weights of other shapes would end its scheduler."""
    path = Path(info.get("model_path") or "") / CONFIG_NAME
    if not path.is_file():
        return
    served, own = json.loads(path.read_text(encoding="utf-8")), exported_config(model).to_dict()
    other = differing(own, served)
    if other:
        told = "; ".join(f"{name} {served[name]}, the policy {own[name]}" for name in other)
        raise RolloutServerError(
            f"{server.url} serves {path.parent}, a model of other sizes: it has {told}. "
            f"{how_to_start(model, server.url)}"
        )


def check_room(room: int, max_prompt_length: int | None, max_completion_length: int) -> None:
    """Refuses lengths that no server has room for."""
    wanted = (max_prompt_length or 1) + max_completion_length
    if wanted > room:
        raise RolloutServerError(
            f"max_prompt_length ({max_prompt_length}) + max_completion_length ({max_completion_length}) = {wanted} "
            f"tokens, but the SGLang server has room for {room}. Lower one of them, or start the server with larger "
            "--context-length and --max-total-tokens."
        )


def _check_vocabulary(server: SGLangServer, vocab_size: int) -> None:
    """Asks with a bias of 0, which a server accepts only for the ids of its vocabulary."""
    if not _knows_id(server, vocab_size - 1) or _knows_id(server, vocab_size):
        raise RolloutServerError(
            f"{server.url} serves a model with another vocabulary than the policy's {vocab_size} tokens. Serve the "
            "model that is being trained."
        )


def _knows_id(server: SGLangServer, token_id: int) -> bool:
    sampling = {"temperature": 0.0, "max_new_tokens": 1, "logit_bias": {str(token_id): 0.0}}
    try:
        server.generate({"input_ids": [[0]], "sampling_params": sampling})
    except RolloutServerError as error:
        if "logit_bias" in str(error):
            return False
        raise
    return True


def check_logprobs(
    model: nn.Module, prompt_ids: Sequence[Sequence[int]], rollouts: Sequence[Rollout], temperature: float
) -> None:
    """Compares the log-probabilities of a server with the model's own, in all processes together.

    Raises:
        RolloutServerError: If they belong to the unscaled logits, or to other weights.
    """
    group_size = len(rollouts) // max(len(prompt_ids), 1)
    rows = range(0, len(rollouts), max(len(rollouts) // _PROBED, 1))[:_PROBED]
    pairs = [(prompt_ids[row // group_size], rollouts[row]) for row in rows]
    with failing_together("comparing log-probabilities with the SGLang server's"):
        _compare(pairs, _own_logprobs(model, pairs, temperature), _own_logprobs(model, pairs, 1.0))


def _compare(pairs: list[tuple], scaled: list[list[float]], unscaled: list[list[float]]) -> None:
    if not pairs:
        return
    difference, other = (_mean_difference(pairs, own) for own in (scaled, unscaled))
    if difference > _EXACT and other < difference / 3:  # closer by more than chance, however close both are
        raise RolloutServerError(
            f"The SGLang server returns log-probabilities at temperature 1: they differ by {other:.2g} nats from the "
            f"policy's at temperature 1, and by {difference:.2g} at the sampling temperature. Start it without "
            "SGLANG_RETURN_ORIGINAL_LOGPROB in its environment."
        )
    if difference > PROBE_TOLERANCE:
        raise RolloutServerError(
            f"The SGLang server's log-probabilities differ from the policy's by {difference:.2g} nats on average, "
            f"right after the weights were sent (lower precision explains at most {PROBE_TOLERANCE}). It serves "
            "another model, or serves it in another way: check its flags, such as quantization or a logit processor."
        )


def _mean_difference(pairs: list[tuple], own: list[list[float]]) -> float:
    differences = [
        abs(mine - theirs)
        for (_, rollout), row in zip(pairs, own, strict=True)
        for mine, theirs in zip(row, rollout.logprobs, strict=True)
    ]
    return sum(differences) / len(differences)


@torch.no_grad()
def _own_logprobs(model: nn.Module, pairs: list[tuple], temperature: float) -> list[list[float]]:
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    try:
        return [_score(model, prompt, rollout, temperature, device) for prompt, rollout in pairs]
    finally:
        model.train(was_training)


def _score(model: nn.Module, prompt: Sequence[int], rollout: Rollout, temperature: float, device) -> list[float]:
    prompt, completion = torch.tensor([prompt], device=device), torch.tensor([rollout.completion_ids], device=device)
    masks = torch.ones_like(prompt), torch.ones_like(completion)
    kept = None if rollout.kept is None else KeptTokens.of(rollout.kept)
    scores = completion_scores(model, prompt, masks[0], completion, masks[1], temperature, kept=kept)
    return scores.logps[0].tolist()
