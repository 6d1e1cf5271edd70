# SPDX-License-Identifier: Apache-2.0
"""An episode is exactly what was drawn and what was answered, whatever was said: no token is encoded again.

Real episodes with real templates are played on the real scheduler; only the model is scripted. It says random tokens,
half tags and calls with hostile arguments, and tools answer in kind. The decoder writes down all that it is given.
"""

import json
import random
from dataclasses import dataclass, field

import pytest
import torch
from chat_tokenizers import HOSTILE, chat_tokenizer

from minimind_hf.agent import Agent, Conversation, Reply
from minimind_hf.rollout import SamplingParams
from minimind_hf.rollout.observers import Observers
from minimind_hf.rollout.torch.decoder import Decoder
from minimind_hf.rollout.torch.sessions import SessionScheduler

TEMPLATES = ("minimind", "qwen2_5", "qwen3", "llama3_2", "chatml")
PIECES = (
    *HOSTILE,
    "</think>", "< /think>", "</think", "</THINK>", "<think>\n\n</think>\n\n", "</think>\n\n</think>",
    "<think><tool_call>", "<tool_call>", "<tool_ call>", "</tool_call>", '<tool_call>{"name":',
    "<tool_response>\n6\n</tool_response>", "\U0001f469\u200d\U0001f467", "\u00e9", "e\u0301", "   \n\t ", " \n\n",
    "\r\n", "a", " a", "  a", "{}", "\\u003c", "&lt;", "\ufeff",
)  # fmt: skip


@dataclass
class Said:
    """What the decoder was given of one episode, and where its script stands."""

    turns: list[list[int]]
    number: int = 0
    position: int = 0
    given: list[int] = field(default_factory=list)

    @property
    def next_token(self) -> int:
        return self.turns[self.number][self.position]

    def take(self, token: int) -> None:
        assert token == self.next_token
        self.given.append(token)
        self.position += 1


class ScriptedDecoder(Decoder):
    """Says the turns of one script per group."""

    can_refill, device = True, torch.device("cpu")

    def __init__(self, scripts: list[list[list[int]]], vocab_size: int):
        self.said = [Said(turns) for turns in scripts]
        self.vocab_size = vocab_size
        self.prefilled, self.rows = 0, []

    def prefill(self, prompt_ids):
        new = self.said[self.prefilled : self.prefilled + len(prompt_ids)]
        self.prefilled += len(new)
        return self._logits(new)

    def start_rows(self, groups):
        self.rows += [self.said[group] for group in groups]

    def step(self, token_ids):
        for row, token in zip(self.rows, token_ids.tolist(), strict=True):
            row.take(token)
        return self._logits(self.rows)

    def reorder(self, rows):
        self.rows = [self.rows[number] for number in rows]

    def park(self, rows, excess):
        assert not any(excess)
        return [self.rows[number] for number in rows]

    def extend(self, parked, token_ids):
        for row, ids in zip(parked, token_ids, strict=True):
            row.take(ids[0])  # the end of the turn, which had been drawn but not computed
            row.given += ids[1:]
            row.number, row.position = row.number + 1, 0
        self.rows += parked
        return self._logits(parked)

    def _logits(self, rows):
        logits = torch.full((len(rows), self.vocab_size), float("-inf"))
        logits[range(len(rows)), [row.next_token for row in rows]] = 0.0
        return logits


class Recorded:
    """An episode that remembers what it was asked and what it answered."""

    def __init__(self, episode):
        self.episode, self.prompt_ids, self.row = episode, episode.prompt_ids, episode.row
        self.asked, self.answers = [], []

    def observe(self, ids, finish_reason):
        answer = self.episode.observe(ids, finish_reason)
        self.asked.append(list(ids))
        self.answers.append(None if answer is None else list(answer))
        return answer


class Echo(Conversation):
    """Says back what it heard, and something hostile."""

    def reset(self, seed):
        self.rng = random.Random(seed)

    def respond(self, turn):
        return Reply(text(self.rng) + turn + text(self.rng) or "?", done=self.rng.random() < 0.2)


def echo(said: str, others: list[str]) -> str:
    """Says it again.

    Args:
        said: A text.
        others: More texts.
    """
    return said + "".join(others)


def text(rng: random.Random) -> str:
    return "".join(rng.choices(PIECES, k=rng.randint(0, 4)))


def turn(rng: random.Random, tokenizer, ends: list[int]) -> list[int]:
    """Random tokens, hostile text, and often a call; the end is behind them."""
    call = {"name": "echo", "arguments": {"said": text(rng), "others": [text(rng)]}}
    if tokenizer.name_or_path == "llama3_2":
        written = json.dumps({"name": "echo", "parameters": call["arguments"]}, ensure_ascii=rng.random() < 0.5)
    else:
        written = f"<tool_call>\n{json.dumps(call, ensure_ascii=rng.random() < 0.5)}\n</tool_call>"
    parts = [
        [rng.randrange(len(tokenizer)) for _ in range(rng.randint(0, 12))],
        *(tokenizer(each, add_special_tokens=False)["input_ids"] for each in (text(rng), written, text(rng))),
    ]
    kept = parts[2:3] if rng.random() < 0.5 else [each for each in parts if rng.random() < 0.8]
    return [token for each in kept for token in each if token not in ends] + [rng.choice(ends)]


def play(name: str, count: int, seed: int = 0) -> tuple[list[Recorded], list, list[Said], object]:
    """Plays hostile episodes of up to 5 turns.

    Returns them, their rollouts, what the decoder was given, and the tokenizer.
    """
    tokenizer, ends = chat_tokenizer(name)
    rng = random.Random(f"{name} {seed}")
    agent = Agent(
        [] if name == "chatml" else [echo],
        Echo if name == "chatml" or seed % 2 else None,
        tokenizer,
        tuple(ends),
        max_turns=5,
        max_observation_length=60,
        tool_timeout=30.0,
        tool_workers=4,
    )
    examples = [
        {
            "prompt": [{"role": "user", "content": "Say."}],
            "prompt_ids": [3 + number // 100, 3 + number % 100],
            "index": number,
            "columns": {},
            "template_kwargs": {},
            "tools": None,
        }
        for number in range(count)
    ]
    sessions = [Recorded(episode) for episode in agent.start(examples, 1, seed)]
    scripts = [[turn(rng, tokenizer, ends) for _ in range(5)] for _ in sessions]
    decoder = ScriptedDecoder(scripts, len(tokenizer))
    sampling = SamplingParams(400, 1.0, tuple(ends), greedy=True, max_turn_length=120)
    with Observers(4) as observers:
        rollouts = SessionScheduler(decoder, sessions, sampling, observers, max_batch_rows=200).run()
    agent.close()
    return sessions, rollouts, decoder.said, tokenizer


def assert_nothing_drifted(session: Recorded, rollout, said: Said) -> None:
    turns = said.turns[: said.number] + [said.turns[said.number][: said.position + 1]]
    assert session.asked == turns  # the episode read what was drawn
    assert len(session.episode.messages) >= len(turns) == session.episode.num_turns
    ids, mask = [], []
    for number, drawn in enumerate(turns):
        answer = session.answers[number] if number < len(turns) - 1 else []
        ids += drawn + answer
        mask += [1] * len(drawn) + [0] * len(answer)
    assert rollout.completion_ids == ids and rollout.loss_mask == mask
    assert rollout.completion_ids[:-1] == said.given  # and every later token was drawn behind exactly these


def encodes_differently(tokenizer, ids: list[int]) -> bool:
    return tokenizer(tokenizer.decode(ids), add_special_tokens=False)["input_ids"] != ids


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("count", [40, pytest.param(2000, marks=pytest.mark.slow)])
def test_no_token_differs_from_what_was_drawn_and_answered(name, count):
    different, turns, lengths = 0, 0, []
    for seed in (0, 1):
        sessions, rollouts, decoded, tokenizer = play(name, count // 2, seed)
        for session, rollout, said in zip(sessions, rollouts, decoded, strict=True):
            assert_nothing_drifted(session, rollout, said)
            different += encodes_differently(tokenizer, rollout.completion_ids)
            turns += len(session.asked)
            lengths.append(len(rollout.completion_ids))
    assert turns > 1.5 * count and max(lengths) > 150
    assert different > 0.5 * count  # had the text been encoded again
    print(f"{name}: {count} episodes, {turns} turns, {sum(lengths)} tokens; encoding again changes {different}")
