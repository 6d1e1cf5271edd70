# SPDX-License-Identifier: Apache-2.0
"""`minimind-hf report`: writes one run, or several compared, as one HTML page."""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

from ..language import AUTO, LANGUAGES, language, said, speaking

COMPARISON_FILE = "comparison.html"
SECONDS_BETWEEN_LOOKS = 10


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="minimind-hf report",
        description="Writes the curves, health messages and completions of a run as one page that needs no network. "
        "Several runs are compared: curves over each other, results with intervals, settings that differ; of runs "
        "that differ only in their seeds, the mean. A run may still be in progress.",
        allow_abbrev=False,
    )
    parser.add_argument("run_dir", type=Path, nargs="+", metavar="RUN", help="the output_dir of a run")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help=f"the page to write (default: RUN/report.html, of several runs ./{COMPARISON_FILE})",
    )
    parser.add_argument(
        "--watch",
        type=int,
        nargs="?",
        const=SECONDS_BETWEEN_LOOKS,
        metavar="SECONDS",
        help="write the page again while the runs go on, and let the browser that shows it load it again: every so "
        f"many seconds (default {SECONDS_BETWEEN_LOOKS}), until Ctrl-C",
    )
    parser.add_argument(
        "--language",
        choices=(AUTO, *LANGUAGES),
        default=AUTO,
        help="of the page: en, zh, or auto for Chinese where the locale is (default: auto)",
    )
    options = parser.parse_args(arguments)
    if options.watch is not None and options.watch < 1:
        raise ValueError(f"--watch is {options.watch}. Give a whole number of seconds of at least 1.")

    from ..reports.page import REPORT_FILE, write_report

    output = options.output
    if output is None:
        output = options.run_dir[0] / REPORT_FILE if len(options.run_dir) == 1 else Path(COMPARISON_FILE)
    with speaking(options.language):
        if options.watch is None:
            print(said("wrote {path}", path=write_report(options.run_dir, output, language=language())))
        else:
            _watch(options.run_dir, output, options.watch)
    return 0


def _watch(folders: Sequence[Path], output: Path, seconds: int) -> None:
    """Writes the page whenever a file of a run has changed; at the end once more, as a page that stays as it is."""
    from ..reports.page import write_report
    from ..reports.record import has_log, last_change

    text = "open {path}; it is written again every {seconds} s while its runs go on. Ctrl-C ends this."
    print(said(text, path=output, seconds=seconds), flush=True)
    seen = None
    try:
        while True:
            changed = [last_change(folder) for folder in folders]
            if changed != seen and all(map(has_log, folders)):
                write_report(folders, output, seconds, language())
                print(said("{time} wrote {path}", time=time.strftime("%H:%M:%S"), path=output), flush=True)
                seen = changed
            time.sleep(seconds)
    except KeyboardInterrupt:
        if seen is not None:
            print(said("wrote {path}", path=write_report(folders, output, language=language())))
