# SPDX-License-Identifier: Apache-2.0
"""A thousand episodes leave nothing behind: no thread, no environment, no memory, though some of their tools hang."""

import gc
import json
import random
import threading
import time
import weakref

from chat_tokenizers import chat_tokenizer

from minimind_hf.agent import Agent
from minimind_hf.rollout import Rollout, SamplingParams, play_in_rounds

EPISODES, ROLLOUTS = 40, 25
TOKENIZER, ENDS = chat_tokenizer("qwen3")
TOO_LONG, LIMIT = 0.3, 0.1


class Shop:
    """Has a tool that answers, one that raises and one that hangs, and 100 kB."""

    made, living = 0, weakref.WeakSet()

    def __init__(self):
        type(self).made += 1
        self.living.add(self)
        self.stock = bytearray(100_000)

    def reset(self, seed):
        self.sold = 0

    def sell(self, count: int) -> str:
        """Sells.

        Args:
            count: How many.
        """
        self.sold += count
        return f"Sold {count} of many. " * 20

    def refuse(self) -> str:
        """Refuses."""
        raise OSError("closed")

    def hang(self) -> str:
        """Takes too long."""
        time.sleep(TOO_LONG)

    def get_reward(self):
        return float(self.sold)


class Speaker:
    """An engine whose turns call a tool, or end the episode."""

    tool_workers = 8

    def __init__(self):
        self.rng = random.Random(0)

    def generate(self, prompt_ids, num_generations, sampling):
        return [self._turn() for _ in prompt_ids]

    def _turn(self):
        name = self.rng.choices(("sell", "refuse", "hang", None), (20, 8, 0.2, 8))[0]
        call = json.dumps({"name": name, "arguments": {"count": 2} if name == "sell" else {}})
        text = "That is all." if name is None else f"<tool_call>\n{call}\n</tool_call>"
        ids = TOKENIZER(text, add_special_tokens=False)["input_ids"] + ENDS[:1]
        return Rollout(ids, [-1.0] * len(ids), "stop")


def resident_mb() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 2**20


def play_one_rollout(agent: Agent, engine: Speaker, seed: int) -> list:
    example = {
        "prompt": [{"role": "user", "content": "Sell."}],
        "prompt_ids": [3, 4, 5],
        "index": seed,
        "columns": {},
        "template_kwargs": {},
        "tools": None,
    }
    episodes = agent.start([example] * (EPISODES // 8), 8, seed)
    play_in_rounds(engine, episodes, SamplingParams(2000, 1.0, tuple(ENDS)))
    rewards = agent.reward_functions(True)[0]([episode.environment for episode in episodes])
    assert len(rewards) == EPISODES
    agent.release(episodes)
    return episodes


def test_a_thousand_episodes_leave_nothing_behind():
    before = set(threading.enumerate())  # those of other tests may end meanwhile
    agent = Agent(
        None, Shop, TOKENIZER, tuple(ENDS), max_turns=4, max_observation_length=64, tool_timeout=LIMIT, tool_workers=8
    )
    engine = Speaker()
    hung, memory, threads = 0, [], []
    for number in range(ROLLOUTS):
        episodes = play_one_rollout(agent, engine, number)
        hung += sum(episode.failed_calls["timeout"] for episode in episodes)
        del episodes
        gc.collect()
        memory.append(resident_mb())
        threads.append(len(set(threading.enumerate()) - before))
    time.sleep(TOO_LONG)
    gc.collect()
    assert hung > 0
    assert max(threads) <= 2 * 8 + hung
    assert len(Shop.living) <= EPISODES  # those that wait for the next episodes
    assert Shop.made <= EPISODES + hung + 1  # the first is looked at for its tools
    assert memory[-1] - memory[5] < 16
    agent.close()
    deadline = time.monotonic() + 5
    while set(threading.enumerate()) - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert set(threading.enumerate()) <= before
