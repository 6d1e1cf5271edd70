# SPDX-License-Identifier: Apache-2.0
"""What reward functions read: the whole text of a completion, without the tokens that begin, end or pad it."""

import pytest
from datasets import Dataset
from tiny import EOS, PAD, ScriptedEngine, make_policy, make_tokenizer
from transformers import GenerationConfig

from minimind_hf import Rollout
from minimind_hf.evaluation import EvalSettings, answer_prompts
from minimind_hf.rewards import RewardScorer
from minimind_hf.rewards.judging import readable_completions

TAGS = ["<think>", "</think>", "<tool_call>", "<eot>"]


@pytest.fixture
def tokenizer():
    made = make_tokenizer()
    made.add_special_tokens({"additional_special_tokens": TAGS})
    return made


def test_only_bos_eos_and_pad_are_left_out(tokenizer):
    text = "<think>a</think>b<tool_call>c"
    ids = tokenizer(f"<|im_start|>{text}<|im_end|><pad><pad>")["input_ids"]
    (chat,) = readable_completions([{"prompt": [{"role": "user", "content": "?"}]}], [ids], tokenizer)
    assert chat == [{"role": "assistant", "content": text}]
    assert readable_completions([{"prompt": "?"}], [ids], tokenizer) == [text]


def test_every_id_that_ends_completions_is_left_out(tokenizer):
    ids = tokenizer("a</think>b<eot>")["input_ids"]
    end = tokenizer.convert_tokens_to_ids("<eot>")
    assert readable_completions([{"prompt": "?"}], [ids], tokenizer, ends=[end]) == ["a</think>b"]
    assert readable_completions([{"prompt": "?"}], [ids], tokenizer) == ["a</think>b<eot>"]


class Thinking(ScriptedEngine):
    """Says the same thought and answer to every prompt."""

    def __init__(self, ids):
        super().__init__(temperature=1.0)
        self.ids = ids

    def generate(self, prompt_ids, num_generations, sampling):
        rollout = Rollout(self.ids, [-1.0] * len(self.ids), "stop", weights_version=self.version)
        return [rollout] * (len(prompt_ids) * num_generations)


def test_training_and_evaluation_read_the_same(tokenizer, make_config, monkeypatch):
    from minimind_hf import GRPOTrainer

    thought, answer = "a thought of twenty or more letters", "b"
    end = tokenizer.convert_tokens_to_ids("<eot>")
    engine = Thinking([*tokenizer(f"{thought}</think>{answer}")["input_ids"], end])
    model = make_policy(vocab_size=len(tokenizer))
    model.generation_config = GenerationConfig(eos_token_id=[EOS, end], pad_token_id=PAD)
    seen = []

    def recorded(completions, **kwargs) -> list[float]:
        seen.extend(completions)
        return [0.0] * len(completions)

    rewards, rows = ["format", "thinking", recorded], [{"prompt": "?"}] * 8
    config = make_config(max_steps=1, max_completion_length=64, max_sampling_k3=None)  # made-up log-probabilities
    trainer = GRPOTrainer(
        model, rewards, config, train_dataset=rows, processing_class=tokenizer, rollout_engine=engine
    )
    trainer.train()
    (log,) = [log for log in trainer.state.log_history if "loss" in log]
    assert (log["rewards/format_reward/mean"], log["rewards/thinking_reward/mean"]) == (0.25, 1.0)

    monkeypatch.setattr("minimind_hf.evaluation.answers.TorchEngine", lambda: engine)
    scorer = RewardScorer(rewards)
    answers = answer_prompts("m", model, tokenizer, Dataset.from_list(rows[:2]), scorer, EvalSettings())
    assert answers.signals["rewards/format_reward"] == [0.25, 0.25]
    assert {row["completion"] for row in answers.completions} == set(seen) == {f"{thought}</think>{answer}"}
