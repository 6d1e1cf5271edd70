# SPDX-License-Identifier: Apache-2.0
"""Chinese, as those who train models write it: token, prompt, reward, critic, rollout and the like stay as they are.

One table for the rules of the health check (`health`), one for what its checks find (`found`), one for the lines of a
run (`runs`). Names in braces are those of the English text. The tables import nothing.
"""

from .found import FOUND
from .health import RULES
from .runs import RUNS

CHINESE = RULES | FOUND | RUNS

__all__ = ["CHINESE"]
