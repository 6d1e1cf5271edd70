# SPDX-License-Identifier: Apache-2.0
"""Tools, environments and trainers for tests of runs with episodes, and an engine that plays the same ones however a
run is split."""

import random
from collections import Counter as Counts
from contextlib import nullcontext

import torch
from chat_tokenizers import chat_tokenizer
from tiny import GRPO, PPO, TRAINERS, ScriptedEngine, make_policy, trying_layouts_once

from minimind_hf import Conversation, DistillTrainer, GRPOConfig, GRPOTrainer, PPOConfig, PPOTrainer, Reply
from minimind_hf.rollout.transcript import Transcript

TOKENIZER, ENDS = chat_tokenizer("qwen3")
PLAIN = 256  # ids below are bytes
ENDINGS = [*range(9, len(TOKENIZER), 10), *ENDS]  # a random policy then ends a turn about every tenth token
EPISODES = {"max_completion_length": 160, "max_turn_length": 48, "thinking_ratio": 0.0}
CALL = '<tool_call>\n{{"name": "add", "arguments": {{"number": {}}}}}\n</tool_call>'


def make_rows(count: int = 8) -> list[dict]:
    return [{"prompt": [{"role": "user", "content": f"Go to {n}."}], "number": n} for n in range(count)]


class Counter:
    """Has a tool, says something at the start, and rewards at the end."""

    def reset(self, number, **row):
        self.count = number
        return f" You are at {number}."

    def add(self, number: int) -> str:
        """Adds a number.

        Args:
            number: What to add.
        """
        self.count += number
        return f"Now at {self.count}."

    def get_reward(self):
        return (self.count % 5) / 5


class Game(Conversation):
    """Up to three turns, more for odd rows; rewards each, by its length."""

    def reset(self, number, **row):
        self.number = number

    def respond(self, turn):
        done = turn.number == 1 + self.number % 2
        return Reply(None if done else "Go on.", reward=self.reward(turn), done=done)

    def reward(self, turn):
        return (len(turn) % 4) / 4


class SometimesRewarding(Game):
    """Rewards turns in one row of all."""

    def reward(self, turn):
        return super().reward(turn) if self.number == 3 else None


class Remembering(Game):
    """Counts its games and has a generator of its own: both outlast an episode, and it says what they are at."""

    def __init__(self):
        self.games, self.rng = 0, random.Random(5)

    def reset(self, number, **row):
        super().reset(number)
        self.games += 1
        return f" Game {self.games}, luck {self.rng.randrange(100)}."


class Saved(Remembering):
    def state_dict(self):
        return {"games": self.games, "rng": self.rng.getstate()}

    def load_state_dict(self, state):
        self.games = state["games"]
        self.rng.setstate(state["rng"])


class ScriptedPlayer(ScriptedEngine):
    """Plays turns that depend on the prompt and on the number of the episode in its group alone.

    Whatever the shape of batches, ranks and accumulation, the same prompts get the same episodes.
    """

    def converse(self, sessions, sampling):
        before = Counts()
        rollouts = []
        for session in sessions:
            prompt = tuple(session.prompt_ids)
            rollouts.append(self._play(session, before[prompt], sampling))
            before[prompt] += 1
        return rollouts

    def _play(self, session, number, sampling):
        rng, transcript = random.Random(f"{session.prompt_ids} {number}"), Transcript(sampling)
        goes_on = True
        while goes_on:
            ids = self._turn(rng)
            reason = "stop" if len(ids) <= transcript.room else "length"
            ids = ids[: transcript.room]
            transcript.add_turn(ids, self._scored([*session.prompt_ids, *transcript.ids], ids), reason)
            goes_on = transcript.answer(session.observe(ids, reason))
        return transcript.rollout(self.version)

    def _turn(self, rng) -> list[int]:
        if rng.random() < 0.5:
            return TOKENIZER.encode(CALL.format(rng.randrange(9))) + ENDS[:1]
        return [rng.randrange(PLAIN) for _ in range(rng.randint(1, 20))] + ENDS[:1]

    @torch.no_grad()
    def _scored(self, before, ids):
        logits = self.model(input_ids=torch.tensor([before + ids])).logits[0, len(before) - 1 : -1].float()
        return (logits / self.temperature).log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0].tolist()


def agent_policy(seed: int = 0, ends: list[int] = ENDINGS, **config):
    """A random MiniMind with the vocabulary of the tokenizer, which ends turns often."""
    model = make_policy(seed, vocab_size=len(TOKENIZER), **config)
    model.generation_config.eos_token_id = ends
    return model


def agent_trainer(
    folder,
    config_class=GRPOConfig,
    model=None,
    rewards=None,
    rows=None,
    engine=None,
    peft_config=None,
    args=None,
    **settings,
) -> GRPOTrainer | PPOTrainer | DistillTrainer:
    """A trainer of episodes.

    Args:
        config_class: Decides the algorithm.
        engine: One of its own, or `"scripted"`; unset, the config's.
        args: A config that is made already, in place of `config_class`.
        settings: Of the config, and `environment_factory`, `tools`, `eval_dataset` and `teacher_model` of the trainer.
    """
    of_trainer = ("environment_factory", "tools", "eval_dataset", "teacher_model")
    given = {name: settings.pop(name) for name in of_trainer if name in settings}
    is_ppo = issubclass(config_class if args is None else type(args), PPOConfig)
    args = args or config_class(output_dir=str(folder), **(PPO if is_ppo else GRPO) | EPISODES | settings)
    is_usual = model is None and peft_config is None
    with trying_layouts_once("episodes", type(args)) if is_usual else nullcontext():
        return TRAINERS.get(type(args), GRPOTrainer)(
            model=agent_policy() if model is None else model,
            reward_funcs=rewards,
            args=args,
            train_dataset=make_rows() if rows is None else rows,
            processing_class=TOKENIZER,
            rollout_engine=ScriptedPlayer(args.temperature) if engine == "scripted" else engine,
            peft_config=peft_config,
            **given,
        )
