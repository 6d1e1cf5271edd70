# SPDX-License-Identifier: Apache-2.0
"""Whole PPO runs against a plain loop: torch alone, one completion and one token at a time, no padding."""

import copy

import pytest
import torch
from ppo_tools import log_of, make_trainer
from tiny import ScriptedEngine, collected, make_llama, make_policy, make_prompts, share_of_a

from minimind_hf import PPOTrainer
from minimind_hf.trainer.experience.micro_batch import mini_batch_rows
from minimind_hf.trainer.models.actor_critic import ActorCritic

RULES = {
    "gamma": 0.97,
    "lam": 0.9,
    "clip_epsilon": 0.1,
    "cliprange_value": 0.05,
    "vf_coef": 0.7,
    "kl_coef": 0.3,
    "max_grad_norm": 0.05,
}


class RecordingEngine(ScriptedEngine):
    """Remembers what it was asked and what it answered."""

    def __init__(self, temperature):
        super().__init__(temperature)
        self.seen = []

    def generate(self, prompt_ids, num_generations, sampling):
        rollouts = super().generate(prompt_ids, num_generations, sampling)
        prompts = [list(ids) for ids in prompt_ids for _ in range(num_generations)]
        self.seen.append((prompts, rollouts, sampling.seed))
        return rollouts


def logps_of(model, prompt, completion, temperature):
    logits = model(torch.tensor([prompt + completion])).logits[0] / temperature
    table = logits.log_softmax(dim=-1)
    return torch.stack([table[len(prompt) + t - 1, token] for t, token in enumerate(completion)])


def values_of(critic, prompt, completion):
    hidden = critic.base_model(torch.tensor([prompt + completion])).last_hidden_state[0]  # after the final norm
    states = hidden[len(prompt) - 1 : len(prompt) + len(completion) - 1]
    return states @ critic.score.weight[0] + critic.score.bias[0]


def gae_of(reward, values, gamma, lam):
    advantages = [0.0] * len(values)
    following_value = following_advantage = 0.0
    for t in reversed(range(len(values))):
        score = reward if t == len(values) - 1 else 0.0
        delta = score + gamma * following_value - values[t]
        advantages[t] = delta + gamma * lam * following_advantage
        following_value, following_advantage = values[t], advantages[t]
    return advantages


class PlainPPO:
    """The algorithm as its formulas say it."""

    def __init__(self, policy, critic, optimizer, args):
        self.policy, self.critic, self.args = policy, critic, args
        self.reference = copy.deepcopy(policy)
        self.optimizers = [optimizer(policy.parameters(), args.learning_rate)]
        self.optimizers += [optimizer(critic.parameters(), args.critic_learning_rate)]
        self.updates, self.stopped = 0, 0

    def train_on(self, prompts, rollouts, seed):
        args = self.args
        completions = [rollout.completion_ids for rollout in rollouts]
        rewards = share_of_a(completions)
        with torch.no_grad():
            pairs = list(zip(prompts, completions, strict=True))
            old_values = [values_of(self.critic, *pair) for pair in pairs]
            ref = [logps_of(self.reference, *pair, args.temperature) for pair in pairs]
        raw = [
            gae_of(reward, values.tolist(), args.gamma, args.lam)
            for reward, values in zip(rewards, old_values, strict=True)
        ]
        returns = [
            [a + v for a, v in zip(row, values.tolist(), strict=True)]
            for row, values in zip(raw, old_values, strict=True)
        ]
        tokens = [a for row in raw for a in row]
        mean = sum(tokens) / len(tokens)
        variance = sum((a - mean) ** 2 for a in tokens) / len(tokens)
        advantages = [[(a - mean) / (variance + 1e-8) ** 0.5 for a in row] for row in raw]
        for iteration in range(args.ppo_update_iters):
            batches = mini_batch_rows(len(pairs), args.mini_batch_size, seed, iteration)
            for start in range(0, len(batches), args.gradient_accumulation_steps):
                rows = [row for batch in batches[start : start + args.gradient_accumulation_steps] for row in batch]
                if not self.update(rows, pairs, rollouts, old_values, ref, advantages, returns):
                    self.stopped += 1
                    return

    def update(self, rows, pairs, rollouts, old_values, ref, advantages, returns):
        args = self.args
        losses, squares = [], []
        for row in rows:
            new = logps_of(self.policy, *pairs[row], args.temperature)
            values = values_of(self.critic, *pairs[row])
            for t, old in enumerate(torch.tensor(rollouts[row].logprobs, dtype=torch.float32).double()):
                ratio = torch.exp(new[t] - old)
                clipped = ratio.clamp(1 - args.clip_epsilon, 1 + args.clip_epsilon)
                a = advantages[row][t]
                surrogate = torch.maximum(-a * ratio, -a * clipped)
                d = ref[row][t] - new[t]
                near = old_values[row][t] + (values[t] - old_values[row][t]).clamp(
                    -args.cliprange_value, args.cliprange_value
                )
                value = 0.5 * torch.maximum((values[t] - returns[row][t]) ** 2, (near - returns[row][t]) ** 2)
                losses.append(surrogate + args.kl_coef * (torch.exp(d) - d - 1) + args.vf_coef * value)
                squares.append(0.5 * (new[t] - old).item() ** 2)
        if sum(squares) / len(squares) > args.early_stop_kl:
            return False
        (sum(losses) / len(losses)).backward()
        for model, optimizer in zip((self.policy, self.critic), self.optimizers, strict=True):
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_grad_norm)
            optimizer.step()
            optimizer.zero_grad()
        self.updates += 1
        return True


OPTIMIZERS = {
    "sgd": lambda parameters, rate: torch.optim.SGD(parameters, rate),
    # eps far above the gradients' rounding, which Adam would otherwise divide by itself
    "adamw_torch": lambda parameters, rate: torch.optim.AdamW(parameters, rate, eps=1e-4, weight_decay=0.0),
}
SHAPES = {
    "one update a pass": {"mini_batch_size": 8, "max_steps": 4},
    "mini-batches": {"mini_batch_size": 2, "max_steps": 16},
    "mini-batches, accumulated": {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "mini_batch_size": 2,
        "max_steps": 8,
    },
    "several completions a prompt": {"num_generations": 4, "mini_batch_size": 4, "max_steps": 8},
    "padded": {"num_generations": 2, "mini_batch_size": 4, "max_steps": 8, "forward_layout": "padded"},
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("optim", OPTIMIZERS)
@pytest.mark.parametrize("early_stop_kl", [1e9, 1e-3], ids=["runs through", "stops early"])
def test_training_equals_a_plain_loop(tmp_path, shape, optim, early_stop_kl):
    rates = {"sgd": (1.0, 2.0), "adamw_torch": (3e-3, 1e-2)}[optim]
    model = make_policy().double()
    engine = RecordingEngine(temperature=0.8)
    trainer = make_trainer(
        tmp_path,
        model,
        engine=engine,
        optim=optim,
        adam_epsilon=1e-4,
        learning_rate=rates[0],
        critic_learning_rate=rates[1],
        early_stop_kl=early_stop_kl,
        **RULES,
        **SHAPES[shape],
    )
    plain = PlainPPO(
        copy.deepcopy(trainer.model.policy).eval(),
        copy.deepcopy(trainer.model.critic).eval(),
        OPTIMIZERS[optim],
        trainer.args,
    )
    start = [copy.deepcopy(module.state_dict()) for module in (plain.policy, plain.critic)]
    trainer.train()
    for rollout in engine.seen:
        plain.train_on(*rollout)

    padded = SHAPES[shape].get("forward_layout") == "padded"
    assert (trainer.model.values_layout == "padded") == (trainer.model.layout == "padded") == padded
    assert len(engine.seen) == 2
    assert (plain.stopped > 0) == (early_stop_kl < 1)
    assert sum(log_of(trainer, "early_stopped")) == trainer.state.global_step - plain.updates
    for module, loop, before in zip(
        (trainer.model.policy, trainer.model.critic), (plain.policy, plain.critic), start, strict=True
    ):
        moved = max((tensor - before[name]).abs().max() for name, tensor in module.state_dict().items())
        assert moved > 1e-3
        for name, tensor in loop.state_dict().items():
            torch.testing.assert_close(module.state_dict()[name], tensor, atol=1e-6, rtol=0, msg=name)


@pytest.mark.parametrize("make_model", [make_policy, make_llama], ids=["minimind", "llama"])
def test_the_value_of_a_token_is_read_before_it_after_one_final_norm(tmp_path, make_model):
    trainer = make_trainer(tmp_path, make_model(scale=8.0).double())
    critic = trainer.model.critic
    with torch.no_grad():
        critic.base_model.norm.weight.mul_(3.0)  # a second norm would undo this
    prompts = [trainer.train_dataset[i] for i in range(8)]
    experience = collected(trainer, prompts=prompts)
    found = experience.tokens.old_values
    for row, (prompt, rollout) in enumerate(zip(prompts, experience.rollouts, strict=True)):
        with torch.no_grad():
            expected = values_of(critic, prompt["prompt_ids"], rollout.completion_ids)
        torch.testing.assert_close(found[row, : len(expected)], expected, atol=1e-9, rtol=0)


def test_a_completion_without_a_reward_moves_nothing(tmp_path):
    def unknown(completion_ids, **kwargs):
        return [None] * len(completion_ids)

    trainer = make_trainer(tmp_path, reward=unknown)
    before = copy.deepcopy(trainer.model.state_dict())
    trainer.train()
    for name, tensor in before.items():
        assert torch.equal(tensor, trainer.model.state_dict()[name]), name


def test_a_completion_without_a_reward_does_not_touch_the_others(tmp_path):
    def every_other(completion_ids, **kwargs):
        return [None if i % 2 else share for i, share in enumerate(share_of_a(completion_ids))]

    trainer = make_trainer(tmp_path, reward=every_other)
    experience = collected(trainer, 8)
    mask = experience.tokens.loss_mask
    assert mask[1::2].sum() == 0 and (mask[0::2].sum(dim=1) > 0).all()
    valid = experience.tokens.advantages[mask.bool()]
    assert valid.mean().abs() < 1e-6
    assert valid.var(unbiased=False).item() == pytest.approx(1, abs=1e-4)
    assert not experience.tokens.advantages.isnan().any()


def test_the_token_budget_holds_for_every_pass_and_changes_none(tmp_path, monkeypatch):
    """Values, reference, correction of the rollout, update and evaluation."""
    forward, score = ActorCritic.forward, PPOTrainer.token_scores

    def run(name, **changes):
        passes = []

        def counted_forward(self, batch, *args, **kwargs):
            passes.append(sum(map(len, [*batch.prompt_ids, *batch.completion_ids])))
            return forward(self, batch, *args, **kwargs)

        def counted_score(self, model, batch, *args, **kwargs):
            passes.append(sum(map(len, [*batch.prompt_ids, *batch.completion_ids])))
            return score(self, model, batch, *args, **kwargs)

        monkeypatch.setattr(ActorCritic, "forward", counted_forward)
        monkeypatch.setattr(PPOTrainer, "token_scores", counted_score)
        trainer = make_trainer(tmp_path / name, rollout_correction="truncate", kl_coef=0.3, **changes)
        trainer.train()
        log = trainer.evaluate(make_prompts(8))
        return passes, log, torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])

    whole, expected_log, expected = run("whole", early_stop_kl=None)
    passes, log, found = run("parts", early_stop_kl=None, max_tokens_per_microbatch=30)
    assert min(whole) > 30 >= max(passes)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    for name in ("eval_loss", "eval_kl_ref", "eval_critic_loss", "eval_sampling/k3"):
        assert log[name] == pytest.approx(expected_log[name], abs=1e-5), name
