# SPDX-License-Identifier: Apache-2.0
"""Reward models as reward functions.

Two kinds are supported: a sequence classification model with one label, which scores in batches, and a remote-code
model with `get_score(tokenizer, messages)` (InternLM2-Reward), which scores one conversation at a time, with the
history folded into the question. Both see the answer part only and are frozen. Their scores are clamped, so that one
outlier cannot dominate the statistics of its group.
"""

import copy
import json
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from peft import PeftConfig, PeftModelForSequenceClassification, load_peft_weights
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)
from transformers.tokenization_utils_base import VERY_LARGE_INTEGER
from transformers.utils.peft_utils import find_adapter_config_file

from ..paths import check_loadable
from .rules import Completion, answer_part, completion_text

HISTORY_SEPARATOR = "以上是对话历史。我的新问题是："
_CLASSIFIER = "AutoModelForSequenceClassification"

Prompt = str | list[dict[str, Any]]
Answer = str | list[dict[str, Any]]
"""What is scored: a text, or several messages with calls and the answers of tools among them."""


class RewardModelError(ValueError):
    """A reward model cannot be loaded or cannot score."""


class RewardModel:
    """A frozen reward model with the signature of a reward function.

    Args:
        model (`torch.nn.Module`): A sequence classification model with one label, or a model with `get_score`.
        tokenizer (`PreTrainedTokenizerBase`):
            The reward model's own tokenizer. Its chat template renders the conversations.
        batch_size (`int`, *optional*, defaults to 16): Conversations scored at once (sequence classification).
        max_length (`int`, *optional*):
            Longest input in tokens; longer ones lose their beginning. Unset: the limit of the tokenizer and the model.
        clamp (`float`, *optional*, defaults to 3.0): Scores are limited to [-clamp, clamp]; `None` for no limit.
        answer_only (`bool`, *optional*, defaults to `True`):
            Score only what follows `</think>`.
        name (`str`, *optional*): Name of the signal. Unset: the last part of the model's path.

    Raises:
        RewardModelError: If the model has neither one label nor `get_score`, or the tokenizer cannot pad.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        tokenizer: PreTrainedTokenizerBase,
        *,
        batch_size: int = 16,
        max_length: int | None = None,
        clamp: float | None = 3.0,
        answer_only: bool = True,
        name: str | None = None,
    ):
        if batch_size < 1:
            raise RewardModelError(f"batch_size must be at least 1, not {batch_size}.")
        self.model = model.eval().requires_grad_(False)
        self.tokenizer = tokenizer
        self.batch_size = batch_size
        self.clamp = clamp
        self.answer_only = answer_only
        self.name = name or _name_of(model)
        self.uses_get_score = callable(getattr(model, "get_score", None))
        self.max_length = max_length
        if not self.uses_get_score:
            self._prepare_classifier()

    @classmethod
    def from_pretrained(
        cls,
        path: str,
        *,
        tokenizer: PreTrainedTokenizerBase | None = None,
        trust_remote_code: bool = False,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        **kwargs: Any,
    ) -> "RewardModel":
        """Loads a reward model and its tokenizer.

        Args:
            path (`str`): Folder or hub name of a model, or of adapters, which are merged into their base.
            tokenizer (`PreTrainedTokenizerBase`, *optional*): Used in place of the one in the folder.
            trust_remote_code (`bool`, *optional*, defaults to `False`): Allow code that comes with the model to run.
            device (`str` or `torch.device`, *optional*): The device of the model.
            dtype (`str` or `torch.dtype`, *optional*): The type of its parameters. Unset: the one it was saved in.
            kwargs: Further arguments of [`RewardModel`].

        Returns:
            [`RewardModel`]: Ready to be called.

        Raises:
            RewardModelError: If it cannot be loaded, has more than one label, or has no trained classification head.
        """
        try:
            check_loadable(path, "reward model")
        except ValueError as error:
            raise RewardModelError(str(error)) from error
        model = _load_model(path, trust_remote_code, dtype)
        try:
            tokenizer = tokenizer or AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
        except (OSError, ValueError, ImportError) as error:
            raise _cannot_load("tokenizer of the reward model", path, error) from error
        return cls(model, tokenizer, **kwargs).to(device)

    def to(self, device: str | torch.device | None) -> "RewardModel":
        """Moves the model to a device; `None` leaves it where it is."""
        if device is not None:
            self.model.to(device)
        return self

    @torch.no_grad()
    def __call__(
        self,
        prompts: Sequence[Prompt],
        completions: Sequence[Completion],
        completion_ids: Sequence[Sequence[int]] | None = None,
        **columns: Any,
    ) -> list[float]:
        """Scores completions.

        Args:
            prompts (`list[str]` or `list[list[dict]]`): One prompt per completion.
            completions (`list[str]` or `list[list[dict]]`): The completions.
            completion_ids (`list[list[int]]`, *optional*): Not used: a reward model has its own tokenizer.
            columns: Not used.

        Returns:
            `list[float]`: One clamped score per completion.
        """
        answers = [_scored_part(completion, self.answer_only) for completion in completions]
        pairs = list(zip(prompts, answers, strict=True))
        scores = self._scores_one_by_one(pairs) if self.uses_get_score else self._scores_in_batches(pairs)
        if self.clamp is not None:
            scores = scores.clamp(-self.clamp, self.clamp)
        return scores.tolist()

    def _prepare_classifier(self) -> None:
        config = self.model.config
        if config.num_labels != 1:
            raise RewardModelError(
                f"The reward model {self.name!r} has num_labels = {config.num_labels}, but a reward is one number. "
                "Use a sequence classification model trained with num_labels=1, or one that has "
                "`get_score(tokenizer, messages)`."
            )
        # A copy, because the policy can use the same tokenizer object with other settings.
        self.tokenizer = copy.deepcopy(self.tokenizer)
        self.tokenizer.padding_side = "right"
        self.tokenizer.truncation_side = "left"
        if self.tokenizer.pad_token_id is None:
            if self.tokenizer.eos_token_id is None:
                raise RewardModelError(
                    f"The tokenizer of the reward model {self.name!r} has neither a pad nor an eos token, so inputs "
                    "of different lengths cannot be batched. Set `tokenizer.pad_token`."
                )
            self.tokenizer.pad_token = self.tokenizer.eos_token
        # The score is read at the last token that is not this one.
        config.pad_token_id = self.tokenizer.pad_token_id
        if self.max_length is None:
            self.max_length = _length_limit(self.tokenizer, config)

    def _scores_in_batches(self, pairs: list[tuple[Prompt, Answer]]) -> torch.Tensor:
        encoded = [self._encode(prompt, answer) for prompt, answer in pairs]
        scores = torch.empty(len(encoded))
        # Inputs of similar length share a batch: less padding, and the same scores.
        order = sorted(range(len(encoded)), key=lambda i: len(encoded[i]["input_ids"]))
        for rows in _chunks(order, self.batch_size):
            batch = self.tokenizer.pad([encoded[i] for i in rows], padding=True, return_tensors="pt")
            logits = self.model(**batch.to(next(self.model.parameters()).device)).logits
            scores[rows] = logits[:, 0].float().cpu()
        return scores

    def _encode(self, prompt: Prompt, answer: Answer) -> dict[str, list[int]]:
        cut = {"truncation": self.max_length is not None, "max_length": self.max_length}
        if isinstance(prompt, str):
            return self.tokenizer(prompt + answer, **cut)
        if not self.tokenizer.chat_template:
            raise RewardModelError(
                f"The prompts are lists of messages, but the tokenizer of the reward model {self.name!r} has no chat "
                "template. Set `tokenizer.chat_template`, or give string prompts."
            )
        text = self.tokenizer.apply_chat_template(_with_answer(prompt, answer), tokenize=False)
        return self.tokenizer(text, **cut, add_special_tokens=False)

    def _scores_one_by_one(self, pairs: list[tuple[Prompt, Answer]]) -> torch.Tensor:
        scores = [self.model.get_score(self.tokenizer, folded_conversation(*pair)) for pair in pairs]
        return torch.tensor([float(score) for score in scores])


def answer_only_messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages without the thoughts of the assistant. Calls, and the answers of tools, stay."""
    return [
        {key: value for key, value in message.items() if key != "reasoning_content"}
        | {"content": answer_part(message.get("content") or "")}
        if message["role"] == "assistant"
        else message
        for message in messages
    ]


def _scored_part(completion: Completion, answer_only: bool) -> Answer:
    if isinstance(completion, str) or (len(completion) == 1 and not completion[0].get("tool_calls")):
        text = completion_text(completion)
        return answer_part(text) if answer_only else text
    return answer_only_messages(completion) if answer_only else completion


def folded_conversation(prompt: Prompt, answer: Answer) -> list[dict[str, str]]:
    """Folds a whole conversation into one question and one answer.

    Args:
        prompt (`str` or `list[dict]`): The prompt. All messages but the last become `role: content` lines.
        answer (`str` or `list[dict]`): The answer to score. Of several messages, all but the last become lines, too.

    Returns:
        `list[dict]`: A user message and an assistant message.
    """
    if isinstance(prompt, str):
        question = prompt
    else:
        *history, last, assistant = _with_answer(prompt, answer)
        answer, question = _content_and_calls(assistant), last["content"]
        if history:
            lines = [f"{message['role']}: {_content_and_calls(message)}" for message in history]
            question = "\n".join([*lines, HISTORY_SEPARATOR, question])
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def _content_and_calls(message: dict[str, Any]) -> str:
    calls = [json.dumps(call.get("function", call), ensure_ascii=False) for call in message.get("tool_calls") or []]
    return "\n".join(filter(None, [message.get("content") or "", *calls]))


def _with_answer(messages: list[dict[str, Any]], answer: Answer) -> list[dict[str, Any]]:
    """The conversation with its answer, which completes an assistant turn that the prompt began."""
    first, *more = [{"role": "assistant", "content": answer}] if isinstance(answer, str) else answer
    if messages[-1]["role"] == "assistant":
        *messages, begun = messages
        first = {**first, "content": begun["content"] + first["content"]}
    return [*messages, first, *more]


def _load_model(path: str, trust_remote_code: bool, dtype: str | torch.dtype | None) -> torch.nn.Module:
    options = {"trust_remote_code": trust_remote_code} | ({} if dtype is None else {"dtype": dtype})
    try:
        if find_adapter_config_file(path) is not None:
            model, missing = _load_adapters(path, options)
        elif trust_remote_code and _scores_by_own_code(path):
            model, missing = AutoModel.from_pretrained(path, **options), []
            if not callable(getattr(model, "get_score", None)):
                raise TypeError(f"its class {type(model).__name__} has no `get_score(tokenizer, messages)`.")
        else:
            model, missing = _load_classifier(path, options)
    except (OSError, ValueError, TypeError, ImportError, RuntimeError) as error:
        raise _cannot_load("reward model", path, error) from error
    if missing:
        raise RewardModelError(
            f"The checkpoint {path!r} lacks the weights {missing[:3]} of a {type(model).__name__}. They would be "
            "random, and the rewards too. Give the path of a model that was trained as a reward model."
        )
    return model


def _scores_by_own_code(path: str) -> bool:
    config = AutoConfig.from_pretrained(path, trust_remote_code=True)
    remote_classes = getattr(config, "auto_map", None) or {}
    return "AutoModel" in remote_classes and _CLASSIFIER not in remote_classes


def _load_classifier(path: str, options: dict[str, Any]) -> tuple[torch.nn.Module, list[str]]:
    """Returns the model and the names of the weights that the checkpoint lacks."""
    model, report = AutoModelForSequenceClassification.from_pretrained(path, output_loading_info=True, **options)
    return model, sorted(report["missing_keys"])


def _load_adapters(path: str, options: dict[str, Any]) -> tuple[torch.nn.Module, list[str]]:
    """Returns the base with its adapters merged, and the names of weights that both lack."""
    base_path = PeftConfig.from_pretrained(path).base_model_name_or_path
    base, missing = _load_classifier(base_path, options | {"num_labels": 1})
    brought = load_peft_weights(path, device="cpu")
    lacking = [name for name in missing if not any(key.endswith(f".{name}") for key in brought)]
    if lacking:
        return base, lacking
    model = PeftModelForSequenceClassification.from_pretrained(base, path).merge_and_unload()
    model.config._name_or_path = path  # names the signal
    return model, []


def _cannot_load(what: str, path: str, error: Exception) -> RewardModelError:
    return RewardModelError(
        f"Cannot load the {what} {path!r}: {type(error).__name__}: {error} Check the path, and pass "
        "trust_remote_code=True if the model comes with its own code and you trust it."
    )


def _length_limit(tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> int | None:
    """The most tokens that tokenizer and model take; unset where neither has a limit (ALiBi models)."""
    own = tokenizer.model_max_length  # a number above all lengths where there is none
    limits = [getattr(config, "max_position_embeddings", None), None if own >= VERY_LARGE_INTEGER else own]
    return min((limit for limit in limits if limit is not None), default=None)


def _name_of(model: torch.nn.Module) -> str:
    path = getattr(getattr(model, "config", None), "_name_or_path", "") or ""
    return path.rstrip("/").split("/")[-1] or type(model).__name__


def _chunks(items: list[int], size: int) -> Iterator[list[int]]:
    return (items[i : i + size] for i in range(0, len(items), size))
