# SPDX-License-Identifier: Apache-2.0
"""The charts of a run: a table of what there is to draw. `curves` makes what a browser draws of it."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from ..language import said
from .record import FROM_DATA, FROM_ROLLOUTS, RunRecord

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
        learns_from (`str`, *optional*): The runs that have it, by what they learn from. Unset: all.
    """

    title: str
    names: tuple[str, ...]
    note: str = ""
    unit: str = ""
    spread: str | None = None
    stacked: bool = False
    weighted: bool = False
    label: Callable[[str], str] = lambda name: name
    learns_from: str | None = None

    def is_of(self, run: RunRecord) -> bool:
        """Whether runs of this kind have the chart."""
        return self.learns_from in (None, run.learns_from)

    def found_in(self, run: RunRecord) -> list[str]:
        """The logged names of the run that belong on this chart."""
        if not self.is_of(run):
            return []
        found = []
        for pattern in self.names:
            found += [name for name in run.logged_names if _fits(pattern)(name) and name not in found]
        return found


@cache
def _fits(pattern: str) -> Callable[[str], re.Match | None]:
    return re.compile(".+".join(map(re.escape, pattern.split("*")))).fullmatch


def _phase(name: str) -> str:
    return said("evaluation" if name.startswith("eval_") else "training")


# Of runs that learn from given texts, by the names of trl's logs
_CHARTS_OF_DATA = tuple(
    replace(chart, learns_from=FROM_DATA)
    for chart in (
        Chart(
            "Training and held-out loss",
            ("loss", "eval_loss"),
            "Should fall. Held-out loss that rises again: the rows are learned by heart.",
            label=_phase,
        ),
        Chart(
            "Token accuracy",
            ("mean_token_accuracy", "eval_mean_token_accuracy"),
            "Share of the tokens that the model thought the most likely.",
            label=_phase,
        ),
        Chart(
            "Pairs in the right order",
            ("rewards/accuracies", "eval_rewards/accuracies", "accuracy", "eval_accuracy"),
            "Share of the pairs whose chosen answer has the higher reward; chance is 0.5.",
            label=_phase,
        ),
        Chart(
            "Margin",
            ("rewards/margins", "eval_rewards/margins", "margin", "eval_margin"),
            "By how much the reward of the chosen answer is higher.",
            label=_phase,
        ),
        Chart(
            "Rewards of the pairs",
            ("rewards/chosen", "rewards/rejected"),
            "Of DPO: how much more likely than at the start the answers have become, times beta.",
            label=lambda name: name.removeprefix("rewards/"),
        ),
        Chart("Rewards of the batch", ("mean_reward", "min_reward", "max_reward"), "Of both answers of each pair."),
        Chart(
            "Log-probabilities of the pairs",
            ("logps/chosen", "logps/rejected"),
            "Summed over the answer. Both fall fast: the model forgets the answers instead of choosing between them.",
            "nats",
            label=lambda name: name.removeprefix("logps/"),
        ),
        Chart("Router loss", ("aux_loss",), "The auxiliary loss of a mixture of experts."),
        Chart("Entropy of the next token", ("entropy", "eval_entropy"), unit="nats", label=_phase),
    )
)

CHARTS = (
    *_CHARTS_OF_DATA,
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
        learns_from=FROM_ROLLOUTS,
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
        label=_phase,
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
    Chart("Entropy", ("entropy",), "Exploration ends when it reaches 0.", "nats", learns_from=FROM_ROLLOUTS),
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
    Chart(
        "Loss",
        ("loss", "policy_loss", "aux_loss"),
        "Says little by itself: the data change with the policy.",
        learns_from=FROM_ROLLOUTS,
    ),
    Chart(
        "Gradient norm",
        ("grad_norm", "critic_grad_norm"),
        "Spikes often come before a collapse: lower the learning rate.",
    ),
    Chart("Learning rate", ("learning_rate", "critic_learning_rate"), label=lambda name: name.replace("_", " ")),
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
    r".*/std|reward_std|ratio_mean|advantages/.*|train_.*|total_.*|eval_.*|completions/(count|tokens)"
)
_NOT_DRAWN_OF_DATA = re.compile(r"logits/.*|num_tokens")


def charts_of(run: RunRecord) -> list[Chart]:
    """The charts that have data in this run. Values that reward functions log themselves come last."""
    found = [chart for chart in CHARTS if chart.found_in(run) and _adds_something(chart, run)]
    drawn = {name for chart in found for name in chart.found_in(run)}
    custom = [name for name in run.logged_names if name not in drawn and not _is_left_out(name, run)]
    return found + [Chart(name, (name,), "A custom metric.") for name in custom]


def _is_left_out(name: str, run: RunRecord) -> bool:
    from_data = run.learns_from == FROM_DATA and _NOT_DRAWN_OF_DATA.fullmatch(name)
    return bool(from_data or _NOT_DRAWN.fullmatch(name))


def _adds_something(chart: Chart, run: RunRecord) -> bool:
    """The parts of a reward need weights, and more than one part."""
    return not chart.weighted or sum(name in run.weights for name in map(chart.label, chart.found_in(run))) > 1


def running_mean(values: Sequence[float]) -> list[float]:
    """Mean of each value and those before it, over a window that grows with the length of the run."""
    width = max(1, len(values) // _SMOOTHING)
    windows = (values[max(0, end - width) : end] for end in range(1, len(values) + 1))
    return [sum(window) / len(window) for window in windows]
