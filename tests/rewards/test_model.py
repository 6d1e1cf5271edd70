# SPDX-License-Identifier: Apache-2.0
"""Reward models score the answer part, batched as alone, within the clamp."""

import json

import pytest
import torch
from naming import raises_naming
from transformers import BloomConfig, BloomForSequenceClassification, LlamaForCausalLM

from minimind_hf.rewards import RewardModel, RewardModelError
from minimind_hf.rewards.model import folded_conversation


def say(content: str, role: str = "user") -> dict:
    return {"role": role, "content": content}


PROMPTS = [[say(text)] for text in ("hi", "what is two plus two?", "写一首诗。", "a", "name three colours")]
COMPLETIONS = [
    [say(text, "assistant")]
    for text in ("hello", "a long thought</think>four", "春眠不觉晓，处处闻啼鸟。", "</think>", "red green blue " * 6)
]
ANSWERS = ["hello", "four", "春眠不觉晓，处处闻啼鸟。", "", "red green blue " * 6]


def reference_score(model, tokenizer, prompt, answer) -> float:
    """One unpadded forward of the text that the template is known to give."""
    text = "".join(f"<|im_start|>{m['role']}: {m['content']}<|im_end|>" for m in [*prompt, say(answer, "assistant")])
    ids = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])
    with torch.no_grad():
        hidden = model.model(input_ids=ids).last_hidden_state[0, -1]
        return float(model.score(hidden)[0])


@pytest.mark.parametrize("batch_size", [1, 2, 16])
def test_batches_equal_one_by_one(make_classifier, tokenizer, batch_size):
    model = make_classifier()
    reward = RewardModel(model, tokenizer, batch_size=batch_size, clamp=None)
    scores = reward(prompts=PROMPTS, completions=COMPLETIONS, completion_ids=[[1]] * 5, answer=["unused"] * 5)
    expected = [reference_score(model, tokenizer, p, a) for p, a in zip(PROMPTS, ANSWERS, strict=True)]
    assert scores == pytest.approx(expected, abs=1e-5)
    assert len({round(score, 3) for score in scores}) == 5


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_scores_are_clamped(make_classifier, tokenizer, sign):
    model = make_classifier()
    model.score.weight.data.mul_(sign)
    free = RewardModel(model, tokenizer, clamp=None)(PROMPTS, COMPLETIONS)
    assert min(map(abs, free)) < 3 < max(map(abs, free))
    clamped = RewardModel(model, tokenizer)(PROMPTS, COMPLETIONS)
    assert clamped == pytest.approx([max(-3.0, min(3.0, score)) for score in free], abs=1e-5)


def test_the_thought_is_scored_only_on_demand(make_classifier, tokenizer):
    with_thought, without = [[say("thought</think>x", "assistant")]], [[say("x", "assistant")]]
    reward = RewardModel(make_classifier(), tokenizer)
    assert reward(PROMPTS[:1], with_thought) == reward(PROMPTS[:1], without)
    reward.answer_only = False
    assert reward(PROMPTS[:1], with_thought) != reward(PROMPTS[:1], without)


def test_string_prompts(make_classifier, tokenizer):
    model = make_classifier()
    reward = RewardModel(model, tokenizer, clamp=None)
    scores = reward(["two plus two is ", "a"], ["four", "bc"])
    for score, text in zip(scores, ["two plus two is four", "abc"], strict=True):
        with torch.no_grad():
            hidden = model.model(input_ids=torch.tensor([tokenizer(text)["input_ids"]])).last_hidden_state[0, -1]
        assert score == pytest.approx(float(model.score(hidden)[0]), abs=1e-5)


def test_long_input_keeps_its_end(make_classifier, tokenizer):
    model = make_classifier()
    reward = RewardModel(model, tokenizer, clamp=None)
    assert reward.max_length == 256  # the model's positions; the tokenizer states no limit
    prompt, answer = "q" * 400, "the end"
    ids = tokenizer(prompt + answer)["input_ids"][-256:]
    with torch.no_grad():
        expected = float(model.score(model.model(input_ids=torch.tensor([ids])).last_hidden_state[0, -1])[0])
    assert reward([prompt], [answer]) == pytest.approx([expected], abs=1e-5)
    short = RewardModel(model, tokenizer, max_length=4, clamp=None)
    assert short(["xxxx"], ["abcd"]) == short(["yyyy"], ["abcd"])


def test_a_model_without_any_length_limit_scores(tokenizer):
    """ALiBi models have no positions to run out of, and the tokenizer states no limit."""
    torch.manual_seed(0)
    config = BloomConfig(vocab_size=len(tokenizer), hidden_size=16, n_head=2, n_layer=1, num_labels=1)
    reward = RewardModel(BloomForSequenceClassification(config), tokenizer, clamp=None)
    assert reward.max_length is None
    prompts, answers = ["a" * 300, "b"], ["the end", "c"]
    together = reward(prompts, answers)
    alone = [reward([prompt], [answer])[0] for prompt, answer in zip(prompts, answers, strict=True)]
    assert together == pytest.approx(alone, abs=1e-4)
    assert reward(["b" + "a" * 299], answers[:1]) != together[:1]  # nothing was cut off


def test_the_begun_assistant_turn_of_a_prompt_is_completed(make_classifier, tokenizer):
    reward = RewardModel(make_classifier(), tokenizer)
    begun = reward([[say("q"), say("The sum is", "assistant")]], [[say(" four", "assistant")]])
    assert begun == reward([[say("q")]], [[say("The sum is four", "assistant")]])


def test_model_is_frozen_and_the_tokenizer_left_alone(make_classifier, tokenizer):
    tokenizer.padding_side = "left"
    model = make_classifier().train()
    reward = RewardModel(model, tokenizer)
    reward(PROMPTS, COMPLETIONS)
    assert not model.training and not any(p.requires_grad for p in model.parameters())
    assert tokenizer.padding_side == "left" and reward.tokenizer.padding_side == "right"


def test_pad_token_is_taken_from_eos(make_classifier, tokenizer):
    tokenizer.pad_token = None
    model = make_classifier()
    reward = RewardModel(model, tokenizer, clamp=None)
    assert tokenizer.pad_token is None and model.config.pad_token_id == 2
    one_by_one = RewardModel(model, tokenizer, clamp=None, batch_size=1)
    alone = [one_by_one([p], [c])[0] for p, c in zip(PROMPTS, COMPLETIONS, strict=True)]
    assert reward(PROMPTS, COMPLETIONS) == pytest.approx(alone, abs=1e-5)


def test_saved_and_loaded(make_classifier, tokenizer, tmp_path):
    model = make_classifier()
    path = tmp_path / "my-reward"
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    reward = RewardModel.from_pretrained(str(path), batch_size=2, device="cpu", dtype=torch.float32)
    assert reward.name == "my-reward"
    assert reward(PROMPTS, COMPLETIONS) == pytest.approx(RewardModel(model, tokenizer)(PROMPTS, COMPLETIONS), abs=1e-6)


# --- models with code of their own -----------------------------------------------------------------------------------


class Judge(torch.nn.Module):
    """Answers with what is after "score " in the last message, and remembers what it saw."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def get_score(self, tokenizer, messages):
        self.seen.append((tokenizer, messages))
        return float(messages[-1]["content"].removeprefix("score "))


def test_get_score_sees_folded_history_and_answer_only(tokenizer):
    judge = Judge()
    history = [say("be kind", "system"), say("hi"), say("hello", "assistant"), say("and now?")]
    completions = [[say("I think</think>\n\nscore 2.5", "assistant")], [say("score -7", "assistant")]]
    assert RewardModel(judge, tokenizer)([history, [say("only")]], completions) == [2.5, -3.0]
    assert judge.seen == [
        (
            tokenizer,
            [
                say("system: be kind\nuser: hi\nassistant: hello\n以上是对话历史。我的新问题是：\nand now?"),
                say("score 2.5", "assistant"),
            ],
        ),
        (tokenizer, [say("only"), say("score -7", "assistant")]),
    ]


def test_folding_of_strings_and_begun_turns():
    assert folded_conversation("q", "a") == [say("q"), say("a", "assistant")]
    assert folded_conversation([say("q"), say("The ", "assistant")], "end") == [say("q"), say("The end", "assistant")]


REMOTE_CODE = """
from transformers import PretrainedConfig, PreTrainedModel
import torch

class JudgeConfig(PretrainedConfig):
    model_type = "judge_of_a_test"

class Judge(PreTrainedModel):
    config_class = JudgeConfig

    def __init__(self, config):
        super().__init__(config)
        self.scale = torch.nn.Parameter(torch.ones(1))
        self.post_init()

    METHOD
"""


def write_remote_model(path, tokenizer, method: str) -> str:
    tokenizer.save_pretrained(path)
    (path / "judge.py").write_text(REMOTE_CODE.replace("METHOD", method))
    auto_map = {"AutoConfig": "judge.JudgeConfig", "AutoModel": "judge.Judge"}
    (path / "config.json").write_text(json.dumps({"model_type": "judge_of_a_test", "auto_map": auto_map}))
    torch.save({"scale": torch.tensor([0.5])}, path / "pytorch_model.bin")
    return str(path)


@pytest.fixture
def module_cache(monkeypatch, tmp_path_factory):
    monkeypatch.setattr(
        "transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path_factory.mktemp("hf_modules"))
    )


def test_remote_code_from_a_folder(tokenizer, tmp_path, module_cache):
    method = "def get_score(self, tokenizer, messages): return len(messages[-1]['content']) * self.scale.item()"
    path = write_remote_model(tmp_path, tokenizer, method)
    reward = RewardModel.from_pretrained(path, trust_remote_code=True)
    assert reward.uses_get_score
    assert reward(["q", "q"], ["t</think>abc", "abcdefghij"]) == [1.5, 3.0]


def test_remote_code_is_refused_unless_trusted(tokenizer, tmp_path, module_cache):
    path = write_remote_model(tmp_path, tokenizer, "def get_score(self, t, m): return 0.0")
    with raises_naming(RewardModelError, path, "custom code", "trust_remote_code=True"):
        RewardModel.from_pretrained(path)


def test_remote_code_without_get_score(tokenizer, tmp_path, module_cache):
    path = write_remote_model(tmp_path, tokenizer, "pass")
    with raises_naming(RewardModelError, path, "Judge", "get_score(tokenizer, messages)"):
        RewardModel.from_pretrained(path, trust_remote_code=True)


# --- errors ----------------------------------------------------------------------------------------------------------


def test_more_than_one_label(make_classifier, tokenizer):
    with raises_naming(RewardModelError, "num_labels", 3, "num_labels=1", "get_score(tokenizer, messages)"):
        RewardModel(make_classifier(num_labels=3), tokenizer)


def test_a_language_model_has_no_trained_head(make_classifier, tokenizer, tmp_path):
    config = make_classifier().config
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with raises_naming(RewardModelError, tmp_path, "['score.weight']", "LlamaForSequenceClassification"):
        RewardModel.from_pretrained(str(tmp_path))


def test_missing_model_and_missing_tokenizer(make_classifier, tmp_path):
    with raises_naming(RewardModelError, "reward model", tmp_path / "nowhere", "exist"):
        RewardModel.from_pretrained(str(tmp_path / "nowhere"))
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text('{"base_model_name_or_path": "/moved/away"}')
    with raises_naming(RewardModelError, tmp_path / "adapter", "'/moved/away'", "exist"):
        RewardModel.from_pretrained(str(tmp_path / "adapter"))
    make_classifier().save_pretrained(tmp_path)
    with raises_naming(RewardModelError, tmp_path, "tokenizer"):
        RewardModel.from_pretrained(str(tmp_path))


def test_no_chat_template(make_classifier, tokenizer):
    tokenizer.chat_template = None
    with raises_naming(RewardModelError, "tokenizer.chat_template"):
        RewardModel(make_classifier(), tokenizer)(PROMPTS, COMPLETIONS)


def test_no_token_to_pad_with(make_classifier, tokenizer):
    tokenizer.pad_token = tokenizer.eos_token = None
    with raises_naming(RewardModelError, "pad", "eos", "tokenizer.pad_token"):
        RewardModel(make_classifier(), tokenizer)
    with raises_naming(RewardModelError, "batch_size", 0, 1):
        RewardModel(Judge(), tokenizer, batch_size=0)
