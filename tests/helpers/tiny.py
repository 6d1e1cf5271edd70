# SPDX-License-Identifier: Apache-2.0
"""Small things that tests of several packages need, made on the spot: tokenizer, policies, prompts, rewards, and the
settings and trainers of tiny runs."""

import random
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from unittest.mock import patch

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch.nn.utils.rnn import pad_sequence
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from minimind_hf import (
    DistillConfig,
    DistillTrainer,
    GRPOConfig,
    GRPOTrainer,
    MiniMindConfig,
    MiniMindForCausalLM,
    PPOConfig,
    PPOTrainer,
    Rollout,
    RolloutEngine,
)
from minimind_hf.forward import layouts, values
from minimind_hf.forward.logprobs import completion_scores
from minimind_hf.trainer.experience.experience import Experience
from minimind_hf.trainer.metrics import Metrics

SPECIALS = ("<pad>", "<|im_start|>", "<|im_end|>")
PAD, BOS, EOS = range(3)
SHAPE = {
    "vocab_size": 259,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": PAD,
    "bos_token_id": None,
    "eos_token_id": EOS,
}
QUIET = {"use_cpu": True, "report_to": "none", "save_strategy": "no", "disable_tqdm": True}
SIZES = {"max_steps": 2, "per_device_train_batch_size": 8, "max_completion_length": 8}
SGD = {"optim": "sgd", "learning_rate": 0.5, "lr_scheduler_type": "constant", "max_grad_norm": 0.0}  # nothing but it
GRPO = {**QUIET, **SIZES, **SGD, "num_generations": 4}
PPO = {**QUIET, **SIZES, **SGD, "critic_learning_rate": 0.1, "mini_batch_size": 8}
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if open_thinking is defined and open_thinking is true %}<think>\n{% else %}<think>\n\n</think>\n\n"
    "{% endif %}{% endif %}"
)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Every byte is one token: the three specials first, then the bytes. 259 ids."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([*SPECIALS, *alphabet])}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.add_special_tokens([AddedToken(token, special=True) for token in SPECIALS])
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token=SPECIALS[PAD], bos_token=SPECIALS[BOS], eos_token=SPECIALS[EOS]
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def make_policy(seed: int = 0, scale: float = 4.0, **config) -> MiniMindForCausalLM:
    """A random MiniMind of 259 tokens, whose distributions are sharp enough (by `scale`) to differ from uniform."""
    torch.manual_seed(seed)
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    model = MiniMindForCausalLM(MiniMindConfig(**{"vocab_size": 259} | shape | config))
    return _sharpened(model, scale)


def make_llama(seed: int = 0, scale: float = 4.0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(**SHAPE | {"bos_token_id": BOS})
    return _sharpened(LlamaForCausalLM(config), scale)


def _sharpened(model, scale: float):
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(scale)
    return model.eval()


def make_prompts(count: int, seed: int = 0) -> list[dict]:
    """Texts of unequal length."""
    rng = random.Random(seed)
    return [{"prompt": "".join(rng.choices("abcdefgh ", k=rng.randint(1, 12))), "number": i} for i in range(count)]


def random_ids(rows: int, seed: int = 0, low: int = 1, high: int = 12) -> list[list[int]]:
    """Token ids (no specials) of unequal length."""
    rng = random.Random(seed)
    return [[rng.randrange(3, 259) for _ in range(rng.randint(low, high))] for _ in range(rows)]


def share_of_a(completion_ids, **kwargs) -> list[float]:
    """A reward that varies within a group: the share of ids below 130."""
    return [sum(token < 130 for token in ids) / len(ids) for ids in completion_ids]


def without_ties(completion_ids, **kwargs) -> list[float]:
    """[`share_of_a`], and so little more that no two different completions are equal: each has an advantage."""
    shares = share_of_a(completion_ids)
    return [share + zlib.crc32(str(ids).encode()) / 2**36 for share, ids in zip(shares, completion_ids, strict=True)]


class ScriptedEngine(RolloutEngine):
    """Answers a prompt with completions that depend on its ids alone, scored by the weights that it was given.

    Whatever the shape of batches, ranks and accumulation, the same prompts get the same completions.
    """

    def __init__(self, temperature: float, longest: int = 6):
        self.temperature = temperature
        self.longest = longest

    def sync_weights(self, model, version):
        self.model, self.version = model, version

    def generate(self, prompt_ids, num_generations, sampling):
        return [rollout for ids in prompt_ids for rollout in self._group(list(ids), num_generations)]

    def _group(self, prompt, count) -> list[Rollout]:
        written = [self._written(prompt, number) for number in range(count)]
        rows = [torch.tensor(ids) for ids in written]
        completions, mask = (pad_sequence(each, True) for each in (rows, [torch.ones_like(row) for row in rows]))
        prompts = torch.tensor([prompt] * count)
        with torch.no_grad():
            scores = completion_scores(
                self.model, prompts, torch.ones_like(prompts), completions, mask, self.temperature
            )
        return [
            Rollout(ids, logps[: len(ids)], "stop" if ids[-1] == EOS else "length", weights_version=self.version)
            for ids, logps in zip(written, scores.logps.tolist(), strict=True)
        ]

    def _written(self, prompt, number) -> list[int]:
        rng = random.Random(f"{prompt} {number}")
        ids = [rng.randrange(3, 259) for _ in range(rng.randint(1, self.longest))]
        return ids if rng.random() < 0.3 else [*ids, EOS]


def collected(trainer, count: int = 3, seed: int = 1, prompts: list[dict] | None = None) -> Experience:
    """An experience with advantages, of the first prompts of a trainer's data set or of those given."""
    prompts = prompts or [trainer.train_dataset[i] for i in range(count)]
    experience = Experience(prompts, trainer.args.num_generations, seed, metrics=Metrics())
    trainer.rollout(experience)
    trainer.score(experience)
    trainer.add_advantages(experience)
    return experience


TRAINERS = {PPOConfig: PPOTrainer, DistillConfig: DistillTrainer}  # GRPOTrainer for all others
_TRIED = set()


@contextmanager
def trying_layouts_once(*what) -> Iterator[None]:
    """Here the fast layouts of policy and critic are tried only if they were not before, with the same `what`.

    A trainer tries them when it is made, which takes a quarter of a tiny run. tests/forward/ has the tests of it.
    """
    with ExitStack() as patches:
        for module in (layouts, values) if what in _TRIED else ():
            patches.enter_context(patch.object(module, "probe_batches", lambda model: []))
        yield
    _TRIED.add(what)


def tiny_trainer(
    config: GRPOConfig | PPOConfig | DistillConfig,
    model=None,
    reward=share_of_a,
    prompts=12,
    engine="scripted",
    **arguments,
) -> GRPOTrainer | PPOTrainer | DistillTrainer:
    """The trainer that a config is of.

    Args:
        config: Decides the algorithm.
        model (*optional*): What to train; unset, a random MiniMind.
        reward: One or more reward functions.
        prompts: Rows, or how many to make.
        engine: An engine, `None` for the config's own, or `"scripted"`, so that runs of different shapes train on the
            same tokens.
        arguments: Further ones of the trainer.
    """
    is_usual = model is None and arguments.get("peft_config") is None
    with trying_layouts_once(type(config)) if is_usual else nullcontext():
        return TRAINERS.get(type(config), GRPOTrainer)(
            model=make_policy() if model is None else model,
            reward_funcs=reward,
            args=config,
            train_dataset=make_prompts(prompts) if isinstance(prompts, int) else prompts,
            processing_class=make_tokenizer(),
            rollout_engine=ScriptedEngine(config.temperature) if engine == "scripted" else engine,
            **arguments,
        )


def skip_deepspeed_shared_memory() -> None:
    """DeepSpeed would build its own exchange between processes of a CPU, which takes a minute; gloo does it too."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def run_fsdp_on_cpu() -> None:
    """accelerate shards by FSDP where it finds several GPUs; let it take several processes of a CPU for that."""
    from accelerate.state import AcceleratorState, DistributedType, PartialState

    original = AcceleratorState.__init__

    def initialize(self, *args, **kwargs):
        shared = PartialState()
        if shared.distributed_type == DistributedType.MULTI_CPU:
            PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
        original(self, *args, **kwargs)

    AcceleratorState.__init__ = initialize
