# SPDX-License-Identifier: Apache-2.0
"""Trainers with tools, environments and rollout functions: what is refused before weights are loaded, what is trained
on, and what reward functions see."""

import math

import datasets
import pytest
import torch
from chat_tokenizers import chat_tokenizer
from naming import raises_naming
from tiny import GRPO, PPO, make_policy, make_tokenizer

from minimind_hf import Conversation, GRPOConfig, GRPOTrainer, PPOConfig, PPOTrainer, Reply, Rollout
from minimind_hf.agent import AgentError, calculate
from minimind_hf.rollout import EngineMismatchError, TorchEngine
from minimind_hf.trainer.experience.audit import check_episodes

TOKENIZER, ENDS = chat_tokenizer("qwen3")
ROWS = [{"prompt": [{"role": "user", "content": f"What is {n} + 1?"}], "answer": str(n + 1)} for n in range(8)]
# A random policy ends a turn about every tenth token.
ENDINGS = [*range(9, len(TOKENIZER), 10), *ENDS]
EPISODES = {"max_completion_length": 96, "max_turn_length": 24, "thinking_ratio": 0.0}


class Game(Conversation):
    """Three turns; the reward of each depends on its length."""

    def reset(self, **row):
        self.turns = 0

    def respond(self, turn):
        self.turns += 1
        return Reply("Go on.", reward=float(len(turn) % 3), done=self.turns == 3)


class Counter:
    def reset(self, **row):
        self.count = 0

    def add(self, number: int) -> str:
        """Adds.

        Args:
            number: What to add.
        """
        self.count += number
        return str(self.count)

    def get_reward(self):
        return float(self.count)


def policy(seed: int = 0):
    model = make_policy(seed, vocab_size=len(TOKENIZER))
    model.generation_config.eos_token_id = ENDINGS
    return model


def make_trainer(tmp_path, trainer=GRPOTrainer, model=None, rewards=None, **arguments):
    base, config = (GRPO, GRPOConfig) if trainer is GRPOTrainer else (PPO, PPOConfig)
    settings = {
        name: arguments.pop(name)
        for name in list(arguments)
        if name in set(config.__dataclass_fields__) - {"rollout_engine"}
    }
    args = config(output_dir=str(tmp_path), **base | EPISODES | settings)
    data = arguments.pop("train_dataset", ROWS)
    return trainer(model or policy(), rewards, args, data, processing_class=TOKENIZER, **arguments)


def first_record(trainer) -> dict:
    return next(record for record in trainer.state.log_history if "loss" in record)


@pytest.mark.parametrize("sampling", [{}, {"top_p": 0.9, "top_k": 40}], ids=["whole", "truncated"])
@pytest.mark.parametrize("trainer_class", [GRPOTrainer, PPOTrainer])
def test_a_conversation_is_trained_on_and_starts_at_ratio_1(tmp_path, trainer_class, sampling):
    trainer = make_trainer(tmp_path, trainer_class, environment_factory=Game, **sampling)
    before = {name: each.clone() for name, each in trainer.policy.named_parameters()}
    trainer.train()
    record = first_record(trainer)
    assert record["ratio_mean"] == pytest.approx(1.0, abs=1e-5)
    assert record["sampling/audit_max" if "sampling/audit_max" in record else "sampling/audit"] < 1e-4
    assert record["sampling/sampling_logp_difference/max"] < 1e-4
    assert record["episodes/turns"] > 1.5
    assert record["rewards/Game/mean"] == pytest.approx(record["reward"], abs=1e-5)
    assert any(not torch.equal(each, before[name]) for name, each in trainer.policy.named_parameters())


def test_get_reward_is_enough_of_a_reward_and_weights_are_those_of_the_functions(tmp_path):
    trainer = make_trainer(tmp_path, environment_factory=Counter)
    assert trainer.scorer.names == ["Counter"] and trainer.scorer.weights.tolist() == [1.0]
    trainer = make_trainer(tmp_path, rewards=["length"], environment_factory=Counter, reward_weights=[0.5])
    assert trainer.scorer.names == ["length_reward", "Counter"] and trainer.scorer.weights.tolist() == [0.5, 1.0]


def test_reward_functions_see_messages_environments_and_columns(tmp_path):
    seen = {}

    def judge(prompts, completions, answer, environments, num_turns, **kwargs):
        seen.update(locals())
        return [float(len(environments)) for _ in completions]

    make_trainer(tmp_path, rewards=judge, tools=[calculate], environment_factory=Counter, max_steps=1).train()
    assert all(type(each) is Counter for each in seen["environments"])
    assert all(completion[0]["role"] == "assistant" for completion in seen["completions"])
    assert len(seen["answer"]) == len(seen["num_turns"]) == 8
    assert [message["role"] for message in seen["prompts"][0]] == ["user"]


def test_the_prompt_shows_the_tools_and_what_the_environment_says(tmp_path):
    class Speaks(Counter):
        def reset(self, answer, **row):
            super().reset()
            return f" It is {answer}."

    seen = []

    def judge(prompts, **kwargs):
        seen.extend(prompts)
        return [0.0] * len(prompts)

    trainer = make_trainer(tmp_path, rewards=judge, tools=[calculate], environment_factory=Speaks, max_steps=1)
    shown = TOKENIZER.decode(trainer.train_dataset[0]["prompt_ids"])
    assert '"calculate"' in shown and '"add"' in shown
    trainer.train()
    assert all(prompt[-1]["content"].endswith(".") and "It is" in prompt[-1]["content"] for prompt in seen)


def test_evaluation_plays_episodes_too(tmp_path):
    trainer = make_trainer(tmp_path, environment_factory=Game, eval_dataset=ROWS[:3], per_device_eval_batch_size=8)
    metrics = trainer.evaluate()
    assert metrics["eval_episodes/turns"] > 1.5
    assert math.isfinite(metrics["eval_rewards/Game/mean"])
    assert trainer.evaluate()["eval_reward"] == metrics["eval_reward"]


def test_without_a_data_set_the_environment_writes_the_prompts(tmp_path):
    class Writes(Counter):
        def reset(self, seed, **row):
            super().reset()
            return f"Task {seed % 97}."

    trainer = make_trainer(tmp_path, environment_factory=Writes, train_dataset=None, max_steps=2)
    trainer.train()
    assert trainer.state.global_step == 2
    with raises_naming(ValueError, "max_steps", "train_dataset"):
        make_trainer(tmp_path, environment_factory=Writes, train_dataset=None, max_steps=-1)


def test_rows_may_leave_out_their_prompts(tmp_path):
    class Writes(Counter):
        def reset(self, task, **row):
            super().reset()
            return task

    rows = datasets.Dataset.from_dict({"task": [f"Task {n}" for n in range(8)]})
    trainer = make_trainer(tmp_path, environment_factory=Writes, train_dataset=rows, max_steps=1)
    trainer.train()
    assert trainer.state.global_step == 1


def undescribed(a):
    return a


class Bare:
    pass


class Silent:
    def reset(self, **row):
        pass


@pytest.mark.parametrize(
    ("arguments", "pieces"),
    [
        ({"tools": [undescribed], "rewards": "length"}, ("undescribed", "'a'")),
        ({"tools": [lambda: 1], "rewards": "length"}, ("<lambda>",)),
        ({"environment_factory": Bare}, ("environment_factory", "Bare", "reset")),
        ({"environment_factory": Silent}, ("reward_funcs", "get_reward")),
        ({"tools": [calculate]}, ("reward_funcs",)),
        ({"environment_factory": {"a": Counter}}, ("environment", "'a'")),
        ({"tools": [calculate], "rewards": "length", "train_dataset": [{"prompt": "text"}] * 8}, ("string",)),
        (
            {
                "tools": [calculate],
                "rewards": "length",
                "train_dataset": [{"prompt": ROWS[0]["prompt"], "tools": '[{"name": "other"}]'}] * 8,
            },
            ("other", "calculate"),
        ),
    ],
)
def test_what_cannot_be_played_is_refused_before_weights_are_loaded(tmp_path, arguments, pieces):
    rewards = arguments.get("rewards")
    others = {name: value for name, value in arguments.items() if name != "rewards"}
    with raises_naming(ValueError, *pieces):
        make_trainer(tmp_path, model="a/model/that/is/nowhere", rewards=rewards, **others)


def test_a_template_without_tools_is_refused_by_name(tmp_path):
    args = GRPOConfig(output_dir=str(tmp_path), **GRPO)
    with raises_naming(ValueError, "chat template", "tool"):
        GRPOTrainer(policy(), "length", args, ROWS, processing_class=make_tokenizer(), tools=[calculate])


class Shifted(TorchEngine):
    """An engine that reports another log-probability for one token of a second turn."""

    def converse(self, sessions, sampling):
        rollouts = super().converse(sessions, sampling)
        index, rollout = next((i, each) for i, each in enumerate(rollouts) if len(each.turns) > 1)
        rollout.logprobs[rollout.turns[1][0]] -= 0.5
        self.shifted = index
        return rollouts


def test_the_audit_names_the_turn_of_a_misplaced_token(tmp_path):
    engine = Shifted()
    trainer = make_trainer(tmp_path, environment_factory=Game, rollout_engine=engine)
    with pytest.raises(EngineMismatchError) as raised:
        trainer.train()
    assert f"Episode {engine.shifted}, turn 2, its token 0" in str(raised.value)


def test_the_audit_takes_small_differences_and_no_nan():
    rollout = Rollout([5, 6, 7], [-1.0, 0.0, -2.0], "stop", loss_mask=[1, 0, 1])
    assert check_episodes([rollout], [torch.tensor([-1.005, 9.0, -2.0])], 0.01) == pytest.approx(0.005, abs=1e-6)
    with pytest.raises(EngineMismatchError, match="turn 2"):
        check_episodes([rollout], [torch.tensor([-1.0, 0.0, math.nan])], 0.01)


def test_tool_latency_and_batch_rows_change_no_token(tmp_path):
    import random
    import time

    drawn = []

    class Slow(Game):
        delay = 0.0

        def respond(self, turn):
            time.sleep(random.random() * self.delay)
            return super().respond(turn)

    for delay, rows in ((0.0, 64), (0.2, 64), (0.2, 4), (0.2, 1)):
        Slow.delay = delay
        trainer = make_trainer(tmp_path, environment_factory=Slow, max_batch_rows=rows, max_steps=1)
        completions = []
        original = trainer.record
        trainer.record = lambda experience, keep=completions, go=original: (
            keep.extend(rollout.completion_ids for rollout in experience.rollouts),
            go(experience),
        )
        trainer.train()
        drawn.append(completions)
    assert drawn[0] == drawn[1] == drawn[2] == drawn[3]


def test_trls_name_for_the_number_of_turns_holds(tmp_path):
    trainer = make_trainer(tmp_path, environment_factory=Game, max_tool_calling_iterations=1, max_steps=1)
    trainer.train()
    record = first_record(trainer)
    assert record["episodes/turns"] <= 2 and record["episodes/reached_max_turns"] > 0


def test_max_turns_and_trls_name_must_agree(tmp_path):
    with raises_naming(ValueError, "max_turns", 5, "max_tool_calling_iterations", 1):
        GRPOConfig(output_dir=str(tmp_path), max_turns=5, max_tool_calling_iterations=1, use_cpu=True)


# rollout_func


def rolls_out(prompts, trainer, **changes):
    ids = [[5, 6, 7, ENDS[0]]] * len(prompts)
    prompt_ids = trainer.processing_class.apply_chat_template(prompts, add_generation_prompt=True, return_dict=False)
    return {
        "prompt_ids": prompt_ids,
        "completion_ids": ids,
        "logprobs": [[-1.0, -9.0, -1.0, -1.0]] * len(prompts),
        "env_mask": [[1, 0, 1, 1]] * len(prompts),
        "luck": list(range(len(prompts))),
    } | changes


def test_a_rollout_function_replaces_the_engine_and_its_fields_reach_rewards(tmp_path):
    seen = {}

    def judge(completions, luck, **kwargs):
        seen["luck"] = luck
        return [float(value % 4) for value in luck]

    trainer = make_trainer(tmp_path, rewards=judge, rollout_func=rolls_out, max_steps=1, max_sampling_k3=None)
    trainer.train()
    record = first_record(trainer)
    assert seen["luck"] == list(range(8))
    assert record["reward"] == pytest.approx(1.5)
    assert record["completions/mean_length"] == 3.0  # of the policy's own tokens


@pytest.mark.parametrize(
    ("changes", "pieces"),
    [
        ({"logprobs": None}, ("rollout_func", "logprobs")),
        ({"completion_ids": [[5]]}, ("rollout_func", 1, "completion_ids", 8)),
        ({"env_mask": [[1]]}, ("rollout_func", "env_mask")),
    ],
)
def test_what_a_rollout_function_must_not_return_is_named(tmp_path, changes, pieces):
    trainer = make_trainer(
        tmp_path, rewards="length", rollout_func=lambda prompts, t: rolls_out(prompts, t, **changes), max_steps=1
    )
    with raises_naming(ValueError, *pieces):
        trainer.train()


def test_tools_and_a_rollout_function_exclude_each_other(tmp_path):
    with raises_naming(ValueError, "rollout_func", "tools"):
        make_trainer(tmp_path, rewards="length", rollout_func=rolls_out, tools=[calculate])


def test_a_failing_environment_ends_the_run_with_its_name(tmp_path):
    class Fails(Game):
        def reset(self, **row):
            raise OSError("no disk")

    with raises_naming(AgentError, "Fails", "reset", "no disk"):
        make_trainer(tmp_path, environment_factory=Fails).train()


def test_environments_play_on_a_stream_as_on_its_rows(tmp_path):
    found = []
    for rows in (ROWS, datasets.Dataset.from_list(ROWS).to_iterable_dataset()):
        trainer = make_trainer(
            tmp_path, environment_factory=Counter, train_dataset=rows, max_steps=1, shuffle_dataset=False, beta=0.0
        )
        trainer.train()
        found.append(torch.cat([parameter.flatten() for parameter in trainer.model.parameters()]))
    assert torch.equal(*found)


def test_weights_of_given_rewards_are_followed_beside_those_of_environments(tmp_path):
    def length(completion_ids, **columns):
        return [float(len(ids)) for ids in completion_ids]

    trainer = make_trainer(tmp_path, rewards=[length], environment_factory=Counter, reward_weights=[0.5], max_steps=1)
    trainer.args.reward_weights = [2.0]
    trainer.train()
    assert trainer.reward_weights.tolist() == [2.0, 1.0]
