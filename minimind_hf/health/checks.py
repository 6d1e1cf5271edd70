# SPDX-License-Identifier: Apache-2.0
"""What the logs of a run look like when something is wrong: the curves, the limits, and a check for each rule.

A check is a pure function of the curves so far and the limits. It returns what it found, or `None`.
"""

from dataclasses import dataclass
from statistics import fmean, median, pvariance

from ..language import Text, Texts
from .curves import Curves


@dataclass(frozen=True)
class Limits:
    """All thresholds. Numbers of logs count the logs that contain the metric."""

    reward_is_constant_over: int = 5  # logs whose rewards are all equal
    reward_negative_over: int = 20  # logs whose rewards are all negative
    reward_flat_over: int = 120  # logs after which the reward should have risen
    reward_window: int = 25  # logs at the start, and at the end, that are compared
    reward_fall_share: float = 0.5  # a fall matters if larger than this share of the reward's std at the start
    significance: float = 4.0  # standard errors that a fall must exceed; a rise must exceed half as many
    groups_without_variance: float = 0.9  # share of the groups
    solved_share: float = 0.5  # a task is solved this far from the reward at the start to the highest one
    few: int = 5  # logs that must agree where a run can be lost quickly
    some: int = 10  # logs that must agree elsewhere
    kl_to_reference: float = 1.0  # nats per token
    still_policy_kl: float = 1e-8  # nats per token; below this the policy has not moved
    still_policy_over: int = 50  # logs after which it should have moved
    empty_tokens: float = 1.5  # mean length of a completion, including its EOS
    shrunk_to: float = 0.25  # of the length at the start
    shrunk_tokens: float = 32.0  # and shorter than this
    truncated: float = 0.9  # share of the completions
    repeated: float = 0.5  # share of the 4-grams
    thinking_closed: float = 0.2  # share of the completions; 0 is reported after fewer logs
    certain_entropy: float = 0.01  # nats per token at the start of a run
    critic_over: int = 20  # logs to average for the critic
    critic_explains: float = 0.1  # explained variance of a critic that learns
    critic_falls_to: float = 0.98  # of its loss at the start
    engine_k3: float = 0.01  # nats per token between engine and trainer
    calls_failed: float = 0.5  # share of the calls of tools
    at_max_turns: float = 0.9  # share of the episodes
    observed: float = 0.9  # share of the tokens of episodes


LIMITS = Limits()


# Used by several rules


def has_risen(curves: Curves, limits: Limits) -> bool:
    """Whether the reward is higher than at the start by more than chance explains."""
    return _change_in_errors(curves, limits, limits.some) > limits.significance / 2


def _has_risen_early(curves: Curves, limits: Limits) -> bool:
    """The same of a run too young for that, by what there is: fewer logs have to show it more clearly."""
    window = min(limits.some - 1, curves.count("reward") // 2)
    is_young = curves.count("reward") < 2 * limits.some
    return is_young and window >= limits.few and _change_in_errors(curves, limits, window) > limits.significance


def _change_in_errors(curves: Curves, limits: Limits, window: int) -> float:
    """How far the mean reward of the last logs lies above that of the first, in standard errors."""
    if curves.count("reward") < 2 * window:
        return 0.0
    start, end = curves.first("reward", window), curves.last("reward", window)
    error = ((pvariance(start) + pvariance(end)) / (window - 1)) ** 0.5
    change = fmean(end) - fmean(start)
    return change / error if error > 0 else float(change > 0) * 1e9 - float(change < 0) * 1e9


def _is_constant(curves: Curves, limits: Limits) -> bool:
    number = limits.reward_is_constant_over
    rewards, spreads = curves.last("reward", number), curves.last("reward_std", number)
    if not rewards or not spreads:
        return False
    same = max(spreads) < 1e-6 and max(rewards) - min(rewards) < 1e-6
    return same and rewards[-1] <= fmean(curves.first("reward", number)) + 1e-6


def _is_solved(curves: Curves, limits: Limits) -> bool:
    """Whether the reward has come most of the way to the highest one, which not every prompt may allow."""
    highest = curves.last("reward_max", limits.some)
    if not highest or not has_risen(curves, limits):
        return False
    start, now = fmean(curves.first("reward", limits.some)), fmean(curves.last("reward", limits.some))
    return now - start >= limits.solved_share * (max(highest) - start)


def _mean_of_last(curves: Curves, name: str, number: int) -> float | None:
    values = curves.last(name, number)
    return fmean(values) if values else None


def _text_has_broken(curves: Curves, limits: Limits) -> bool:
    """Whether the completions repeat themselves but did not at the start."""
    repeated = _mean_of_last(curves, "completions/repetition", limits.some)
    start = curves.first("completions/repetition", 1)
    return repeated is not None and repeated >= limits.repeated and start[0] < limits.repeated / 2


# The rules


def reward_missing(curves: Curves, limits: Limits) -> Text | None:
    logs = curves.count("completions/mean_length")
    learns_without = curves.count("divergence") > 0  # a distillation
    if logs < limits.few or curves.count("reward") > 0 or learns_without:
        return None
    return Text(
        "in {logs} logs no completion got a reward: every reward function returned None for all of them", logs=logs
    )


def reward_constant(curves: Curves, limits: Limits) -> Text | None:
    if not _is_constant(curves, limits):
        return None
    reward, logs = curves.last("reward", 1)[0], limits.reward_is_constant_over
    return Text("every completion of the last {logs} logs got the reward {reward:.4g}", logs=logs, reward=reward)


def reward_negative(curves: Curves, limits: Limits) -> Text | None:
    highest = curves.last("reward_max", limits.reward_negative_over)
    if not highest or max(highest) >= 0 or has_risen(curves, limits) or _is_constant(curves, limits):
        return None
    text = "the highest reward of the last {logs} logs is {highest:.3g}, and the mean is not rising"
    return Text(text, logs=len(highest), highest=max(highest))


def reward_flat(curves: Curves, limits: Limits) -> Text | None:
    window = limits.reward_window
    if curves.count("reward") < limits.reward_flat_over or _is_constant(curves, limits):
        return None
    if abs(_change_in_errors(curves, limits, window)) > limits.significance / 2:
        return None
    start, end = fmean(curves.first("reward", window)), fmean(curves.last("reward", window))
    text = "after {logs} logs the mean reward is {end:.4g}; at the start it was {start:.4g}"
    return Text(text, logs=curves.count("reward"), end=end, start=start)


def reward_fell(curves: Curves, limits: Limits) -> Text | None:
    window = limits.some
    recent = curves.last("reward", min(curves.count("reward"), 10 * window))
    spread = curves.first("reward_std", window)
    if len(recent) < 2 * window or not spread:
        return None
    windows = [recent[end - window : end] for end in range(window, len(recent) + 1)]
    best, now = max(windows, key=fmean), windows[-1]
    error = ((pvariance(best) + pvariance(now)) / (window - 1)) ** 0.5
    fall = fmean(best) - fmean(now)
    if fall <= max(limits.significance * error, limits.reward_fall_share * fmean(spread)):
        return None
    text = "the mean reward over {logs} logs went from {best:.4g} to {now:.4g}"
    return Text(text, logs=window, best=fmean(best), now=fmean(now))


def no_group_variance(curves: Curves, limits: Limits) -> Text | None:
    share = _mean_of_last(curves, "frac_reward_zero_std", limits.some)
    if share is None or share < limits.groups_without_variance or curves.count("reward") == 0:
        return None
    if _is_constant(curves, limits) or _is_solved(curves, limits):
        return None
    text = "in {share:.0%} of the groups of the last {logs} logs all rewards are equal"
    return Text(text, share=share, logs=limits.some)


def reward_hacking(curves: Curves, limits: Limits) -> Text | None:
    if not has_risen(curves, limits):
        return None
    kl = curves.last("kl_ref", limits.some)
    if kl and median(kl) > limits.kl_to_reference:
        text = "the reward is rising while kl_ref is {kl:.3g} (limit {limit:g})"
        return Text(text, kl=median(kl), limit=limits.kl_to_reference)
    if _text_has_broken(curves, limits):
        repeated = _mean_of_last(curves, "completions/repetition", limits.some)
        text = "the reward is rising while {share:.0%} of the 4-grams of the completions repeat earlier ones"
        return Text(text, share=repeated)
    return None


def kl_growing(curves: Curves, limits: Limits) -> Text | None:
    kl = curves.last("kl_ref", limits.some)  # median: a single token can make the mean of a small batch large
    if not kl or median(kl) <= limits.kl_to_reference:
        return None
    if has_risen(curves, limits) or _has_risen_early(curves, limits):
        return None
    text = "the median kl_ref of the last {logs} logs is {kl:.3g} nats per token"
    return Text(text, logs=limits.some, kl=median(kl))


def nothing_learned(curves: Curves, limits: Limits) -> Text | None:
    if curves.count("loss") < limits.still_policy_over:
        return None
    clipped = curves.last("clip_ratio/region_mean", limits.some) or curves.last("clip_fraction", limits.some)
    kl = curves.last("kl_ref", limits.some)
    if kl:
        still = max(kl) < limits.still_policy_kl
    else:
        gradients = curves.first("grad_norm", curves.count("grad_norm"))  # all of them: a solved task has none left
        still = bool(gradients) and max(gradients) < limits.still_policy_kl
    if not still or not clipped or max(clipped) > 0 or _is_constant(curves, limits):
        return None
    logs = curves.count("loss")
    if not kl:
        text = (
            "after {logs} logs the gradient has always been 0 and no token was clipped: the policy is where it started"
        )
        return Text(text, logs=logs)
    text = "after {logs} logs kl_ref is {kl:.2g} and no token was clipped: the policy is where it started"
    return Text(text, logs=logs, kl=max(kl))


def completions_short(curves: Curves, limits: Limits) -> Text | None:
    length = _mean_of_last(curves, "completions/mean_length", limits.few)
    if length is None:
        return None
    start = fmean(curves.first("completions/mean_length", limits.few))
    has_shrunk = length < limits.shrunk_to * start and length < limits.shrunk_tokens
    if has_shrunk:
        text = "completions have {length:.1f} tokens on average; at the start they had {start:.1f}"
        return Text(text, length=length, start=start)
    if length <= limits.empty_tokens:
        return Text("completions have {length:.1f} tokens on average, including the EOS", length=length)
    return None


def completions_truncated(curves: Curves, limits: Limits) -> Text | None:
    share = _mean_of_last(curves, "completions/clipped_ratio", limits.some)
    if share is None or share < limits.truncated:
        return None
    text = "{share:.0%} of the completions of the last {logs} logs were cut off before they ended"
    return Text(text, share=share, logs=limits.some)


def completions_repeating(curves: Curves, limits: Limits) -> Text | None:
    share = _mean_of_last(curves, "completions/repetition", limits.some)
    if share is None or share < limits.repeated:
        return None
    return Text(
        "{share:.0%} of the 4-grams of the completions repeat earlier ones of the same completion", share=share
    )


def thinking_missing(curves: Curves, limits: Limits) -> Text | None:
    few = curves.last("completions/thinking_closed", limits.few)
    share = 0.0 if few and max(few) == 0 else _mean_of_last(curves, "completions/thinking_closed", limits.some)
    if share is None or share > limits.thinking_closed:
        return None
    if share == 0:
        return Text("none of the completions whose prompt opens <think> contains </think>")
    return Text("{share:.0%} of the completions whose prompt opens <think> contain </think>", share=share)


def sampling_certain(curves: Curves, limits: Limits) -> Text | None:
    start = curves.first("entropy", limits.few)
    if not start or curves.count("entropy") > 2 * limits.few or fmean(start) >= limits.certain_entropy:
        return None
    text = "the entropy of the first {logs} logs is {entropy:.2g} nats per token: almost nothing is random"
    return Text(text, logs=limits.few, entropy=fmean(start))


def critic_useless(curves: Curves, limits: Limits) -> Text | None:
    window = limits.critic_over
    explained = _mean_of_last(curves, "explained_variance", window)
    if explained is None or curves.count("explained_variance") < window + limits.some or explained >= 0:
        return None
    text = (
        "the critic's explained variance is {explained:.2f} over the last {rollouts} rollouts, worse than a constant"
    )
    return Text(text, explained=explained, rollouts=window)


def critic_loss_not_falling(curves: Curves, limits: Limits) -> Text | None:
    window = limits.critic_over
    explained = _mean_of_last(curves, "explained_variance", window)
    if explained is None or curves.count("explained_variance") < 2 * window:
        return None
    if not 0 <= explained < limits.critic_explains:
        return None
    start, end = fmean(curves.first("critic_loss", window)), fmean(curves.last("critic_loss", window))
    if end < limits.critic_falls_to * start:
        return None
    text = "critic_loss went from {start:.3g} to {end:.3g}, and the critic explains {explained:.0%} of the returns"
    return Text(text, start=start, end=end, explained=explained)


def engine_mismatch(curves: Curves, limits: Limits) -> Text | None:
    k3 = _mean_of_last(curves, "sampling/k3", limits.few)
    if k3 is None or k3 < limits.engine_k3:
        return None
    return Text("engine and trainer differ by a KL of {k3:.2g} nats per token on the same completions", k3=k3)


def calls_unparsed(curves: Curves, limits: Limits) -> Text | None:
    share = _mean_of_last(curves, "tools/failed/unparsed", limits.some)
    if share is None or share < limits.calls_failed:
        return None
    return Text("{share:.0%} of the calls of the last {logs} logs could not be read", share=share, logs=limits.some)


def tools_failing(curves: Curves, limits: Limits) -> Text | None:
    failed = _mean_of_last(curves, "tools/failure_frequency", limits.some)
    unparsed = _mean_of_last(curves, "tools/failed/unparsed", limits.some) or 0.0
    if failed is None or failed - unparsed < limits.calls_failed:
        return None
    shares = {kind: _mean_of_last(curves, f"tools/failed/{kind}", limits.some) or 0.0 for kind in TOOL_FAILURES}
    kinds = Texts(*(Text(TOOL_FAILURES[kind], share=share) for kind, share in shares.items() if share > 0))
    text = "{share:.0%} of the calls of the last {logs} logs could be read and failed ({kinds})"
    return Text(text, share=failed - unparsed, logs=limits.some, kinds=kinds)


TOOL_FAILURES = {
    "unknown": "{share:.0%} name a tool that does not exist",
    "arguments": "{share:.0%} have wrong arguments",
    "raised": "{share:.0%} raised an error",
    "timeout": "{share:.0%} took too long",
}


def episodes_endless(curves: Curves, limits: Limits) -> Text | None:
    share = _mean_of_last(curves, "episodes/reached_max_turns", limits.some)
    if share is None or share < limits.at_max_turns:
        return None
    text = "{share:.0%} of the episodes of the last {logs} logs were stopped at max_turns"
    return Text(text, share=share, logs=limits.some)


def observations_crowding(curves: Curves, limits: Limits) -> Text | None:
    share = _mean_of_last(curves, "episodes/observation_share", limits.some)
    if share is None or share < limits.observed:
        return None
    text = "{share:.0%} of the tokens of the episodes of the last {logs} logs are answers of tools"
    return Text(text, share=share, logs=limits.some)
