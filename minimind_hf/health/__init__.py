# SPDX-License-Identifier: Apache-2.0
"""Training health: reads the logs of a run and says what seems to be wrong and what to try.

This room reads logs and knows no trainer. It imports only `language` and `reports.record` of the project. What is
found, and from which threshold on, belongs in `checks`; what is said about it in `rules`, from which
docs/troubleshooting.md is generated; when it is said again in `monitor`. A new rule is a check, a row of `RULES`, and
their Chinese: in `language/chinese/health.py` of the rule, in `found.py` next to it of what the check finds.
"""
