# SPDX-License-Identifier: Apache-2.0
"""What environments offer, what is refused of them, and how a run hands them out."""

import asyncio
from functools import partial

import pytest
from chat_tokenizers import chat_tokenizer
from naming import raises_naming

from minimind_hf.agent import Agent, AgentError, Conversation, Reply, calculate
from minimind_hf.agent.conversation import Turn, check_reply
from minimind_hf.agent.environments import EnvironmentKind, environment_kinds
from minimind_hf.agent.workers import ToolRunner


class Counter:
    """An environment with one tool."""

    def __init__(self, start: int = 0):
        self.start = start

    def reset(self, **row):
        self.row, self.count = row, self.start
        return row.get("say")

    def add(self, number: int) -> str:
        """Adds a number.

        Args:
            number: What to add.
        """
        self.count += number
        return str(self.count)

    def get_reward(self) -> float:
        return float(self.count)


class Named(Counter):
    def reset(self, seed):
        self.seed = seed


class Chat(Conversation):
    def reset(self, **row):
        return [{"role": "user", "content": "Go."}]

    def respond(self, turn):
        return Reply("again", reward=0.5)


def make_agent(tools=(), factory=None, **settings) -> Agent:
    tokenizer, ends = chat_tokenizer("qwen3")
    options = {"max_turns": None, "max_observation_length": 64, "tool_timeout": 5.0, "tool_workers": 4}
    return Agent(list(tools), factory, tokenizer, tuple(ends), **options | settings)


def example(index: int = 0, **columns) -> dict:
    prompt = [{"role": "user", "content": "Count."}]
    return {
        "prompt": prompt,
        "prompt_ids": [1, 2, 3],
        "index": index,
        "columns": columns,
        "thinking": False,
        "template_kwargs": {"enable_thinking": False},
        "tools": None,
    }


def test_public_methods_are_tools_beside_the_others():
    kind = EnvironmentKind(Counter, tools=[calculate])
    assert set(kind.toolbox) == {"calculate", "add"}
    assert kind.has_reward and not kind.is_conversation
    instance = kind.take()
    instance.reset()
    assert kind.function(instance, "add")(number=2) == "2"
    assert kind.function(instance, "calculate") is calculate


def test_a_conversation_has_no_tools_of_its_own():
    kind = EnvironmentKind(Chat)
    assert kind.is_conversation and not kind.has_reward and len(kind.toolbox) == 0


def test_instances_are_made_when_none_is_free_and_used_again():
    made = []

    def factory():
        made.append(Counter())
        return made[-1]

    kind = EnvironmentKind(factory)
    first, second = kind.take(), kind.take()
    assert first is not second and len(made) == 2  # the probe is the first of them
    kind.give_back(second)
    assert kind.take() is second and len(made) == 2


@pytest.mark.parametrize(
    ("factory", "pieces"),
    [
        (type("Bare", (), {}), ("environment_factory", "Bare", "reset")),
        ({"a": type("Bare", (), {})}, ("environment_factory['a']", "reset")),
        (Counter(), ("environment_factory", "Counter")),
        ({}, ("environment_factory", "empty")),
        ({"a": 3}, ("environment_factory['a']", 3)),
        (partial(Counter, 1, 2), ("environment_factory", "TypeError")),
        ("Counter", ("environment_factory", "Counter", "textarena:FrozenLake-v0")),
    ],
)
def test_what_makes_no_environment_is_refused(factory, pieces):
    with raises_naming(AgentError, *pieces):
        make_agent(factory=factory)


def test_reset_gets_the_columns_that_it_takes_and_a_seed_of_its_group():
    agent = make_agent(factory=Counter)
    examples = [example(0, say=None, level=1), example(1, say=None, level=2)]
    episodes = agent.start(examples, 2, seed=7)
    rows = [episode.environment.row for episode in episodes]
    assert [row["level"] for row in rows] == [1, 1, 2, 2]
    assert rows[0]["prompt"] == examples[0]["prompt"]
    assert rows[0]["seed"] == rows[1]["seed"] != rows[2]["seed"] == rows[3]["seed"]
    assert [row["seed"] for row in rows] == [
        e.environment.row["seed"] for e in make_agent(factory=Counter).start(examples, 2, 7)
    ]
    named = make_agent(factory=Named).start(examples[:1], 1, seed=7)
    assert named[0].environment.seed == rows[0]["seed"]


def test_no_two_running_episodes_share_an_environment_and_released_ones_return():
    agent = make_agent(factory=Counter)
    first = agent.start([example()], 4, seed=0)
    environments = {id(episode.environment) for episode in first}
    assert len(environments) == 4
    agent.release(first)
    second = agent.start([example()], 4, seed=1)
    assert {id(episode.environment) for episode in second} == environments


def test_what_an_environment_says_is_appended_to_its_prompt():
    agent = make_agent(factory=Counter)
    tokenizer, _ = chat_tokenizer("qwen3")
    spoken, silent = agent.start([example(0, say=" From 5.<|im_end|>"), example(1, say=None)], 1, seed=0)
    assert spoken.prompt["prompt"][-1]["content"] == "Count. From 5.<|im_end|>"
    assert "Count. From 5.<|im_end|>" in tokenizer.decode(spoken.prompt_ids)
    assert spoken.prompt_ids.count(tokenizer.convert_tokens_to_ids("<|im_end|>")) == 1  # of the template
    assert silent.prompt_ids == [1, 2, 3]
    talk = make_agent(factory=Chat).start([example()], 1, seed=0)[0]
    assert [message["content"] for message in talk.prompt["prompt"]] == ["Count.", "Go."]


def test_a_long_prompt_is_cut_on_the_left():
    agent = make_agent(factory=Counter, max_prompt_length=4)
    episode = agent.start([example(0, say=" and on")], 1, seed=0)[0]
    whole = make_agent(factory=Counter).start([example(0, say=" and on")], 1, seed=0)[0]
    assert episode.prompt_ids == whole.prompt_ids[-4:]


def test_a_dictionary_is_chosen_from_by_row():
    agent = make_agent(factory={"count": Counter, "chat": Chat})
    agent.check_rows([{"environment": "count"}, {"environment": "chat"}])
    with raises_naming(AgentError, "row 1", "'other'", "'count'", "'chat'"):
        agent.check_rows([{"environment": "count"}, {"environment": "other"}])
    episodes = agent.start([example(0, environment="count", say=None), example(1, environment="chat")], 1, seed=0)
    assert [type(episode.environment) for episode in episodes] == [Counter, Chat]
    assert "environment" not in episodes[0].environment.row
    assert [s["function"]["name"] for s in agent.schemas({"environment": "count"})] == ["add"]
    assert agent.schemas({"environment": "chat"}) == []


def test_rows_without_prompts_get_empty_ones_where_environments_write_them():
    agent = make_agent(factory=Counter)
    rows = agent.with_prompts([{"level": 1}, {"prompt": "p"}, {"conversations": []}])
    assert rows[0]["prompt"] == [{"role": "user", "content": ""}]
    assert rows[1]["prompt"] == "p" and "prompt" not in rows[2]
    assert len(agent.empty_prompts(3)) == 3
    with raises_naming(AgentError, "train_dataset", "'environment'"):
        make_agent(factory={"count": Counter}).empty_prompts(3)
    assert make_agent([calculate]).with_prompts([{"level": 1}]) == [{"level": 1}]


def test_get_reward_is_a_reward_function_of_the_class_and_may_be_async():
    class Judged(Counter):
        async def get_reward(self):
            await asyncio.sleep(0)
            return 3.0

    agent = make_agent(factory={"a": Counter, "b": Counter, "c": Judged})
    plain, judged = agent.reward_functions(are_only=True)
    assert (plain.__name__, judged.__name__) == ("Counter", "Judged")
    counter, other = Counter(2), Judged()
    counter.reset()
    assert plain(environments=[counter, other]) == [2.0, None]
    assert asyncio.run(judged(environments=[counter, other])) == [None, 3.0]


def test_rewards_of_replies_are_a_reward_function_by_turn():
    def asked(rewards, are_only):
        (function,) = make_agent(factory=Chat).reward_functions(are_only)
        assert function.__name__ == "Chat"
        environments = [Chat(), Chat(), None]
        return function(environments=environments, turn_rewards=rewards, num_turns=[2, 1, 1])

    assert asked([[0.5, 1.0], None, None], are_only=False) == [[0.5, 1.0], [0.0], None]
    assert asked([None, None, None], are_only=False) == [None, None, None]
    assert asked([None, None, None], are_only=True) == [[0.0, 0.0], [0.0], None]


@pytest.mark.parametrize("method", ["reset", "respond"])
def test_an_environment_that_fails_is_named_with_its_row(method):
    def fails(*_, **__):
        raise OSError("no disk")

    kind = EnvironmentKind(type("Broken", (Chat,), {}))
    instance, run = kind.take(), ToolRunner(5)
    setattr(instance, method, fails)
    with raises_naming(AgentError, "Broken", method, "row 7", "no disk"):
        if method == "reset":
            kind.reset(instance, {}, "row 7", run)
        else:
            kind.respond(instance, Turn({"content": "a"}, 0), "row 7", run)


def test_an_environment_that_hangs_is_named_with_the_setting():
    kind = EnvironmentKind(type("Slow", (Counter,), {"reset": lambda self: __import__("time").sleep(0.5)}))
    with raises_naming(AgentError, "Slow", "reset", "row 2", "tool_timeout"):
        kind.reset(kind.take(), {}, "row 2", ToolRunner(0.02))


@pytest.mark.parametrize(
    ("reply", "pieces"),
    [
        ("text", ("Reply", "str")),
        (None, ("Reply", "NoneType")),
        (Reply(), ("done",)),
        (Reply("a", reward=float("nan")), ("reward", "nan")),
        (Reply("a", reward="1"), ("reward", "'1'")),
        (Reply([{"role": "assistant", "content": "a"}]), ("assistant", "user")),
        (Reply([{"role": "user"}]), ("content",)),
        (Reply(3), (3,)),
    ],
)
def test_wrong_replies_are_refused(reply, pieces):
    with raises_naming(AgentError, "HERE", *pieces):
        check_reply(reply, "HERE")


def test_replies_become_messages():
    assert check_reply(Reply("a"), "").messages == [{"role": "user", "content": "a"}]
    assert check_reply(Reply(done=True), "").messages == []
    messages = [{"role": "tool", "content": "a"}, {"role": "user", "content": "b"}]
    assert check_reply(Reply(messages), "").messages == messages


def test_environment_kinds_are_keyed_by_name():
    assert list(environment_kinds({"a": Counter, "b": Chat})) == ["a", "b"]
    assert list(environment_kinds(Counter)) == [None]
