# SPDX-License-Identifier: Apache-2.0
"""Requests to `/generate`, and which of the answers can be trained on."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import RolloutServerError
from ..samples import Rollout, SamplingParams
from .top_k import over_top_k


class OtherWeightsError(RolloutServerError):
    """Completions came from other weights than those sent last."""


@dataclass
class PromptRequest:
    """One prompt on its way to its completions.

    Args:
        prompt_ids (`list[int]`): Its tokens.
        wanted (`int`): Number of completions to draw.
        server (`int`): Number of the server that draws them.
        sampling ([`SamplingParams`]): How they are drawn.
        rollouts (`list[Rollout]`): The completions so far. A request that fails midway adds none.
        prompt_tokens (`int`): Tokens of the prompt, once for each completion.
        cached_tokens (`int`): Those of them that the server had computed before, as it says.
    """

    prompt_ids: list[int]
    wanted: int
    server: int
    sampling: SamplingParams
    rollouts: list[Rollout] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0

    @property
    def missing(self) -> int:
        return self.wanted - len(self.rollouts)


def make_payload(request: PromptRequest) -> dict:
    """Asks for the completions that are still missing.

    Everything that can change the distribution is set, so that neither the model's generation config nor the server's
    defaults do. Log-probabilities of the prompt are not asked for: for them a server would compute what it has cached.
    """
    sampling = request.sampling
    payload = {
        "input_ids": [request.prompt_ids],
        "sampling_params": {
            "n": request.missing,
            "max_new_tokens": sampling.max_completion_length,
            "temperature": 0.0 if sampling.greedy else sampling.temperature,
            "stop_token_ids": list(sampling.eos_token_ids),
            "top_p": 1.0,
            "top_k": sampling.top_k or -1,
            "min_p": 0.0,
            "frequency_penalty": 0.0,
            "presence_penalty": 0.0,
            "repetition_penalty": 1.0,
            "min_new_tokens": 0,
            "ignore_eos": False,
        },
        "return_logprob": True,
    }
    return payload | ({"top_logprobs_num": sampling.top_k} if sampling.top_k else {})


@dataclass(frozen=True)
class Expected:
    """What the answers of a rollout must match.

    Args:
        tag (`str`): The server's name for the weights sent last.
        version (`int`): The trainer's name for them.
        eos_token_ids (`tuple[int, ...]`): The tokens that can end a completion.
        top_k (`int`): Number of tokens that each was drawn from. 0: all.
    """

    tag: str
    version: int
    eos_token_ids: tuple[int, ...]
    top_k: int = 0


def read_answers(answers: Any, request: PromptRequest, expected: Expected, url: str) -> str | None:
    """Adds the completions of an answer to its request.

    Returns:
        `str`, *optional*: Why some completions were aborted. They are still missing from the request.

    Raises:
        OtherWeightsError: If any token of a completion does not come from the expected weights.
        RolloutServerError: If an answer does not follow the protocol.
    """
    if not isinstance(answers, list) or len(answers) != request.missing:
        found = f"{len(answers)} completions" if isinstance(answers, list) else type(answers).__name__
        raise RolloutServerError(f"{url}/generate returned {found}, expected a list of {request.missing}.")
    aborted, rollouts, cached = None, [], 0
    for answer in answers:
        try:
            reason = answer["meta_info"]["finish_reason"]
            if reason["type"] == "abort":
                aborted = f"completions were aborted: {reason.get('message', 'no reason given')}"
                continue
            rollouts.append(_rollout(answer, reason, expected))
            cached += int(answer["meta_info"].get("cached_tokens") or 0)
        except (KeyError, TypeError, IndexError) as error:
            raise RolloutServerError(
                f"{url}/generate returned a completion in an unknown format: {type(error).__name__}: {error}. Is it "
                "an SGLang server of version 0.5 or later?"
            ) from error
        except ValueError as error:
            raise RolloutServerError(f"{url}/generate returned {error}.") from error
    request.rollouts += rollouts
    request.prompt_tokens += len(rollouts) * len(request.prompt_ids)
    request.cached_tokens += cached
    return aborted


def _rollout(answer: dict, reason: dict, expected: Expected) -> Rollout:
    ids, meta = answer["output_ids"], answer["meta_info"]
    versions = {meta["weight_version"], *(span["version"] for span in meta.get("weight_versions") or ())}
    if versions != {expected.tag}:
        raise OtherWeightsError(", ".join(sorted(map(str, versions - {expected.tag}))))
    scored = meta["output_token_logprobs"]
    if [entry[1] for entry in scored] != ids:
        raise ValueError(f"{len(scored)} log-probabilities that do not match its {len(ids)} tokens")
    is_ended = bool(ids) and ids[-1] in expected.eos_token_ids
    if reason["type"] == "stop" and not is_ended and reason.get("matched") in expected.eos_token_ids:
        last = f"the last token is {ids[-1]}" if ids else "there is no token"
        raise ValueError(
            f"a completion that stopped at the EOS token {reason['matched']}, but {last}: the server leaves the token "
            "at which a completion stops out of it; start it without what trims it"
        )
    if reason["type"] == "stop" and not is_ended:
        raise ValueError(
            f"a completion that stopped at {reason.get('matched')!r}, which is not one of the policy's EOS tokens "
            f"{expected.eos_token_ids}; serve the policy's own tokenizer and generation config, without stop strings"
        )
    logprobs, kept = [entry[0] for entry in scored], None
    if expected.top_k:
        logprobs, kept = over_top_k(scored, meta["output_top_logprobs"], expected.top_k)
    return Rollout(
        completion_ids=ids,
        logprobs=logprobs,
        finish_reason="stop" if is_ended else "length",
        weights_version=expected.version,
        kept=kept,
    )


def check_prompts(prompt_ids: Sequence[Sequence[int]], vocab_size: int, longest_prompt: int) -> None:
    """Refuses prompts that would kill the server or that it would refuse.

    Raises:
        ValueError: With the number of the prompt.
    """
    for number, ids in enumerate(prompt_ids):
        if len(ids) == 0:
            raise ValueError(f"Prompt {number} has no tokens. Remove the prompt or give it text.")
        check_ids(f"Prompt {number}", ids, vocab_size)
        if len(ids) > longest_prompt:
            raise ValueError(
                f"Prompt {number} has {len(ids)} tokens, but the SGLang server has room for prompts of "
                f"{longest_prompt} before completions of max_completion_length. Set max_prompt_length, or start the "
                "server with a longer --context-length."
            )


def check_ids(name: str, ids: Sequence[int], vocab_size: int) -> None:
    """Refuses token ids that would end the server; `name` says what they are.

    Raises:
        ValueError: With the range of the ids.
    """
    if min(ids, default=0) < 0 or max(ids, default=0) >= vocab_size:
        raise ValueError(
            f"{name} has token ids from {min(ids)} to {max(ids)}, but the model's vocabulary has {vocab_size} tokens. "
            "It was not sent, because such an id ends an SGLang server. Use the model's tokenizer."
        )
