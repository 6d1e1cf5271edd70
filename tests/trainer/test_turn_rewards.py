# SPDX-License-Identifier: Apache-2.0
"""Episodes of several turns in training: rewards of turns, advantages of tokens, observations in the loss, metrics."""

import random
from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch
from naming import raises_naming
from tiny import EOS, GRPO, PPO, ScriptedEngine, collected, make_policy, share_of_a, tiny_trainer

from minimind_hf import GRPOConfig, PPOConfig
from minimind_hf.algorithms import rloo_advantages, turn_advantages
from minimind_hf.rollout import Rollout
from minimind_hf.trainer.checkpoints.state import load_rollout_state, save_rollout_state
from minimind_hf.trainer.experience.experience import Experience, joined
from minimind_hf.trainer.experience.measures import measure_experience
from minimind_hf.trainer.experience.micro_batch import select_rows
from minimind_hf.trainer.logs.reward_notes import is_own_metric


@dataclass
class FakeEpisode:
    prompt: dict
    messages: list
    turn_rewards: list[float] | None = None
    environment: object = None
    calls: int = 0
    failed_calls: Counter = field(default_factory=Counter)
    cut_observations: int = 0
    tool_seconds: float = 0.0
    reached_max_turns: bool = False


class Turns(ScriptedEngine):
    """Up to three turns of one to three tokens, with observations between them."""

    def _group(self, prompt, count) -> list[Rollout]:
        return [self._rollout(prompt, number) for number in range(count)]

    def _rollout(self, prompt, number) -> Rollout:
        rng = random.Random(f"{prompt} {number} turns")
        ids, mask = [], []
        for turn in range(rng.randint(1, 3)):
            if turn:
                ids, mask = ids + [200, 201], mask + [0, 0]
            drawn = [rng.randrange(3, 259) for _ in range(rng.randint(0, 2))] + [EOS]
            ids, mask = ids + drawn, mask + [1] * len(drawn)
        scored = self.score(prompt, ids)
        return Rollout(ids, [x * m for x, m in zip(scored, mask, strict=True)], "stop", mask, self.version)

    def score(self, prompt, ids):
        logits = self.model(input_ids=torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1].float()
        logps = torch.log_softmax(logits / self.temperature, dim=-1)
        return logps.gather(1, torch.tensor(ids)[:, None])[:, 0].tolist()

    @torch.no_grad()
    def generate(self, *args):
        return super().generate(*args)


def by_turn(num_turns, completion_ids, **_):
    return [
        [(3 * turn + len(ids)) % 5 / 4 for turn in range(n)] for n, ids in zip(num_turns, completion_ids, strict=True)
    ]


@pytest.fixture
def make(tmp_path):
    def make(config_class=GRPOConfig, reward=by_turn, model=None, **changes):
        settings = (GRPO if config_class is GRPOConfig else PPO) | {"output_dir": str(tmp_path)} | changes
        config = config_class(**settings)
        return tiny_trainer(config, model, reward, engine=Turns(config.temperature))

    return make


def reference(experience, discount=1.0, scale="none"):
    rows = experience.turn_rewards
    width = max(map(len, rows))
    padded = torch.tensor([row + [0.0] * (width - len(row)) for row in rows])
    return turn_advantages(padded, torch.tensor([len(r) for r in rows]), experience.num_generations, discount, scale)


def test_grpo_gives_each_token_the_advantage_of_its_turn(make, tmp_path):
    trainer = make(turn_discount=0.5, scale_rewards="group")
    experience = collected(trainer, 3)
    assert experience.num_turns == [len(row) for row in experience.turn_rewards] and max(experience.num_turns) == 3
    torch.testing.assert_close(experience.rewards, torch.tensor([sum(row) for row in experience.turn_rewards]))
    expected = reference(experience, 0.5, "group")
    torch.testing.assert_close(experience.turn_advantages, expected)
    first = 0
    for batch in trainer.micro_batches(experience):
        for row in range(len(batch)):
            rollout = experience.rollouts[first]
            by_hand = [0.0] * batch.width
            for turn, (start, end) in enumerate(rollout.turns):
                by_hand[start:end] = [expected[first, turn].item()] * (end - start)
            assert batch.advantages[row].tolist() == pytest.approx(by_hand)
            own = [a for a, m in zip(by_hand, rollout.loss_mask, strict=False) if m]
            assert experience.advantages[first].item() == pytest.approx(sum(own) / len(own), abs=1e-6)
            first += 1
        assert batch.scored == [experience.rollouts[first - len(batch) + i].loss_mask for i in range(len(batch))]
    narrow = select_rows(batch, [0])
    assert narrow.scored == [batch.scored[0]] and narrow.advantages.shape == (1, narrow.width)
    save_rollout_state(tmp_path, trainer.args, 1, [batch])
    (loaded,) = load_rollout_state(tmp_path, trainer.args)[1]
    assert loaded.scored == batch.scored and torch.equal(loaded.advantages, batch.advantages)


def test_rewards_of_completions_with_a_discount_count_for_the_last_turn(make):
    experience = collected(make(reward=share_of_a, turn_discount=0.5, advantage_estimator="rloo"), 2)
    assert experience.turn_rewards is None
    experience.turn_rewards = experience.rewards_by_turn
    torch.testing.assert_close(experience.turn_advantages, reference(experience, 0.5))


def test_rewards_on_last_turns_are_leave_one_out(make):
    def last(num_turns, completion_ids, **_):
        return [[0.0] * (n - 1) + [share_of_a([ids])[0]] for n, ids in zip(num_turns, completion_ids, strict=True)]

    by_turns = collected(make(reward=last, advantage_estimator="rloo"), 3)
    plain = collected(make(reward=share_of_a, advantage_estimator="rloo"), 3)
    assert by_turns.turn_advantages is not None and plain.turn_advantages is None
    torch.testing.assert_close(by_turns.advantages, plain.advantages)
    torch.testing.assert_close(plain.advantages, rloo_advantages(plain.rewards, 4))


def test_ppo_puts_rewards_on_the_last_tokens_of_turns(make):
    experience = collected(make(PPOConfig, gamma=1.0, lam=1.0), 8)
    batch = experience.tokens
    for row, rollout in enumerate(experience.rollouts):
        rewards = experience.turn_rewards[row]
        for turn, (start, end) in enumerate(rollout.turns):  # gamma 1, lam 1: the returns are rewards-to-go
            assert batch.returns[row, start:end].tolist() == pytest.approx(
                [sum(rewards[turn:])] * (end - start), abs=1e-5
            )
        outside = batch.loss_mask[row] == 0
        assert not batch.returns[row, outside].any() and not batch.advantages[row, outside].any()


@pytest.mark.parametrize("config_class", [GRPOConfig, PPOConfig])
def test_layouts_train_alike_and_learn(make, config_class):
    after = []
    for layout in ("shared_prompt", "padded"):
        torch.manual_seed(0)
        model = make_policy().double()
        trainer = make(config_class, model=model, forward_layout=layout, bf16=False)
        assert trainer.layout == layout
        trainer.train()
        after.append(torch.cat([p.flatten() for p in trainer.policy.parameters()]))
        assert trainer.state.log_history[0]["sampling/k3"] < 1e-6
    before = torch.cat([p.flatten() for p in make_policy().double().parameters()])
    assert (after[0] - before).abs().max() > 1e-3
    torch.testing.assert_close(after[0], after[1], atol=1e-6, rtol=0)


def test_what_compares_whole_completions_is_refused(make):
    with raises_naming(ValueError, "advantage_estimator", "reinforce_baseline", "turn_discount", 0.9):
        make(advantage_estimator="reinforce_baseline", turn_discount=0.9)
    with raises_naming(ValueError, "multi_objective_aggregation", "normalize_then_sum"):
        make(multi_objective_aggregation="normalize_then_sum", turn_discount=0.9)
    with raises_naming(ValueError, "turn_discount", 0.9, "gamma"):
        make(PPOConfig, turn_discount=0.9)
    with raises_naming(ValueError, "advantage_estimator", "reinforce_baseline"):
        collected(make(advantage_estimator="reinforce_baseline"), 2)


def replies(turn_rewards, num_turns, **_):
    """What the fake environments gave in their replies."""
    return [row or [0.0] * count for row, count in zip(turn_rewards, num_turns, strict=True)]


def with_episodes(trainer, count=2, stand_ins=0):
    """An experience whose episodes have given rewards by turn in the first group alone."""
    prompts = [trainer.train_dataset[number] for number in range(count)]
    experience = Experience(prompts, trainer.args.num_generations, 1, num_stand_ins=stand_ins)
    trainer.rollout(experience)
    experience.episodes = [
        FakeEpisode(
            {**prompts[index // 4], "prompt_ids": prompts[index // 4]["prompt_ids"] + [7] * (index % 2)},
            [{"role": "assistant", "content": f"episode {index}"}],
            [float(index)] * turns if index in (0, 2, 3) else None,
            environment=f"game {index}",
            calls=index,
            failed_calls=Counter(raised=index % 2),
            tool_seconds=0.5,
            reached_max_turns=index % 2 == 0,
        )
        for index, turns in enumerate(experience.num_turns)
    ]
    trainer.agent = SimpleNamespace(
        release=lambda episodes: None, rewarding=lambda episodes: set(), expect_rewards=lambda names: None
    )
    return experience


def test_episodes_bring_prompts_messages_and_rewards(make):
    seen = {}

    def asks(prompts, completions, environments, num_turns, **_):
        seen.update(completions=completions, environments=environments, num_turns=num_turns)
        return [1.0] * len(prompts)

    trainer = make(reward=[asks, replies])
    experience = with_episodes(trainer)
    turns = experience.num_turns
    trainer.score(experience)
    assert seen["environments"] == [f"game {index}" for index in range(8)] and seen["num_turns"] == turns
    assert seen["completions"] == experience.completions == [episode.messages for episode in experience.episodes]
    # The reward of the whole completion, 1.0, is on its last turn.
    for index, row in enumerate(experience.turn_rewards):
        value = float(index) if index in (0, 2, 3) else 0.0
        assert row == [value] * (turns[index] - 1) + [value + 1.0]
        assert experience.rewards[index].item() == sum(row)
    trainer.add_advantages(experience)
    (batch,) = trainer.micro_batches(experience)
    assert batch.prompt_ids == [episode.prompt["prompt_ids"] for episode in experience.episodes]
    assert batch.group_ids == [0, 1, 0, 1, 2, 3, 2, 3] and len(batch.groups()) == 8


def test_an_episode_that_is_left_out_has_no_advantage(make):
    trainer = make(reward=[lambda completions, **_: [None] + [1.0] * (len(completions) - 1), replies])
    experience = with_episodes(trainer)
    trainer.score(experience)
    trainer.add_advantages(experience)
    assert experience.rewards[0].isnan() and all(value != value for value in experience.turn_rewards[0])
    assert not experience.turn_advantages[0].any() and experience.turn_advantages[1:4].any()
    assert not experience.turn_advantages.isnan().any()


def test_stand_ins_and_joining(make):
    trainer = make(reward=[share_of_a, replies])
    parts = [with_episodes(trainer), with_episodes(trainer, stand_ins=1)]
    for part in parts:
        trainer.score(part)
    whole = joined(parts)
    assert len(whole.episodes) == len(whole.turn_rewards) == len(whole.rewards) == 16
    assert whole.turn_rewards[12:] == [[]] * 4 and whole.num_turns[12:] == [0] * 4
    trainer.add_advantages(whole)
    assert not whole.turn_advantages[12:].any() and not whole.advantages.isnan().any()
    counted = whole.counted
    assert len(counted.episodes) == len(counted.turn_rewards) == len(counted.turn_advantages) == 12
    # A part without rewards by turn has them on last turns.
    parts[0].turn_rewards = None
    assert joined(parts).turn_rewards[:8] == parts[0].rewards_by_turn


def test_metrics_of_episodes(make):
    trainer = make(reward=[share_of_a, replies])
    experience = with_episodes(trainer)
    trainer.score(experience)
    trainer.add_advantages(experience)
    measure_experience(experience, ["share_of_a", "replies"], trainer.processing_class)
    logged = experience.metrics.flush(trainer.accelerator, 1)
    tokens = sum(len(rollout.completion_ids) for rollout in experience.rollouts)
    own = sum(sum(rollout.loss_mask) for rollout in experience.rollouts)
    expected = {
        "episodes/turns": sum(experience.num_turns) / 8,
        "episodes/reached_max_turns": 0.5,
        "episodes/cut_observations": 0.0,
        "episodes/observation_share": 1 - own / tokens,
        "completions/mean_length": own / 8,
        "tools/call_frequency": 28 / 8,
        "tools/failure_frequency": 4 / 28,
        "tools/failed/raised": 4 / 28,
        "tools/failed/unparsed": 0.0,
        "tools/seconds": 0.5,
        "rewards/turn_1": sum(row[0] for row in experience.turn_rewards) / 8,
    }
    for name, value in expected.items():
        assert logged[name] == pytest.approx(value, abs=1e-6), name
    assert all(is_own_metric(name) for name in expected)
    assert "rewards/turn_4" not in logged


def test_truncated_episodes_that_are_masked_are_not_scored(make):
    trainer = make(mask_truncated_completions=True)
    experience = collected(trainer, 2)
    experience.rollouts[3].finish_reason = "length"
    (batch,) = trainer.micro_batches(experience)
    assert not any(batch.scored[3]) and not batch.loss_mask[3].any() and any(batch.scored[2])
