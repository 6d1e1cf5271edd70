# SPDX-License-Identifier: Apache-2.0
"""What is asked of an SGLang server before the first step, so that a run does not start against the wrong one."""

from collections.abc import Sequence
from urllib.parse import urlsplit

import torch
from torch import nn
from transformers.utils import logging

from ...forward.introspection import unwrap
from ...forward.logprobs import completion_scores
from ...models import MiniMindConfig
from ..agreement import failing_together
from ..engine import Rollout
from ..errors import RolloutServerError
from ..exported_weights import server_architectures
from .client import SGLangServer

logger = logging.get_logger(__name__)

# In nats, mean over tokens. Servers of lower precision are within a few hundredths; other weights are not.
PROBE_TOLERANCE = 0.25
_EXACT = 1e-3  # below, there is nothing to tell apart
_PROBED = 4  # completions


def how_to_start(model: nn.Module, url: str) -> str:
    """Tells, as commands, how to serve this model at this URL."""
    config = unwrap(model).config
    folder = config._name_or_path or "MODEL_FOLDER"
    port = urlsplit(url).port or 80
    command = f"python -m sglang.launch_server --model-path {{}} --port {port}"
    if not isinstance(config, MiniMindConfig):
        return f"Start it with: {command.format(folder)}"
    served = f"{folder.rstrip('/')}-qwen3"
    return f"Start it with: minimind-hf convert {folder} {served} --to qwen3 && {command.format(served)}"


def check_server(server: SGLangServer, model: nn.Module) -> int:
    """Checks that a server, which is up, serves this architecture in a way that can be trained with.

    Returns:
        `int`: Tokens that it has room for, prompt and completion together.

    Raises:
        RolloutServerError: If not, with what to change.
    """
    info = server.get("/model_info")
    served, wanted = set(info.get("architectures") or ()), server_architectures(model)
    if not info.get("is_generation") or not served & wanted:
        raise RolloutServerError(
            f"{server.url} serves {', '.join(served) or 'another kind of model'} ({info.get('model_path')}), the "
            f"policy is {' or '.join(sorted(wanted))}. {how_to_start(model, server.url)}"
        )
    details = server.get("/server_info")
    if details.get("enable_deterministic_inference"):
        raise RolloutServerError(
            f"{server.url} was started with --enable-deterministic-inference, with which all completions of a prompt "
            "are the same. Start it without."
        )
    _check_vocabulary(server, unwrap(model).config.get_text_config().vocab_size)
    context = server.get("/v1/models")["data"][0]["max_model_len"]
    return min(context, details.get("max_total_num_tokens") or context)


def check_room(room: int, max_prompt_length: int | None, max_completion_length: int) -> None:
    """Refuses lengths that no server has room for."""
    wanted = (max_prompt_length or 1) + max_completion_length
    if wanted > room:
        raise RolloutServerError(
            f"max_prompt_length ({max_prompt_length}) + max_completion_length ({max_completion_length}) = {wanted} "
            f"tokens, but the SGLang server has room for {room}. Lower one of them, or start it with a longer "
            "--context-length and more --max-total-tokens."
        )


def _check_vocabulary(server: SGLangServer, vocab_size: int) -> None:
    """Asks by a bias of 0, which a server takes for the ids of its vocabulary only."""
    if not _knows_id(server, vocab_size - 1) or _knows_id(server, vocab_size):
        raise RolloutServerError(
            f"{server.url} serves a model with another vocabulary than the policy's {vocab_size} tokens. Serve the "
            "model that is trained."
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
    """Compares a server's log-probabilities with the model's own, in all processes together.

    Raises:
        RolloutServerError: If they are those of the unscaled logits, or not of these weights.
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
    if difference > _EXACT and other < difference / 3:  # nearer by more than chance, however near both are
        raise RolloutServerError(
            f"The SGLang server's log-probabilities are those at temperature 1 (they differ by {other:.2g} nats from "
            f"the policy's, at the sampling temperature by {difference:.2g}). Start it without "
            "SGLANG_RETURN_ORIGINAL_LOGPROB in its environment."
        )
    if difference > PROBE_TOLERANCE:
        raise RolloutServerError(
            f"The SGLang server's log-probabilities differ by {difference:.2g} nats on average from the policy's own, "
            f"right after its weights were sent (at most {PROBE_TOLERANCE} is taken for lower precision). It serves "
            "another model, or in another way: see its flags, such as quantization or a logit processor."
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
        return [_score(model, prompt, rollout.completion_ids, temperature, device) for prompt, rollout in pairs]
    finally:
        model.train(was_training)


def _score(model: nn.Module, prompt: Sequence[int], completion: list[int], temperature: float, device) -> list[float]:
    prompt, completion = torch.tensor([prompt], device=device), torch.tensor([completion], device=device)
    masks = torch.ones_like(prompt), torch.ones_like(completion)
    scores = completion_scores(model, prompt, masks[0], completion, masks[1], temperature)
    return scores.logps[0].tolist()
