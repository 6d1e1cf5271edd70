# SPDX-License-Identifier: Apache-2.0
"""`minimind-hf report`: a run as one HTML page."""

import argparse
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "report",
        help="write a run as an HTML page",
        description="Writes curves, health messages and completions of a run into one page that needs nothing else. "
        "The run may still be going on, once it has saved a checkpoint.",
    )
    parser.add_argument("run_dir", type=Path, help="the output_dir of the run")
    parser.add_argument("--output", type=Path, metavar="FILE", help="the page (default: RUN_DIR/report.html)")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    from ..reports.page import write_report

    print(f"wrote {write_report(options.run_dir, options.output)}")
    return 0
