# SPDX-License-Identifier: Apache-2.0
"""Episodes on the page: what a run keeps of them, which are shown, and how a conversation reads."""

import html
import json
import re

import pytest
from chat_tokenizers import chat_tokenizer
from tiny import GRPO, make_policy

from minimind_hf import Conversation, GRPOConfig, GRPOTrainer, Reply
from minimind_hf.reports.episodes import call_text, chosen, conversation, failures_first, told
from minimind_hf.reports.page import render, write_report
from minimind_hf.reports.record import RunRecord, read_lines, read_run, write_lines

TOKENIZER, ENDS = chat_tokenizer("qwen3")


def called(name: str, **arguments) -> dict:
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}


EPISODE = {
    "step": 3,
    "prompt": [{"role": "user", "content": "6 times 7?"}],
    "completion": [
        called("calculate", expression="6*"),
        {"role": "tool", "name": "calculate", "content": "Error: '6*' is no arithmetic expression."},
        called("calculate", expression="6*7") | {"reasoning_content": "I forgot the 7."},
        {"role": "tool", "name": "calculate", "content": "42"},
        {"role": "assistant", "content": "It is <42>."},
    ],
    "signals": {"right": 1.0},
    "reward": 0.75,
    "tokens": 30,
    "finish_reason": "stop",
    "turns": 3,
    "calls": 2,
    "failed_calls": {"raised": 1},
    "reached_max_turns": False,
    "turn_rewards": [-0.25, 0.0, 1.0],
    "pieces": [["<tool_call>", 1], ["<|im_start|>assistant", 0]],
}


def episode(reward, **changes) -> dict:
    return {**EPISODE, "reward": reward, **changes}


def page_of(early=(), late=()) -> str:
    return render(RunRecord("run", [{"step": 1, "reward": 1.0}], early=list(early), late=list(late)))


def test_the_conversation_of_an_episode():
    shown = conversation(EPISODE)
    assert [part["who"] for part in shown] == ["turn 1", "tool calculate", "turn 2", "tool calculate", "turn 3"]
    assert [part["wrote"] for part in shown] == [True, False, True, False, True]
    assert [part["failed"] for part in shown] == [False, True, False, False, False]
    assert shown[2]["calls"] == ['calculate(expression="6*7")'] and shown[2]["thought"] == "I forgot the 7."
    assert [part.get("reward") for part in shown] == [-0.25, None, 0.0, None, 1.0]
    assert [part.get("bar") for part in shown] == [25, None, 0, None, 100]  # of the largest
    assert told(EPISODE) == "3 turns · 2 calls, failed: 1 raised"
    assert told(episode(0, turns=1, calls=1, failed_calls={})) == "1 turn · 1 call"
    assert told(episode(0, calls=0, reached_max_turns=True)) == "3 turns · stopped at max_turns"


def test_calls_as_text():
    assert call_text("f", {"a": 1, "b": "é\n", "c": [True, None]}) == 'f(a=1, b="é\\n", c=[true, null])'
    assert call_text("f", None) == "f()" and call_text("f", '{"a": 1}') == 'f({"a": 1})'


def test_page_shows_turns_calls_answers_shades_and_rewards():
    page = page_of(late=[EPISODE])
    assert "<h2>Episodes, early and late</h2>" in page and "Late, step 3" in page
    messages = re.findall(r'<div class="message (wrote|read)"><span class="who">(.*?)</span>', page)
    assert messages == [
        ("read", "prompt"), ("wrote", "turn 1"), ("read", "tool calculate"), ("wrote", "turn 2"),
        ("read", "tool calculate"), ("wrote", "turn 3"),
    ]  # fmt: skip
    bars = re.findall(r'<span class="reward">reward (.*?)<i class="(.*?)" style="width:(\d+)px">', page)
    assert bars == [("-0.25", "bar minus", "25"), ("0", "bar", "0"), ("1", "bar", "100")]
    assert '<pre class="call">→ calculate(expression=&#34;6*7&#34;)</pre>' in page
    assert '<pre class="failed">Error: &#39;6*&#39; is no arithmetic expression.</pre>' in page
    assert '<pre class="thought">I forgot the 7.</pre>' in page and "<pre>It is &lt;42&gt;.</pre>" in page
    assert "reward 0.75 (right 1) · 30 tokens · 3 turns · 2 calls, failed: 1 raised" in page
    tokens = re.search(r'<pre class="tokens">(.*?)</pre>', page).group(1)
    assert tokens == (
        '<span class="wrote">&lt;tool_call&gt;</span><span class="read">&lt;|im_start|&gt;assistant</span>'
    )


def test_completions_of_one_turn_stay_as_they_were():
    page = page_of(late=[{"step": 1, "prompt": "p", "completion": "c", "reward": 1.0}])
    assert "<h2>Completions, early and late</h2>" in page and '<pre class="prompt">p</pre><pre>c</pre>' in page
    assert 'class="message' not in page and "is trained on" not in page


def test_failures_come_first():
    cut = episode(0.5, finish_reason="length")
    stopped = episode(0.5, reached_max_turns=True, failed_calls={})
    failed, clean = episode(0.5), episode(0.5, failed_calls={})
    good, missing, bad = episode(1.0), episode(None), episode(-1.0)
    assert failures_first([good, clean, failed, stopped, cut, bad, missing]) == [
        missing, bad, cut, stopped, failed, clean, good,
    ]  # fmt: skip
    page = page_of(late=[good, bad])
    assert page.index("reward -1 ") < page.index("reward 1 ")


def test_the_lowest_rewards_are_chosen_and_the_two_highest():
    rows = [episode(reward) for reward in (0.5, 0.1, 0.9, 0.3, 0.7, 0.2, 0.8, 0.4)]
    assert [rows[place]["reward"] for place in chosen(rows, 6)] == [0.1, 0.2, 0.3, 0.4, 0.8, 0.9]
    assert [rows[place]["reward"] for place in chosen(rows[:3], 6)] == [0.1, 0.5, 0.9]


HOSTILE = "</pre></details><script>alert(1)</script>{{ 7 * 7 }}"


def test_nothing_in_an_episode_is_taken_for_markup():
    call = {"function": {"name": HOSTILE, "arguments": {HOSTILE: HOSTILE}}}
    turn = {"role": "assistant", "content": HOSTILE, "reasoning_content": HOSTILE, "tool_calls": [call]}
    answer = {"role": "tool", "name": HOSTILE, "content": f"Error: {HOSTILE}"}
    counts = {"failed_calls": {HOSTILE: 1}, "pieces": [[HOSTILE, 1]], "turn_rewards": [1.0]}
    page = page_of(late=[episode(1.0, prompt=HOSTILE, completion=[turn, answer], **counts)])
    assert "<script>" not in page
    # prompt 1; turn: text 1, thought 1, call 3; answer: name 1, text 1; kind of failure 1, piece 1
    assert html.unescape(page).count("<script>alert(1)</script>") == 10


class Game(Conversation):
    """Two turns; the second is worth its length."""

    def reset(self, **row):
        self.turns = 0
        return "Begin."

    def respond(self, turn):
        self.turns += 1
        return Reply("Go on.") if self.turns == 1 else Reply(reward=float(len(turn) % 5) / 4, done=True)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("episodes")
    model = make_policy(vocab_size=len(TOKENIZER))
    model.generation_config.eos_token_id = [*range(9, len(TOKENIZER), 10), *ENDS]
    episodes = {"max_completion_length": 96, "max_turn_length": 24, "thinking_ratio": 0.0, "log_completions": True}
    args = GRPOConfig(output_dir=str(folder / "run"), **GRPO | episodes)
    trainer = GRPOTrainer(model, None, args, processing_class=TOKENIZER, environment_factory=Game)
    trainer.train()
    return folder / "run"


def test_a_run_leaves_what_the_page_needs(run_dir):
    run = read_run(run_dir)
    logged = [row for path in sorted((run_dir / "completions").glob("*.jsonl")) for row in read_lines(path)]
    assert len(logged) == 16 and len(run.early) == len(run.late) == 6
    for row in [*logged, *run.early, *run.late]:
        assert [message["role"] for message in row["completion"]] == ["assistant", "user", "assistant"][
            : 2 * row["turns"] - 1
        ]
        assert len(row["turn_rewards"]) == row["turns"] and row["calls"] == 0 and row["failed_calls"] == {}
        assert sum(row["turn_rewards"]) == pytest.approx(row["reward"])
        assert row["prompt"] == [{"role": "user", "content": "Begin."}]
    first = [row["reward"] for row in logged if row["step"] == 1]
    assert [row["reward"] for row in run.early] == [*sorted(first)[:4], *sorted(first)[-2:]]
    assert "pieces" not in logged[0]
    for row in run.early:
        assert [wrote for _, wrote in row["pieces"]] == [1, 0, 1][: 2 * row["turns"] - 1]
        if row["turns"] == 2:
            assert "user\nGo on.<|im_end|>\n<|im_start|>assistant\n" in row["pieces"][1][0]
        own = "".join(text for text, wrote in row["pieces"] if wrote)
        assert len(json.dumps(own)) > 2 and row["tokens"] <= 48


def test_without_samples_the_completion_log_is_read(tmp_path):
    (tmp_path / "completions").mkdir()
    (tmp_path / "trainer_state.json").write_text('{"log_history": []}')
    rows = [episode(reward) for reward in (0.5, 0.1, 0.9, 0.3, 0.7, 0.2, 0.8, 0.4)]
    write_lines(tmp_path / "completions" / "completions_000001.jsonl", rows)
    assert [row["reward"] for row in read_run(tmp_path).early] == [0.1, 0.2, 0.3, 0.4, 0.8, 0.9]


def test_page_of_a_run(run_dir):
    page = write_report(run_dir).read_text()
    assert "<h2>Episodes, early and late</h2>" in page
    assert page.count('<span class="who">prompt</span><pre>user: Begin.</pre>') == 12
    assert "Rewards of turns" in page  # the chart
