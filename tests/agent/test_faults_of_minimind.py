# SPDX-License-Identifier: Apache-2.0
"""What MiniMind's agent script gets wrong, as docs/migrate-from-minimind.md lists it, does not happen here."""

import json
import time

import pytest
import torch
from chat_tokenizers import chat_tokenizer
from sessions import FixedSession, assert_episode_logprobs, forward_logprobs
from tiny import GRPO, make_policy, random_ids

from minimind_hf import Conversation, GRPOConfig, GRPOTrainer, Reply, SamplingParams, TorchEngine
from minimind_hf.agent import Agent, calculate
from minimind_hf.rollout.torch import engine as torch_engine

TOKENIZER, ENDS = chat_tokenizer("minimind")
ROWS = [{"prompt": [{"role": "user", "content": f"Task {number}."}]} for number in range(8)]
CALL = '<tool_call>\n{"name": "calculate", "arguments": {"expression": "6*7"}}\n</tool_call>'


def begin(thinking: bool):
    """An episode, and what the chat template needs to render its history."""
    settings = {"max_turns": None, "max_observation_length": 64, "tool_timeout": 5.0, "tool_workers": 1}
    agent = Agent([calculate], None, TOKENIZER, tuple(ENDS), **settings)
    prompt, arguments = ROWS[0]["prompt"], {"open_thinking": thinking}
    rendering = {"tools": agent.schemas({}), "add_generation_prompt": True, "return_dict": False, **arguments}
    ids = TOKENIZER.apply_chat_template(prompt, **rendering)
    example = {"prompt": prompt, "prompt_ids": ids, "index": 0, "columns": {}}
    (episode,) = agent.start([example | {"template_kwargs": arguments, "tools": None}], 1, seed=0)
    return episode, rendering


def answered(turn: str, thinking: bool = True) -> tuple[list[int], list[int]]:
    """The ids that answer a turn, and those that cutting a history rendered again by length gives instead."""
    episode, rendering = begin(thinking)
    ids = TOKENIZER(turn, add_special_tokens=False)["input_ids"] + [ENDS[0]]
    answer = episode.observe(ids, "stop")
    history = TOKENIZER.apply_chat_template(episode.prompt["prompt"] + episode.messages, **rendering)
    return answer, history[len(episode.prompt_ids) + len(ids) :]


def test_whitespace_in_a_thought_does_not_shift_the_answer():
    plain, cut = answered(f"hm\n</think>\n\n{CALL}")
    assert plain == cut  # written as the template would have
    assert TOKENIZER.decode(plain).startswith("\n<|im_start|>user\n<tool_response>\n42\n</tool_response><|im_end|>\n")
    for turn in (f"\n\n hm \n\n\n</think>\n\n{CALL}", f"hm</think>\n\n\n{CALL} \n"):
        answer, cut = answered(turn)
        assert answer == plain
        assert cut != plain


class ThreeTurns(Conversation):
    def reset(self, **row):
        self.turns = 0

    def respond(self, turn):
        self.turns += 1
        return Reply("Go on.", done=self.turns == 3)


def test_the_end_of_each_turn_is_trained(tmp_path):
    """Every turn is one token, its end. Without the ends there would be nothing to train."""
    model = make_policy(vocab_size=len(TOKENIZER))
    model.generation_config.eos_token_id = list(range(len(TOKENIZER)))
    args = GRPOConfig(output_dir=str(tmp_path), **GRPO | {"max_completion_length": 96, "max_steps": 1})
    kept = []

    def low_ids(completion_ids, **kwargs):
        kept.extend(completion_ids)
        return [sum(token < 130 for token in ids) / len(ids) for ids in completion_ids]

    trainer = GRPOTrainer(model, low_ids, args, ROWS, processing_class=TOKENIZER, environment_factory=ThreeTurns)
    before = [parameter.clone() for parameter in trainer.policy.parameters()]
    trainer.train()
    assert [len(ids) for ids in kept] == [3] * 8
    record = trainer.state.log_history[0]
    assert record["episodes/turns"] == record["completions/mean_length"] == 3.0
    assert any(not torch.equal(*pair) for pair in zip(before, trainer.policy.parameters(), strict=True))


def sampling(temperature: float) -> SamplingParams:
    return SamplingParams(max_completion_length=60, max_turn_length=20, temperature=temperature, eos_token_ids=ENDINGS)


ENDINGS = tuple(range(2, 40))


def sessions(count: int) -> list[FixedSession]:
    return [FixedSession(ids, [[7, 8, 9], [11, 12]]) for ids in random_ids(count, low=20, high=30)]


def test_logprobs_are_those_of_the_temperature_that_sampled():
    model, played, engine = make_policy(scale=2.0), sessions(6), TorchEngine()
    engine.sync_weights(model, 1)
    rollouts = engine.converse(played, sampling(0.8))
    assert_episode_logprobs(model, played, rollouts, 0.8, atol=1e-5, rtol=0)
    for session, rollout in zip(played, rollouts, strict=True):
        mine = torch.tensor(rollout.loss_mask) == 1
        at_1 = forward_logprobs(model, session, rollout, 1.0)
        assert (torch.tensor(rollout.logprobs) - at_1)[mine].abs().max() > 0.05


def test_episodes_are_decoded_together_and_no_token_twice(monkeypatch):
    computed, steps = [], []

    class Counting(torch_engine.FastDecoder):
        def prefill(self, prompt_ids):
            computed.append(sum(map(len, prompt_ids)))
            return super().prefill(prompt_ids)

        def extend(self, parked, token_ids):
            computed.append(sum(map(len, token_ids)))
            return super().extend(parked, token_ids)

        def step(self, token_ids):
            computed.append(len(token_ids))
            steps.append(len(token_ids))
            return super().step(token_ids)

    model, engine, played = make_policy(scale=2.0), TorchEngine(path="fast"), sessions(8)
    engine.sync_weights(model, 1)
    engine.converse(sessions(1), sampling(0.8))  # the first one tries whether the model can be continued
    monkeypatch.setattr(torch_engine, "FastDecoder", Counting)
    rollouts = engine.converse(played, sampling(0.8))
    pairs = list(zip(played, rollouts, strict=True))
    assert sum(computed) == sum(len(each.prompt_ids) + len(rollout.completion_ids) - 1 for each, rollout in pairs)
    # From the start in every turn:
    again = sum(len(each.prompt_ids) + end for each, rollout in pairs for _, end in rollout.turns)
    assert again > 1.5 * sum(computed)
    assert len(steps) < sum(steps) / 3  # some rows of the eight in a step, until the last ones are alone


@pytest.mark.parametrize(
    "expression",
    ["__import__('os').getcwd()", "().__class__.__base__", "print(1)", "(lambda: 1)()", "[1 for _ in '12']", "exit"],
)
def test_the_calculator_runs_no_code(expression):
    with pytest.raises(ValueError):
        calculate(expression)
    episode, _ = begin(False)
    call = f"<tool_call>{json.dumps({'name': 'calculate', 'arguments': {'expression': expression}})}</tool_call>"
    answer = episode.observe(TOKENIZER(call, add_special_tokens=False)["input_ids"] + [ENDS[0]], "stop")
    assert "Error: calculate:" in TOKENIZER.decode(answer) and dict(episode.failed_calls) == {"raised": 1}


def test_the_calculator_refuses_what_would_never_end():
    start = time.perf_counter()
    for expression in ("9**9**9**9", "2**100000*3**100000", "10**4000*10**4000"):
        with pytest.raises(ValueError):
            calculate(expression)
    assert time.perf_counter() - start < 1
