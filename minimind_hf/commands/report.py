# SPDX-License-Identifier: Apache-2.0
"""`minimind-hf report`: writes a run as one HTML page."""

import argparse
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="minimind-hf report",
        description="Writes the curves, health messages and completions of a run as one self-contained page. The run "
        "may still be in progress, if it has saved a checkpoint.",
        allow_abbrev=False,
    )
    parser.add_argument("run_dir", type=Path, help="the output_dir of the run")
    parser.add_argument("--output", type=Path, metavar="FILE", help="the page to write (default: RUN_DIR/report.html)")
    options = parser.parse_args(arguments)

    from ..reports.page import write_report

    print(f"wrote {write_report(options.run_dir, options.output)}")
    return 0
