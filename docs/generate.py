# SPDX-License-Identifier: Apache-2.0
"""Writes the parts of the documentation that are generated from the code.

    python docs/generate.py            # updates the pages
    python docs/generate.py --check    # fails if a page is out of date

The generated text of a page is between `<!-- generated: NAME -->` and `<!-- end -->`.
"""

import json
import re
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

import trl
from transformers import TrainingArguments

from minimind_hf import GRPOConfig
from minimind_hf.algorithms import ADVANTAGES, OBJECTIVES
from minimind_hf.estimate import DEVICES, Setting, fitting_table
from minimind_hf.health.rules import RULES, Rule
from minimind_hf.language import said, speaking
from minimind_hf.trainer.settings import minimind_flags
from minimind_hf.trainer.settings.trl_fields import fields_without_effect, unsupported_fields, what_instead

FOLDER = Path(__file__).parent
sys.path[:0] = [str(FOLDER), str(FOLDER.parent / "recipes")]

import settings_tables  # noqa: E402 - beside this file, and it reads the groups of the recipes' help
from chinese_minimind import in_chinese  # noqa: E402

# Remarks on supported fields that differ from trl in more than their default, or need an explanation.
REMARKS = {
    "activation_checkpointing": "the new name of `gradient_checkpointing`",
    "bf16": "`None` means off (trl: on, unless `fp16` is)",
    "gradient_checkpointing": "the old name of `activation_checkpointing`",
    "lr_scheduler_kwargs": "for the default schedule; unset for all others",
    "per_device_train_batch_size": "completions: 2 prompts x 6 (trl: 1 x 8)",
    "use_bias_correction_kl": "no effect if `beta` is 0",
    "remove_unused_columns": "`True` is refused: rewards need the columns",
    "max_completion_length": "`None` is refused: a rollout needs a bound. Counts answers of tools, as in trl",
    "max_tool_calling_iterations": "`max_turns` is one more",
    "temperature": "log-probabilities use the same temperature, as in trl",
    "top_p": "scored over what it keeps (trl: over all tokens); refused with SGLang",
    "top_k": "scored over what it keeps (trl: over all tokens)",
    "min_p": "scored over what it keeps (trl: over all tokens); refused with SGLang",
    "repetition_penalty": "other values than 1 are refused; the error says why",
    "generation_kwargs": "`temperature`, `top_p`, `top_k`, `min_p`, `repetition_penalty`, `max_new_tokens`, "
    "`eos_token_id`; other keys that change the sampling are refused by name",
    "epsilon_high": "for cispo the cap itself, default 5.0 (trl: `epsilon`)",
    "delta": "refused with cispo, and if it would undo the upper clip",
    "scale_rewards": "population std (trl: sample std); default: that of the `advantage_estimator`",
    "multi_objective_aggregation": "population std (trl: sample std)",
    "loss_type": "all of trl's. `cispo` averages over sequences; for trl's mean over tokens, add "
    '`loss_aggregation="token"`',
    "importance_sampling_level": "also `sequence_token`, which was in trl's experimental GSPO-token trainer",
    "use_adaptive_entropy": "a step without valid tokens leaves the weight as it is",
    "mask_truncated_completions": "masked completions count in no divisor (trl: they do for grpo and dr_grpo)",
    "sync_ref_model": "works in every mode; checkpoints contain the reference; refused with adapters",
    "entropy_coef": "the mean is over the tokens of the optimizer step (trl: of each micro-batch)",
    "reward_weights": "all 0 is refused",
    "chat_template_kwargs": "they override `thinking_ratio`",
    "generation_batch_size": "must agree with `steps_per_generation` if both are set",
    "log_completions": "also written to `OUTPUT_DIR/completions` as jsonl",
    "auto_find_batch_size": "`True` is refused, as in trl",
    "label_smoothing_factor": "above 0 is refused: completions have no labels",
    "parallelism_config": "sequence parallelism is refused, as in trl",
}
_INHERITED_WITH_REMARK = ("auto_find_batch_size", "label_smoothing_factor", "parallelism_config")
# Derived from other fields when a config is created, so not defaults that a user could keep
FOLLOWING = ("generation_batch_size", "steps_per_generation")
_NO_VALUE = object()


def _by_name(config: type) -> dict[str, Field]:
    return {each.name: each for each in fields(config)}


def effective_defaults(config: type) -> dict[str, Any]:
    """Returns the effective defaults: some are decided only when a config is created."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # trl sets a deprecated field
        made = config(output_dir="run", use_cpu=True)
    values = {each.name: getattr(made, each.name) for each in fields(config)}
    following = dict.fromkeys(values.keys() & set(FOLLOWING))
    return {name: getattr(value, "value", value) for name, value in values.items()} | following


def trl_fields() -> tuple[list[str], list[str], list[str]]:
    """Returns all fields of trl's GRPOConfig that have an effect: those with a row, refused, from transformers."""
    unsupported = unsupported_fields(GRPOConfig)
    inherited, theirs, ours = map(effective_defaults, (TrainingArguments, trl.GRPOConfig, GRPOConfig))
    own, refused, others = [], [], []
    for name in _by_name(trl.GRPOConfig):
        if name in fields_without_effect(GRPOConfig):
            continue
        if name in unsupported:
            refused.append(name)
        elif name in _INHERITED_WITH_REMARK or not inherited.get(name, _NO_VALUE) == theirs[name] == ours[name]:
            own.append(name)
        else:
            others.append(name)
    return own, refused, others


def trl_table() -> str:
    """The table of trl's GRPOConfig fields and their meaning here."""
    own, refused, others = trl_fields()
    theirs, ours = effective_defaults(trl.GRPOConfig), effective_defaults(GRPOConfig)
    unsupported = unsupported_fields(GRPOConfig)
    supported = [(f"`{name}`", *_values(theirs[name], ours[name]), REMARKS.get(name, "")) for name in sorted(own)]
    accepted = [(f"`{name}`", why) for name, (_, why) in sorted(fields_without_effect(GRPOConfig).items())]
    instead = [(f"`{name}`", f"`{unsupported[name]!r}`", what_instead(name)) for name in sorted(refused)]
    return "\n\n".join(
        [
            "### Supported, with trl's meaning",
            _table(("field", "trl's default", "default here", "remark"), supported),
            "### Accepted without effect",
            "They change no number here; a value other than trl's default is reported once at the start.",
            _table(("field", "why"), accepted),
            "### Refused by name",
            "trl's own default is accepted, so that files that set it explicitly work; any other value is an error.",
            _table(("field", "accepted", "what to use instead"), instead),
            "### As in transformers' TrainingArguments",
            ", ".join(f"`{name}`" for name in sorted(others)) + ".",
        ]
    )


def _values(one: Any, other: Any) -> tuple[str, str]:
    return f"`{one!r}`", "the same" if one == other else f"**`{other!r}`**"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows])


def health_rules(language: str = "en") -> str:
    """The rules of training health, one section each."""
    with speaking(language):
        return "\n\n".join(_section(rule, *_OF_A_RULE[language]) for rule in RULES)


_OF_A_RULE = {
    "en": ("`{name}`. Reported when {when}.", "What to try:"),
    "zh": ("`{name}`。{when}，就会报告。", "可以尝试："),
}


def _section(rule: Rule, when: str, what_to_try: str) -> str:
    remedies = "\n".join(f"- {said(remedy)}" for remedy in rule.remedies)
    reported = when.format(name=rule.name, when=rule.when())
    return f"### {said(rule.title)}\n\n{reported}\n\n{said(rule.means)}\n\n{what_to_try}\n\n{remedies}"


def losses() -> str:
    """The table of losses, from the table in the code."""
    rows = []
    for name, objective in OBJECTIVES.items():
        paper = f"[{objective.paper}](https://arxiv.org/abs/{objective.arxiv})"
        aggregation = f"`{objective.aggregation}`" + (", fixed" if objective.fixed_aggregation else "")
        upper = "its distance from 1; default `epsilon`" if objective.clipped else "not used"
        upper = "the largest ratio itself; default 5.0" if objective.caps_ratio else upper
        rows.append((f"`{name}`", objective.summary, aggregation, upper, paper))
    return _table(("`loss_type`", "what it is", "`loss_aggregation`", "`epsilon_high`", "source"), rows)


def estimators() -> str:
    """The table of advantage estimators, from the table in the code."""
    rows = [
        (f"`{name}`", row.summary, ", ".join(f"`{scale}`" for scale in row.scales) or "its own")
        for name, row in ADVANTAGES.items()
    ]
    return _table(("`advantage_estimator`", "advantage of a completion", "`scale_rewards`"), rows)


def architectures() -> str:
    """The table of causal LMs, from what docs/architectures.py found."""
    found = json.loads((Path(__file__).parent / "architectures.json").read_text(encoding="utf-8"))
    trained = [
        (f"`{kind}`", row["class"], row["layout"], row["rollout"], row["difference"])
        for kind, row in found.items()
        if row["outcome"] == "trained"
    ]
    others = [
        (f"`{kind}`", row["class"], row["outcome"], _cell(row["reason"]))
        for kind, row in found.items()
        if row["outcome"] != "trained"
    ]
    return "\n\n".join(
        [
            f"### Trained ({len(trained)})",
            _table(("model type", "class", "layout", "decoder", "largest difference, nats"), trained),
            f"### Not trained ({len(others)})",
            _table(("model type", "class", "outcome", "reason"), others),
        ]
    )


# What the table of devices assumes
FITTING = Setting(on_cuda=True, bf16=True, prompt=256, completion=1024, rollout_rows=12)


def devices() -> str:
    """What fits which device, as `minimind-hf estimate --device cuda` says with these settings."""
    return _table(("model", "trained by", *(f"{device} GB" for device in DEVICES)), fitting_table(FITTING))


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def minimind_table(rows: Iterable[minimind_flags.Row], script: str = "MiniMind", language: str = "en") -> str:
    """A table of MiniMind's flags, from what the recipes answer to them."""
    if language == "zh":
        return _table((script, "这里", "区别"), (map(in_chinese, row) for row in rows))
    return _table((script, "here", "what differs"), rows)


def minimind_tables(language: str = "en") -> dict[str, Callable[[], str]]:
    """The tables of the page about MiniMind's scripts."""
    return {
        "minimind-rl": lambda: minimind_table(minimind_flags.RL, language=language),
        "minimind-agent": lambda: minimind_table(minimind_flags.AGENT, "train_agent.py", language),
        "minimind-before-rl": lambda: minimind_table(minimind_flags.BEFORE_RL, language=language),
    }


PARTS: dict[str, dict[str, Callable[[], str]]] = {
    "algorithms.md": {"losses": losses, "estimators": estimators},
    "models.md": {"architectures": architectures},
    "migrate-from-minimind.md": minimind_tables(),
    "zh/migrate-from-minimind.md": minimind_tables("zh"),
    "scaling.md": {"devices": devices},
    "migrate-from-trl.md": {"trl-fields": trl_table},
    "settings.md": {
        "settings": settings_tables.settings_tables,
        "settings-of-trl": settings_tables.fields_of_trl,
    },
    "zh/settings.md": {
        "settings": lambda: settings_tables.settings_tables("zh"),
        "settings-of-trl": settings_tables.fields_of_trl,
    },
    "troubleshooting.md": {"health-rules": health_rules},
    "zh/troubleshooting.md": {"health-rules": lambda: health_rules("zh")},
}


def up_to_date(page: str) -> str:
    """Returns the text of a page with up-to-date generated parts."""
    text = (FOLDER / page).read_text(encoding="utf-8")
    for name, make in PARTS[page].items():
        start, end = f"<!-- generated: {name} -->", "<!-- end -->"
        pattern = re.compile(rf"{re.escape(start)}.*?{re.escape(end)}", re.DOTALL)
        if not pattern.search(text):
            raise ValueError(f"{page} has no part {name!r}. Put {start} and {end} where the part belongs.")
        part = f"{start}\n\n{make()}\n\n{end}"
        text = pattern.sub(lambda _, part=part: part, text, count=1)
    return text


def main(arguments: list[str]) -> int:
    stale = [page for page in PARTS if up_to_date(page) != (FOLDER / page).read_text(encoding="utf-8")]
    if arguments == ["--check"]:
        for page in stale:
            print(f"docs/{page} is out of date: run python docs/generate.py", file=sys.stderr)
        return 1 if stale else 0
    for page in stale:
        (FOLDER / page).write_text(up_to_date(page), encoding="utf-8")
        print(f"wrote docs/{page}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
