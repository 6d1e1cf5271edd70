# SPDX-License-Identifier: Apache-2.0
"""`minimind-hf report`: a run as one HTML page."""

import argparse
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "report",
        help="write an HTML page about a run",
        description="Writes the curves, health messages and completions of a run as one self-contained page. The run "
        "may still be running, if it has saved a checkpoint.",
    )
    parser.add_argument("run_dir", type=Path, help="the output_dir of the run")
    parser.add_argument("--output", type=Path, metavar="FILE", help="the page to write (default: RUN_DIR/report.html)")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from ..reports.page import write_report

    print(f"wrote {write_report(options.run_dir, options.output)}")
    return 0
