# SPDX-License-Identifier: Apache-2.0
"""Chinese, as those who train models write it: token, prompt, reward, critic, rollout and the like stay as they are.

One table for the rules of the health check (`health`), one for what its checks find (`found`), one for the lines of a
run (`runs`), two for its page (`report`, `charts`). Names in braces are those of the English text. The tables import
nothing.
"""

from .charts import CHARTS
from .found import FOUND
from .health import RULES
from .report import PAGE
from .runs import RUNS

REPORT = CHARTS | PAGE
CHINESE = RULES | FOUND | RUNS | REPORT

__all__ = ["CHINESE", "REPORT"]
