# SPDX-License-Identifier: Apache-2.0
"""The rules of training health as a table: what is wrong, when that is reported, why it matters, what to try.

docs/troubleshooting.md is generated from it. The Chinese of every text is in `language/chinese/health.py`.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass

from ..language import Text, said
from . import checks
from .checks import LIMITS, Limits
from .curves import Curves

Check = Callable[[Curves, Limits], Text | str | None]


@dataclass(frozen=True)
class Rule:
    """One thing that can go wrong.

    Args:
        name (`str`): Identifies the rule in files.
        title (`str`): What is wrong.
        check (`Callable`): Returns what it found, with numbers, or `None`.
        fires (`str`): When the rule applies, for the documentation; limits stand in it by their names.
        means (`str`): Why it matters.
        remedies (`tuple[str, ...]`): What to try, the most promising first.
    """

    name: str
    title: str
    check: Check
    fires: str
    means: str
    remedies: tuple[str, ...]

    def when(self) -> str:
        """When the rule applies, in the language that is spoken."""
        return said(self.fires, **asdict(LIMITS))


NOT_FINITE = "not_finite"


def found_in_the_step(curves: Curves, limits: Limits) -> str | None:
    """Finds nothing in logs, which come too late: the trainer checks every step before its update."""
    return None


RULES: tuple[Rule, ...] = (
    Rule(
        NOT_FINITE,
        "Loss or gradient is not finite",
        found_in_the_step,
        "the loss of a micro-batch or the gradient norm is NaN or infinite, before the update",
        "A single update of this kind destroys all weights. The run stops without making it; the weights in memory "
        "and the last checkpoint are still good.",
        ("lower learning_rate", "use bf16 instead of fp16", "inspect the rows that the message names"),
    ),
    Rule(
        "reward_missing",
        "No completion gets a reward",
        checks.reward_missing,
        "no completion of the first {few} logs got a reward, because every reward function returned None",
        "A completion without a reward is left out. If all of them are, there is nothing to learn from.",
        (
            "check the column that the reward compares with: rows without a reference get None",
            "call the reward function by hand on one of the completions (log_completions=True)",
        ),
    ),
    Rule(
        "thinking_missing",
        "Completions do not close their thinking",
        checks.thinking_missing,
        "among the completions whose prompt opens `<think>`, none of {few} logs, or at most "
        "{thinking_closed:.0%} of {some} logs, contain `</think>`",
        "A reward that reads the answer after the thinking finds none, and other messages may follow from that.",
        (
            "set thinking_ratio=0 if the model was not trained to think",
            "reward it with the signals 'thinking' and 'format'",
            "raise max_completion_length if the thinking is cut off",
        ),
    ),
    Rule(
        "reward_constant",
        "The reward is constant",
        checks.reward_constant,
        "every completion of {reward_is_constant_over} logs got the same reward, which is no higher than at the start",
        "If all rewards are equal, no completion is preferred and there is no gradient.",
        (
            "print completions and rewards (debug_mode=True): the reward may not be given the right text or column",
            "make the reward finer: give partial credit for parts of an answer",
        ),
    ),
    Rule(
        "reward_negative",
        "All rewards are negative",
        checks.reward_negative,
        "every reward of {reward_negative_over} logs was below 0, and their mean is not rising",
        "Negative rewards do no harm by themselves, since only differences count. But if they do not rise, the policy "
        "may be unable to earn anything, or a reward model may be loaded incorrectly or use another scale than the "
        "other rewards.",
        (
            "look at individual rewards (log_completions=True)",
            "check the path of the reward model, and its range against the other signals",
            "start from a better model: do more supervised training",
        ),
    ),
    Rule(
        "reward_flat",
        "The reward does not move",
        checks.reward_flat,
        "after {reward_flat_over} logs, the means of the first and the last {reward_window} differ by "
        "no more than chance would explain",
        "The policy gets no signal that it can follow, or follows it too slowly for the change to show.",
        (
            "raise learning_rate",
            "raise num_generations or the batch size, so that the signal rises above the noise",
            "use easier prompts: some completions must earn more than others",
        ),
    ),
    Rule(
        "reward_fell",
        "The reward has fallen",
        checks.reward_fell,
        "the mean of the last {some} logs is below the best one by more than {significance:g} standard "
        "errors and by more than {reward_fall_share:g} of the reward's standard deviation at the start",
        "The policy has left the region where it earned its rewards, usually because its steps were too large.",
        ("lower learning_rate", "go back to an earlier checkpoint", "raise beta (GRPO) or kl_coef (PPO)"),
    ),
    Rule(
        "no_group_variance",
        "Groups have no variance",
        checks.no_group_variance,
        "at least {groups_without_variance:.0%} of the groups of {some} logs have equal rewards, and "
        "the reward has not risen by {solved_share:.0%} of the distance from its start to the highest reward "
        "(a task that the run has solved may end like this)",
        "GRPO learns from the differences between the completions of one prompt. Without any, their time is wasted.",
        (
            "use prompts of another difficulty if all of them are solved, or none",
            "raise temperature or num_generations if the completions of a group are alike",
            "use a finer reward",
        ),
    ),
    Rule(
        "reward_hacking",
        "The reward is being hacked",
        checks.reward_hacking,
        "the reward has risen, and either the median kl_ref of {some} logs is above "
        "{kl_to_reference:g} or the completions have begun to repeat themselves",
        "The policy has found text that scores well and is no longer language: the reward measures something other "
        "than what you want.",
        (
            "read the completions (log_completions=True)",
            "raise beta (GRPO) or kl_coef (PPO), which keep the policy near its start",
            "fix the reward: add what it lacks, such as the signal 'repetition'",
        ),
    ),
    Rule(
        "kl_growing",
        "The policy is drifting away from its reference",
        checks.kl_growing,
        "the median kl_ref of {some} logs is above {kl_to_reference:g} nats per token, and the reward "
        "has not risen in return",
        "The policy moves, but not towards higher rewards.",
        ("lower learning_rate", "raise beta (GRPO) or kl_coef (PPO)"),
    ),
    Rule(
        "nothing_learned",
        "Nothing is being learned",
        checks.nothing_learned,
        "after {still_policy_over} logs, kl_ref is below {still_policy_kl:g} (without a reference "
        "model: the gradient always was) and the clip fraction is 0",
        "The policy is still where it started.",
        (
            "raise learning_rate",
            "check that the weights to train are not frozen, and that their precision can hold such a small update "
            "(float32 or mixed precision, not pure bfloat16)",
        ),
    ),
    Rule(
        "completions_short",
        "Completions are very short",
        checks.completions_short,
        "the mean length of {few} logs is below {shrunk_tokens:g} tokens and below "
        "{shrunk_to:.0%} of that at the start, or at most {empty_tokens:g} tokens, which is little "
        "more than the EOS token",
        "The policy stops at once: it was trained too little, or stopping early costs it less than trying.",
        (
            "reward length (the signal 'length')",
            "set loss_aggregation='token' or 'constant': 'sequence' favours short correct completions",
            "check the chat template, and that the EOS token is the model's",
        ),
    ),
    Rule(
        "completions_truncated",
        "Completions do not end",
        checks.completions_truncated,
        "at least {truncated:.0%} of the completions of {some} logs were cut off at max_completion_length",
        "A completion that is cut off has no answer, so its reward says little, and it takes the longest time that a "
        "completion can take.",
        (
            "raise max_completion_length",
            "set mask_truncated_completions=True to keep what was cut off out of the loss",
            "check that the model knows its EOS token: it should have been trained on complete answers",
        ),
    ),
    Rule(
        "completions_repeating",
        "Completions repeat themselves",
        checks.completions_repeating,
        "at least {repeated:.0%} of the 4-grams of tokens of {some} logs occurred earlier in their completion",
        "The model is in a loop: the policy is too certain, or the model is too small for such long texts.",
        (
            "add the signal 'repetition' (for Chinese 'repetition_cjk') to the rewards",
            "raise temperature",
            "use shorter completions, or do more supervised training first",
        ),
    ),
    Rule(
        "sampling_certain",
        "Sampling is nearly deterministic",
        checks.sampling_certain,
        "the mean entropy of the first {few} logs is below {certain_entropy:g} nats per token",
        "All completions of a prompt are nearly the same, so nothing new is ever tried.",
        ("raise temperature (the default is 0.8)", "start from a checkpoint that is less certain"),
    ),
    Rule(
        "critic_useless",
        "The critic is worse than a constant",
        checks.critic_useless,
        "the mean explained_variance of {critic_over} rollouts is below 0, not counting the first {some}",
        "Its values add noise to the advantages instead of removing it.",
        (
            "raise critic_learning_rate",
            "scale the rewards to a size of about 1 (reward_weights): values start near 0",
            "use more completions per rollout, so that the critic sees more",
            "start the critic from the policy's weights, or from a critic of an earlier run",
        ),
    ),
    Rule(
        "critic_loss_not_falling",
        "The critic does not learn",
        checks.critic_loss_not_falling,
        "over {critic_over} logs, critic_loss is no lower than at the start and explained_variance is below "
        "{critic_explains:g}",
        "The advantages are then hardly better than whitened rewards.",
        (
            "raise critic_learning_rate",
            "scale the rewards to a size of about 1 (reward_weights), or raise cliprange_value",
            "use more completions per rollout",
        ),
    ),
    Rule(
        "engine_mismatch",
        "Engine and trainer disagree",
        checks.engine_mismatch,
        "the mean sampling/k3 of {few} logs is above {engine_k3:g}",
        "The engine does not sample from the model that is being trained: the model has dropout, which only the "
        "update applies (the trainer warns of this before it starts), its weights are stale, or its precision, chat "
        "template or position encoding differs.",
        (
            "set disable_dropout=True if the model or its adapters (lora_dropout) have dropout",
            "sync the weights before every rollout (sync_every=1)",
            "use the same precision for engine and trainer (rollout_dtype, the server's dtype)",
            "set rollout_correction='truncate'",
        ),
    ),
    Rule(
        "calls_unparsed",
        "Calls of tools cannot be read",
        checks.calls_unparsed,
        "at least {calls_failed:.0%} of the calls of {some} logs do not have the form that the chat template teaches",
        "The policy tries to use its tools and does not know how to write a call; each attempt costs a turn.",
        (
            "read the calls (debug_mode=True): they may be cut off by max_turn_length",
            "train on examples of calls first, in the form of this chat template",
            "take a little from the reward for a call that cannot be read",
        ),
    ),
    Rule(
        "tools_failing",
        "Tools fail",
        checks.tools_failing,
        "at least {calls_failed:.0%} of the calls of {some} logs can be read, but name no tool, have "
        "wrong arguments, raise an error or take too long",
        "An error says little that helps with the task, so the policy learns to do without the tool.",
        (
            "where calls raise or take too long: call the tool by hand with the arguments of such a call, and raise "
            "tool_timeout if it is only slow",
            "where names or arguments are wrong: describe the tools better in their docstrings, or in the prompt",
        ),
    ),
    Rule(
        "episodes_endless",
        "Episodes do not end",
        checks.episodes_endless,
        "at least {at_max_turns:.0%} of the episodes of {some} logs were stopped at max_turns",
        "The policy keeps calling tools and never answers, so its reward says little.",
        (
            "raise max_turns",
            "set turn_discount below 1 (GRPO) or gamma (PPO), so that an early answer is worth more",
            "reward an answer, or take a little for each turn",
        ),
    ),
    Rule(
        "observations_crowding",
        "Answers of tools crowd out the policy",
        checks.observations_crowding,
        "at least {observed:.0%} of the tokens of the episodes of {some} logs are answers of tools "
        "or of an environment",
        "Answers count in max_completion_length and are computed in every update, but nothing is learned from them.",
        (
            "lower max_observation_length, or make the tools' answers shorter",
            "raise max_completion_length if episodes are cut off",
        ),
    ),
)
