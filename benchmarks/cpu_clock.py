# SPDX-License-Identifier: Apache-2.0
"""Runs a script whose seconds are those of its CPU time, so that other load on the machine changes them little.

    OMP_NUM_THREADS=1 python benchmarks/cpu_clock.py recipes/grpo.py --max_steps 20

With one thread they are the seconds that it would take alone.
"""

import runpy
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    del sys.argv[0]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    time.perf_counter = time.process_time
    runpy.run_path(sys.argv[0], run_name="__main__")
