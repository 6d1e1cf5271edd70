# SPDX-License-Identifier: Apache-2.0
"""Adds the curves of a run to health_curves.json, which test_checks.py plays to the rules.

    python tests/health/record_curves.py NAME CHECKPOINT/trainer_state.json [RULE ...]

The rules are those that the run should make speak; a good run has none.
"""

import json
import re
import sys
from pathlib import Path

import minimind_hf.health.checks as checks

FILE = Path(__file__).with_name("health_curves.json")


def names_that_rules_look_at() -> set[str]:
    source = Path(checks.__file__).read_text(encoding="utf-8")
    return set(re.findall(r'curves, "([\w/]+)"|(?:first|last|count)\("([\w/]+)"', source)) - {""}


def main(name: str, state: str, *rules: str) -> None:
    logs = json.loads(Path(state).read_text(encoding="utf-8"))["log_history"]
    logs = [log for log in logs if "loss" in log]
    wanted = {one or other for one, other in names_that_rules_look_at()}
    curves = {
        metric: [float(f"{log[metric]:.4g}") if metric in log else None for log in logs]
        for metric in sorted(wanted)
        if any(metric in log for log in logs)
    }
    recorded = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    recorded[name] = {"rules": list(rules), "curves": curves}
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in recorded.items()]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
