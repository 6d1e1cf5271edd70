# SPDX-License-Identifier: Apache-2.0
"""The charts of a run: a table of what there is to draw. `curves` makes what a browser draws of it."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from .record import RunRecord

_SMOOTHING = 20  # a running mean averages about a twentieth of the run


@dataclass(frozen=True)
class Chart:
    """One chart: which logged values it shows, and how.

    Args:
        title (`str`): Heading above the chart.
        names (`tuple[str, ...]`): Logged names. A `*` in one matches any text.
        note (`str`): What to look for.
        unit (`str`): Label of the vertical axis.
        spread (`str`, *optional*): Logged name of the standard deviation around the first name's values.
        stacked (`bool`): Whether the values add up.
        weighted (`bool`): Whether the values are those of reward functions, to be multiplied with their weights.
        label (`Callable[[str], str]`): Turns a logged name into its label in the legend.
    """

    title: str
    names: tuple[str, ...]
    note: str = ""
    unit: str = ""
    spread: str | None = None
    stacked: bool = False
    weighted: bool = False
    label: Callable[[str], str] = lambda name: name

    def found_in(self, run: RunRecord) -> list[str]:
        """The logged names of the run that belong on this chart."""
        found = []
        for pattern in self.names:
            found += [name for name in run.logged_names if _fits(pattern)(name) and name not in found]
        return found


@cache
def _fits(pattern: str) -> Callable[[str], re.Match | None]:
    return re.compile(".+".join(map(re.escape, pattern.split("*")))).fullmatch


CHARTS = (
    Chart(
        "Reward",
        ("reward", "reward_min", "reward_max", "eval_reward"),
        "Should rise.",
        spread="reward_std",
    ),
    Chart(
        "Parts of the reward",
        ("rewards/*/mean",),
        "Each reward function times its weight; together they are the reward.",
        stacked=True,
        weighted=True,
        label=lambda name: name.removeprefix("rewards/").removesuffix("/mean"),
    ),
    Chart(
        "Held-out prompts",
        ("eval_rewards/*/mean", "eval_*_reward", "eval_*_rewards/*/mean"),
        "Evaluations on prompts that are not trained on, one line per reward function.",
        label=lambda name: name.removeprefix("eval_").removeprefix("rewards/").removesuffix("/mean"),
    ),
    Chart(
        "Signals",
        ("rewards/*/mean",),
        "One line per reward function, before its weight. One that rises as another falls may do so at its expense.",
        label=lambda name: name.removeprefix("rewards/").removesuffix("/mean"),
    ),
    Chart(
        "Divergence from the teacher",
        ("divergence", "eval_divergence"),
        "Should fall: the loss of a distillation, per token.",
        "nats",
        label=lambda name: {"divergence": "training", "eval_divergence": "evaluation"}[name],
    ),
    Chart("KL to the reference", ("kl_ref",), "Steady growth beyond 0.1 means the policy is drifting away.", "nats"),
    Chart(
        "Length of completions",
        ("completions/mean_length", "completions/min_length", "completions/max_length"),
        "A sudden rise or fall often means length itself is being rewarded.",
        "tokens",
        label=lambda name: name.removeprefix("completions/").removesuffix("_length"),
    ),
    Chart(
        "Rewards of turns",
        ("rewards/turn_*",),
        "Of the first turns, over the episodes that have them.",
        label=lambda name: name.removeprefix("rewards/").replace("_", " "),
    ),
    Chart(
        "Turns and calls",
        ("episodes/turns", "tools/call_frequency"),
        "Turns of the policy, and calls of tools, per episode.",
    ),
    Chart(
        "Shares of episodes",
        (
            "tools/failure_frequency",
            "tools/failed/unparsed",
            "episodes/reached_max_turns",
            "episodes/observation_share",
        ),
        "Calls that failed, and that could not be read; episodes stopped at max_turns; tokens that are answers.",
    ),
    Chart(
        "Shares",
        (
            "completions/clipped_ratio",
            "completions/repetition",
            "completions/thinking_closed",
            "completions/on_policy",
            "frac_reward_zero_std",
            "early_stopped",
        ),
        "clipped_ratio: completions that were cut off. frac_reward_zero_std: groups that teach nothing.",
        label=lambda name: name.removeprefix("completions/"),
    ),
    Chart(
        "Clip fraction",
        ("clip_ratio/*_mean", "clip_fraction", "value_clip_fraction"),
        "Always 0, with no KL: nothing is learned. Far above 0.2: steps are too large.",
        label=lambda name: name.removeprefix("clip_ratio/"),
    ),
    Chart(
        "Policy moved since sampling", ("approx_kl",), "How stale the rollouts are by the time they are trained on."
    ),
    Chart("Entropy", ("entropy",), "Exploration ends when it reaches 0.", "nats"),
    Chart("Entropy bonus", ("entropy_coef",), "Weight of the bonus."),
    Chart(
        "Engine and trainer",
        ("sampling/sampling_logp_difference/*", "sampling/k3", "sampling/audit"),
        "How far the engine's log-probabilities are from the trainer's: 0, up to rounding.",
        "nats",
        label=lambda name: name.removeprefix("sampling/").removeprefix("sampling_"),
    ),
    Chart(
        "Weights that correct the engine",
        ("sampling/importance_sampling_ratio/*",),
        "Far from 1: the engine samples from another policy.",
        label=lambda name: name.rpartition("/")[2],
    ),
    Chart("Age of rollouts", ("sampling/staleness",), "Updates since their weights.", "updates"),
    Chart("Share of prompts in the servers' caches", ("sampling/cached_share",)),
    Chart(
        "Prompts",
        ("prompts/without_variance", "prompts/solved", "prompts/hopeless"),
        "Shares: groups put aside because they teach nothing; prompts that are solved, or hopeless.",
        label=lambda name: name.removeprefix("prompts/"),
    ),
    Chart(
        "Prompts drawn and put aside",
        ("prompts/drawn", "prompts/filled", "prompts/skipped"),
        "Per rollout of one process.",
        label=lambda name: name.removeprefix("prompts/"),
    ),
    Chart("Loss", ("loss", "policy_loss", "aux_loss"), "Says little by itself: the data change with the policy."),
    Chart(
        "Gradient norm",
        ("grad_norm", "critic_grad_norm"),
        "Spikes often come before a collapse: lower the learning rate.",
    ),
    Chart("Critic: loss", ("critic_loss",), "Should fall."),
    Chart("Critic: explained variance", ("explained_variance",), "1 is perfect; below 0 is worse than a constant."),
    Chart("Critic: values and returns", ("values/mean", "returns/mean"), "Values should approach the returns."),
    Chart(
        "Time per step",
        ("seconds/*",),
        "Where an optimizer step spends its time.",
        "seconds",
        stacked=True,
        label=lambda name: name.removeprefix("seconds/"),
    ),
    Chart(
        "Rate",
        ("tokens_per_second",),
        "Completion tokens per second of the whole run, not only of sampling.",
        "tokens / s",
    ),
    Chart(
        "Speculation",
        ("rollout/tokens_per_pass", "rollout/acceptance"),
        "Tokens that a row draws per pass, 1 without drafts; and the share of drafts that was drawn.",
        label=lambda name: name.removeprefix("rollout/"),
    ),
)


_NOT_DRAWN = re.compile(
    r".*/std|reward_std|learning_rate|critic_learning_rate|ratio_mean|advantages/.*|train_.*|total_.*|eval_.*"
    r"|completions/(count|tokens)"
)


def charts_of(run: RunRecord) -> list[Chart]:
    """The charts that have data in this run. Values that reward functions log themselves come last."""
    found = [chart for chart in CHARTS if chart.found_in(run) and _adds_something(chart, run)]
    drawn = {name for chart in found for name in chart.found_in(run)}
    custom = [name for name in run.logged_names if name not in drawn and not _NOT_DRAWN.fullmatch(name)]
    return found + [Chart(name, (name,), "A custom metric.") for name in custom]


def _adds_something(chart: Chart, run: RunRecord) -> bool:
    """The parts of a reward need weights, and more than one part."""
    return not chart.weighted or sum(name in run.weights for name in map(chart.label, chart.found_in(run))) > 1


def running_mean(values: Sequence[float]) -> list[float]:
    """Mean of each value and those before it, over a window that grows with the length of the run."""
    width = max(1, len(values) // _SMOOTHING)
    windows = (values[max(0, end - width) : end] for end in range(1, len(values) + 1))
    return [sum(window) / len(window) for window in windows]
