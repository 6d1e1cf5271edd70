# SPDX-License-Identifier: Apache-2.0
"""Makes the example of the site from a run of `make demo`: its reward curve, its report and a picture of that.

    make docs-example                               # runs the demo first
    python docs/site/example.py outputs/grpo        # of a run that is there already
    python docs/site/example.py docs/example/run    # the picture alone, where the page looks different

The picture is taken by chromium, or by the Chrome that CHROMIUM names.

docs/example/run keeps of the run's folder what the report is made from, with numbers of five digits. `make docs` makes
the report itself, which contains a plotting library and is larger than all of this.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from minimind_hf.reports.page import write_report

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
EXAMPLE = DOCS / "example" / "run"
KEPT = ("run.json", "trainer_state.json", "health.jsonl", "samples/*.jsonl")
WIDTH, HEIGHT = 1200, 1000  # of a picture, in the pixels of a page


def keep(run: Path, folder: Path) -> None:
    """Copies what the report reads, rounded."""
    shutil.rmtree(folder, ignore_errors=True)
    for source in sorted(path for pattern in KEPT for path in run.glob(pattern)):
        target = folder / source.relative_to(run)
        target.parent.mkdir(parents=True, exist_ok=True)
        text = source.read_text(encoding="utf-8")
        parts = text.splitlines() if source.suffix == ".jsonl" else [text]
        lines = [json.dumps(rounded(json.loads(part)), ensure_ascii=False, separators=(",", ":")) for part in parts]
        target.write_text("\n".join(lines) + "\n", encoding="utf-8")


def rounded(value: Any) -> Any:
    """Numbers with five digits."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return {name: rounded(each) for name, each in value.items()} if isinstance(value, dict) else value


def photograph(page: Path, picture: Path) -> None:
    """A picture of the top of a page, by chromium."""
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("There is no chromium to take pictures with. Install one, or set CHROMIUM to the path of a Chrome.")
    with tempfile.TemporaryDirectory() as profile:
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"]
        flags += [f"--user-data-dir={profile}", f"--window-size={WIDTH},{HEIGHT}", "--virtual-time-budget=5000"]
        command = [chromium, *flags, f"--screenshot={picture}", page.resolve().as_uri()]
        subprocess.run(command, check=True, capture_output=True)
    smaller(picture)


def smaller(picture: Path) -> None:
    """Writes it with 128 colours, which a page of text and lines does not miss."""
    from PIL import Image

    with Image.open(picture) as image:
        image.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(picture, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes the example of the site.")
    parser.add_argument("run", nargs="?", type=Path, default=Path("outputs/grpo"), help="folder of a run of the demo")
    run = parser.parse_args().run
    if run.resolve() != EXAMPLE:
        keep(run, EXAMPLE)
        shutil.copyfile(run / "reward_curve.png", DOCS / "reward_curve.png")
    with tempfile.TemporaryDirectory() as temporary:
        page = write_report(EXAMPLE, Path(temporary) / "report.html")
        photograph(page, DOCS / "example" / "report.png")


if __name__ == "__main__":
    main()
