# SPDX-License-Identifier: Apache-2.0
"""How values that add up are stacked, computed by the page's own script."""

import json
import shutil
import subprocess

import pytest

from minimind_hf.reports.packed import asset

NODE = shutil.which("node")


@pytest.mark.skipif(NODE is None, reason="no Node.js on this machine (Debian: apt install nodejs)")
def test_a_value_that_falls_below_zero_leaves_the_stack_above_where_it_ended():
    lines = [{"x": [1, 2, 3], "y": [0.5, 0.5, 0.5]}, {"x": [1, 2, 3], "y": [0.0, -0.003, 0.1]}]
    script = f"{asset('stacking.js')}\nconsole.log(JSON.stringify(stacked({json.dumps(lines)})))"
    done = subprocess.run([NODE, "-e", script], capture_output=True, text=True, check=True, timeout=60)
    length, repetition = json.loads(done.stdout)
    assert length["above"] == {"start": [0, 0, 0], "end": [0.5, 0.5, 0.5], "isEmpty": False}
    assert length["below"]["isEmpty"] and not any(length["below"]["end"])
    assert repetition["above"]["start"] == [0.5, 0.5, 0.5] and repetition["above"]["end"] == [0.5, 0.5, 0.6]
    assert repetition["below"] == {"start": [0, 0, 0], "end": [0, -0.003, 0], "isEmpty": False}
