# SPDX-License-Identifier: Apache-2.0
"""Follows the logs of a run and says in one line what is wrong and what to try.

A message comes once per episode: when its rule begins to apply, and again only after the rule has not applied for some
logs. A run keeps its messages in OUTPUT_DIR/health.jsonl, from where [`read_health`] reads them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..language import LANGUAGES, Text, Texts, chosen, said, speaking
from ..reports.record import HEALTH_FILE, read_lines
from .checks import LIMITS, Limits
from .curves import Curves
from .rules import RULES, Rule

EPISODE_ENDS_AFTER = 10  # logs in a row to which the rule does not apply


@dataclass(frozen=True)
class HealthMessage:
    """What was wrong with a run at one time.

    Args:
        step (`int`): Optimizer step of the log.
        rule (`str`): Name of the rule.
        title (`str`): What is wrong.
        found (`str`): The numbers.
        advice (`str`): What to try.
        language (`str`): In which language that is.
        texts (`dict[str, str]`): The whole message in every language, for reports.
    """

    step: int
    rule: str
    title: str
    found: str
    advice: str
    language: str = "en"
    texts: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        with speaking(self.language):
            return said("{title}: {found}. Try: {advice}.", title=self.title, found=self.found, advice=self.advice)

    def __str__(self) -> str:
        with speaking(self.language):
            return said("step {step}: {message}", step=self.step, message=self.text)


def message_of(
    rule: Rule, step: int, found: Text | Texts | str, language: str = "en", remedies: Sequence[str] = ()
) -> HealthMessage:
    """The message of a rule.

    Args:
        rule ([`Rule`]): What applies.
        step (`int`): When.
        found (`Text`): What it found.
        language (`str`): `"en"` or `"zh"`.
        remedies (`Sequence[str]`): What to try, if not what the rule says.
    """

    def worded(language: str) -> HealthMessage:
        with speaking(language):
            advice = str(Texts(*map(Text, remedies or rule.remedies), between="; or "))
            return HealthMessage(step, rule.name, said(rule.title), str(found), advice, language)

    return replace(worded(language), texts={each: worded(each).text for each in LANGUAGES})


class HealthMonitor:
    """Follows the curves of one run: a pure function of its logs.

    Args:
        rules (`Sequence[Rule]`): What to look for.
        limits ([`Limits`]): Their thresholds.
        language (`str`): Of its messages: `"en"`, `"zh"` or `"auto"`.
    """

    def __init__(self, rules: Sequence[Rule] = RULES, limits: Limits = LIMITS, language: str = "en"):
        self.rules = rules
        self.limits = limits
        self.language = chosen(language)
        self.curves = Curves()
        self._quiet_for: dict[str, int] = {}  # for each rule in an episode: logs since it last applied

    def observe(self, step: int, log: Mapping[str, float]) -> list[HealthMessage]:
        """Adds a log of training and returns the messages of the rules that have begun to apply."""
        self.curves.add(log)
        messages = []
        for rule in self.rules:
            found = rule.check(self.curves, self.limits)
            if found is None:
                self._end_if_quiet(rule.name)
                continue
            if rule.name not in self._quiet_for:
                messages.append(message_of(rule, step, found, self.language))
            self._quiet_for[rule.name] = 0
        return messages

    def _end_if_quiet(self, name: str) -> None:
        if name in self._quiet_for:
            self._quiet_for[name] += 1
            if self._quiet_for[name] >= EPISODE_ENDS_AFTER:
                del self._quiet_for[name]


def read_health(path: str | Path) -> list[HealthMessage]:
    """Reads the messages of a run.

    Args:
        path (`str` or `Path`): The file, or the run's folder.

    Returns:
        `list[HealthMessage]`: Empty if nothing was wrong.
    """
    path = Path(path)
    rows = read_lines(path / HEALTH_FILE if path.is_dir() else path)
    return [HealthMessage(**{name: value for name, value in row.items() if name != "message"}) for row in rows]
