# SPDX-License-Identifier: Apache-2.0
"""The rules of training health as a table: what is wrong, when that is said, why it matters, what to try.

docs/troubleshooting.md is generated from it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from . import checks
from .checks import LIMITS, Curves, Limits

Check = Callable[[Curves, Limits], str | None]


@dataclass(frozen=True)
class Rule:
    """One thing that can go wrong.

    Args:
        name (`str`): Stands in files.
        title (`str`): What is wrong.
        check (`Callable`): Says what was found, with numbers, or `None`.
        fires (`str`): When, in words, for the documentation.
        means (`str`): Why it matters.
        remedies (`tuple[str, ...]`): What to try, the most likely first.
    """

    name: str
    title: str
    check: Check
    fires: str
    means: str
    remedies: tuple[str, ...]


NOT_FINITE = "not_finite"


def found_in_the_step(curves: Curves, limits: Limits) -> str | None:
    """Of what curves come too late for: see `step_watch`."""
    return None


RULES: tuple[Rule, ...] = (
    Rule(
        NOT_FINITE,
        "Loss or gradient is not finite",
        found_in_the_step,
        "a micro-batch's loss or the gradient's norm is NaN or infinite, before the update",
        "One such update destroys all weights. The update is not made and the run stops; the weights in memory and "
        "the last checkpoint are still good.",
        ("lower learning_rate", "use bf16 rather than fp16", "look at the rows that are named"),
    ),
    Rule(
        "reward_missing",
        "No reward is given",
        checks.reward_missing,
        f"no completion of the first {LIMITS.few} logs got a reward: all reward functions said None",
        "None leaves a completion out. Where all are left out there is nothing to learn from.",
        (
            "check the column that the reward compares with: rows without a reference get None",
            "call the reward function by hand on one of the completions (log_completions=True)",
        ),
    ),
    Rule(
        "thinking_missing",
        "Thinking is not closed",
        checks.thinking_missing,
        f"of the completions whose prompt opens <think>, none of {LIMITS.few} logs or at most "
        f"{LIMITS.thinking_closed:.0%} of {LIMITS.some} logs have a </think>",
        "Whatever judges the answer after the thought finds none; other messages may follow from it.",
        (
            "thinking_ratio=0, if the model was not trained to think",
            "reward it: the signals 'thinking' and 'format'",
            "raise max_completion_length, if thoughts are cut",
        ),
    ),
    Rule(
        "reward_constant",
        "The reward is a constant",
        checks.reward_constant,
        f"every completion of {LIMITS.reward_is_constant_over} logs got the same reward, no higher than at the start",
        "Where all rewards are equal there is nothing to prefer, and no gradient.",
        (
            "print completions and rewards (debug_mode=True): the reward may not see the right text or column",
            "make it finer: partial credit for parts of an answer",
        ),
    ),
    Rule(
        "reward_negative",
        "All rewards are negative",
        checks.reward_negative,
        f"no reward of {LIMITS.reward_negative_over} logs was 0 or more, and their mean is not rising",
        "Harmless in itself, since only differences count; but where it does not rise, the policy may be unable to "
        "earn anything, or a reward model may be loaded wrongly or be on another scale than the rules.",
        (
            "look at single rewards (log_completions=True)",
            "check the path of the reward model and its range against the other signals",
            "start from a better model: more supervised training",
        ),
    ),
    Rule(
        "reward_flat",
        "The reward does not move",
        checks.reward_flat,
        f"after {LIMITS.reward_flat_over} logs, the means of the first and the last {LIMITS.reward_window} differ by "
        "no more than chance",
        "The policy gets no signal that it can follow, or follows it too slowly to be seen.",
        (
            "raise learning_rate",
            "raise num_generations or the batch, so that the signal rises above the noise",
            "easier prompts: some completions must earn more than others",
        ),
    ),
    Rule(
        "reward_fell",
        "The reward has fallen",
        checks.reward_fell,
        f"the mean of the last {LIMITS.some} logs is below the best one by more than {LIMITS.significance:g} standard "
        f"errors and {LIMITS.reward_fall_share:g} of the reward's std at the start",
        "The policy has left the region where it earned its rewards, most often by steps that were too large.",
        ("lower learning_rate", "go back to an earlier checkpoint", "raise beta (GRPO) or kl_coef (PPO)"),
    ),
    Rule(
        "no_group_variance",
        "Groups without variance",
        checks.no_group_variance,
        f"{LIMITS.groups_without_variance:.0%} of the groups of {LIMITS.some} logs have equal rewards, and the reward "
        f"has not risen by {LIMITS.solved_share:.0%} of what was between its start and the highest one: a task that "
        "is solved in the run may end like this",
        "GRPO learns from differences within the completions of one prompt. Without any, their time is wasted.",
        (
            "prompts of another difficulty, if all of them are solved or none",
            "raise temperature or num_generations, if the completions of a group are alike",
            "a finer reward",
        ),
    ),
    Rule(
        "reward_hacking",
        "The reward is being hacked",
        checks.reward_hacking,
        f"the reward has risen, and the median kl_ref of {LIMITS.some} logs is above {LIMITS.kl_to_reference:g}, or "
        "the completions have begun to repeat themselves",
        "The policy has found a text that scores well and is no longer language: the reward says something else than "
        "what is meant.",
        (
            "read the completions (log_completions=True)",
            "raise beta (GRPO) or kl_coef (PPO), which hold the policy near its start",
            "mend the reward: add what it forgets, such as the signal 'repetition'",
        ),
    ),
    Rule(
        "kl_growing",
        "The policy drifts away from its reference",
        checks.kl_growing,
        f"the median kl_ref of {LIMITS.some} logs is above {LIMITS.kl_to_reference:g} nats per token, and the reward "
        "has not risen for it",
        "The policy moves, but not towards reward.",
        ("lower learning_rate", "raise beta (GRPO) or kl_coef (PPO)"),
    ),
    Rule(
        "nothing_learned",
        "Nothing is learned",
        checks.nothing_learned,
        f"after {LIMITS.still_policy_over} logs kl_ref is below {LIMITS.still_policy_kl:g} (without a reference: the "
        "gradient always was), and the clip fraction is 0",
        "The policy is where it started.",
        (
            "raise learning_rate",
            "check that the weights to train are not frozen, and that the precision holds so small an update (float32 "
            "or mixed precision, not pure bfloat16)",
        ),
    ),
    Rule(
        "completions_short",
        "Completions are very short",
        checks.completions_short,
        f"the mean length of {LIMITS.few} logs is below {LIMITS.shrunk_tokens:g} tokens and {LIMITS.shrunk_to:.0%} of "
        f"that at the start, or at most {LIMITS.empty_tokens:g} tokens, which hold nothing but the end",
        "The policy ends at once: it was trained too little, or ending early costs it less than trying.",
        (
            "reward length (the signal 'length')",
            "loss_aggregation='token' or 'constant': 'sequence' favours short completions that are right",
            "check the chat template, and that the EOS is that of the model",
        ),
    ),
    Rule(
        "completions_truncated",
        "Completions do not end",
        checks.completions_truncated,
        f"{LIMITS.truncated:.0%} of the completions of {LIMITS.some} logs were cut at max_completion_length",
        "What is cut has no answer, so its reward says little, and each costs as much time as can be.",
        (
            "raise max_completion_length",
            "mask_truncated_completions=True keeps what was cut out of the loss",
            "check that the model knows its EOS: it should have been trained on ended answers",
        ),
    ),
    Rule(
        "completions_repeating",
        "Completions repeat themselves",
        checks.completions_repeating,
        f"{LIMITS.repeated:.0%} of the 4-grams of tokens of {LIMITS.some} logs occurred before in their completion",
        "A loop: the policy is too certain, or too small a model for so long a text.",
        (
            "add the signal 'repetition' (for Chinese 'repetition_cjk') to the rewards",
            "raise temperature",
            "shorter completions, or more supervised training first",
        ),
    ),
    Rule(
        "sampling_certain",
        "Sampling is all but certain",
        checks.sampling_certain,
        f"the mean entropy of the first {LIMITS.few} logs is below {LIMITS.certain_entropy:g} nats per token",
        "All completions of a prompt are nearly the same, so that nothing new is ever tried.",
        ("raise temperature (0.8 is the default)", "start from a checkpoint that is less certain"),
    ),
    Rule(
        "critic_useless",
        "The critic is worse than a constant",
        checks.critic_useless,
        f"the mean explained_variance of {LIMITS.critic_over} rollouts is below 0, after the first {LIMITS.some}",
        "Its values add noise to the advantages instead of taking it out.",
        (
            "raise critic_learning_rate",
            "scale the rewards to about 1 in size (reward_weights): values start near 0",
            "more completions per rollout, so that the critic sees more",
            "start it from the policy's weights, or from a critic of an earlier run",
        ),
    ),
    Rule(
        "critic_loss_not_falling",
        "The critic does not learn",
        checks.critic_loss_not_falling,
        f"over {LIMITS.critic_over} logs critic_loss is no lower than at the start, and explained_variance below "
        f"{LIMITS.critic_explains:g}",
        "Advantages are then hardly better than whitened rewards.",
        (
            "raise critic_learning_rate",
            "scale the rewards to about 1 in size (reward_weights), or raise cliprange_value",
            "more completions per rollout",
        ),
    ),
    Rule(
        "engine_mismatch",
        "Engine and trainer disagree",
        checks.engine_mismatch,
        f"the mean sampling/k3 of {LIMITS.few} logs is above {LIMITS.engine_k3:g}",
        "The engine samples from another model than the one that is trained: stale weights, another precision, "
        "another chat template or position encoding.",
        (
            "sync the weights before every rollout (sync_every=1)",
            "the same precision for engine and trainer (rollout_dtype, the server's dtype)",
            "rollout_correction='truncate'",
        ),
    ),
)
