# SPDX-License-Identifier: Apache-2.0
"""Runs every command of README.md, README_zh.md and docs/ as it is written, in a scratch folder.

    python docs/check.py                  # all of them
    python docs/check.py --list           # what would be run, and what not and why
    python docs/check.py README.md        # one page
    python docs/check.py --folder /tmp/scratch --start README.md:100   # continues where it failed

A command stands in a fenced block marked `bash`. Blocks are run in the order of the pages, each by one shell that
stops at the first failure, in a copy of the repository. A Python block with a title is the file of that name, written
there when its turn comes. A block that was run before is not run again: README_zh.md
repeats README.md. What cannot be run everywhere is marked on the line before the block, and listed:

    <!-- docs-check: needs gpu -->

Known needs are those of `NEEDS`. Files that a reader has and a scratch folder has not (a checkpoint, data) are made
beforehand, small, under the names that the pages use.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "README_zh.md", "docs/*.md", "docs/zh/*.md")
NEEDS = {
    "gpu": "a GPU",
    "hub": "the Hub, or another server on the network",
    "server": "an inference server that is not part of this project",
    "install": "to change the Python environment",
    "time": "more than ten minutes",
    "terminal": "a person at a terminal",
    "processes": "several processes, more than a small machine carries",
}
_MARK = re.compile(r"<!-- docs-check: needs ([\w, ]+) -->")
_FENCE = re.compile(r'^```(\w*)(?: title="([\w./-]+)")?\s*$')


class PageError(ValueError):
    """A page that cannot be checked."""


@dataclass(frozen=True)
class Block:
    """A block of commands.

    Args:
        page (`str`): Where it stands, from the root of the repository.
        line (`int`): Its first line there.
        text (`str`): The commands.
        needs (`tuple[str, ...]`): What it needs that not every machine has.
        file (`str`, *optional*): The file that it is, instead of commands.
    """

    page: str
    line: int
    text: str
    needs: tuple[str, ...] = ()
    file: str | None = None

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def find_blocks(page: str, text: str) -> Iterator[Block]:
    """Yields the blocks of a page.

    Raises:
        PageError: For an unknown need, a mark without a block, or a block that does not end.
    """
    needs: tuple[str, ...] = ()
    language, title, start, lines = None, None, 0, []
    for number, line in enumerate(text.splitlines(), start=1):
        fence = _FENCE.match(line.strip())
        if language is not None:
            if fence and not fence.group(1):
                if language == "bash" or title:
                    yield Block(page, start, "\n".join(lines), needs, title)
                language, needs = None, ()
            else:
                lines.append(line)
        elif fence:
            language, title, start, lines = fence.group(1) or "text", fence.group(2), number + 1, []
            if needs and language != "bash":
                raise PageError(f"{page}:{number}: a docs-check mark before a block of {language}, not of bash.")
        elif mark := _MARK.match(line.strip()):
            needs = _parse_needs(mark.group(1), f"{page}:{number}")
        elif needs and line.strip():
            raise PageError(f"{page}:{number}: a docs-check mark must stand directly before its block.")
    if language is not None:
        raise PageError(f"{page}:{start - 1}: the block does not end.")


def _parse_needs(text: str, place: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if unknown := [name for name in names if name not in NEEDS]:
        raise PageError(f"{place}: unknown need {unknown[0]!r}; known are {', '.join(NEEDS)}.")
    return names


def all_blocks(pages: Sequence[str] = PAGES) -> list[Block]:
    """The blocks of pages in order, pages given by name or pattern."""
    paths = [path for pattern in pages for path in sorted(ROOT.glob(pattern))]
    if not paths:
        raise PageError(f"No page fits {', '.join(pages)} in {ROOT}.")
    return [
        block for path in paths for block in find_blocks(str(path.relative_to(ROOT)), path.read_text(encoding="utf-8"))
    ]


def copy_repository(folder: Path) -> None:
    """Copies what git knows of the repository, or would add to it."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def make_environment(folder: Path) -> dict[str, str]:
    """The environment of the commands: this Python, the copy's package, and no network."""
    bin_folder = folder / ".venv" / "bin"
    bin_folder.mkdir(parents=True, exist_ok=True)
    accelerate = "accelerate.commands.accelerate_cli"
    modules = {"minimind-hf": "minimind_hf", "mkdocs": "mkdocs", "accelerate": accelerate}
    commands = {"python": '"$@"', "pytest": '-m pytest "$@"', "ruff": '-m ruff "$@"'}
    commands |= {name: f'-m {module} "$@"' for name, module in modules.items()}
    for name, arguments in commands.items():
        script = bin_folder / name
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments}\n')
        script.chmod(0o755)
    (folder / ".venv" / "installed").touch()  # for make: everything is there
    return os.environ | {
        "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(folder),
        "HF_HUB_OFFLINE": "1",
        "PYTHONWARNINGS": "ignore",
    }


STAND_INS = """
import json, sys
sys.path.insert(0, "recipes")
import minimind_tools, new_model
from journey import small_world
from pathlib import Path
from minimind_hf.models.convert import convert

small_world.write(Path("stand_ins"))
def first(name, count):
    return (Path("stand_ins") / f"{name}.jsonl").read_text().splitlines(keepends=True)[:count]
for name, source in (("rlaif", "prompts"), ("sft", "sft"), ("dpo", "preferences"), ("pretrain", "pretrain"),
                     ("held_out", "held_out")):
    Path(f"{name}.jsonl").write_text("".join(first(source, 8)))
system = {"role": "system", "content": "", "tools": json.dumps(minimind_tools.TOOLBOX.schemas[:1])}
turns = [[system, {"role": "user", "content": f"{n}*{n}?"}, {"role": "assistant", "content": ""}] for n in range(8)]
rows = [{"conversations": each, "gt": [str(n * n)]} for n, each in enumerate(turns)]
Path("agent_rl.jsonl").write_text("".join(json.dumps(row) + "\\n" for row in rows))
sizes = ["hidden_size=64", "num_hidden_layers=2", "num_attention_heads=4", "num_key_value_heads=2"]
new_model.main(["stand_ins/model", "--corpus", "stand_ins/sft.jsonl", "--vocab_size", "400", "--config", *sizes])
convert("stand_ins/model", "full_sft_512.pth", overwrite=True)
for target in ("MODEL", "TEACHER", "path/to/minimind/model"):
    convert("stand_ins/model", target, overwrite=True)
"""


def run_block(block: Block, folder: Path, env: dict[str, str], log: Path) -> tuple[bool, float]:
    """Runs a block; its output goes to a file.

    Returns:
        `tuple[bool, float]`: Whether it succeeded, and the seconds that it took.
    """
    start = time.perf_counter()
    if block.file is not None:
        (folder / block.file).write_text(block.text + "\n", encoding="utf-8")
        return True, 0.0
    with log.open("w") as file:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.text],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    return done.returncode == 0, time.perf_counter() - start


def plan(blocks: Sequence[Block], able: Sequence[str], start: str | None = None) -> list[tuple[Block, str | None]]:
    """Pairs each block with the reason why it is not run, if there is one.

    Args:
        blocks (`Sequence[Block]`): The blocks, in order.
        able (`Sequence[str]`): Needs that this machine meets.
        start (`str`, *optional*): Place of the first block to run.

    Raises:
        PageError: If no block stands at `start`.
    """
    places = [block.place for block in blocks]
    if start is not None and start not in places:
        raise PageError(f"No block stands at {start}; blocks stand at {', '.join(places)}.")
    first = places.index(start) if start else 0
    seen: dict[str, str] = {}
    planned: list[tuple[Block, str | None]] = []
    for block in blocks:
        lacking = [need for need in block.needs if need not in able]
        reason = None
        if lacking:
            reason = "needs " + ", ".join(NEEDS[need] for need in lacking)
        elif block.text in seen:
            reason = f"same as {seen[block.text]}"
        else:
            seen[block.text] = block.place
            # What comes later may need a file that stands before.
            reason = f"before {start}" if len(planned) < first and block.file is None else None
        planned.append((block, reason))
    return planned


def check(planned: Sequence[tuple[Block, str | None]], folder: Path) -> list[dict]:
    """Runs what is to be run, prints a line for each block, and returns what happened."""
    copy_repository(folder)
    env = make_environment(folder)
    subprocess.run([sys.executable, "-c", STAND_INS], cwd=folder, env=env, check=True, capture_output=True)
    logs = folder / ".docs-check"
    logs.mkdir(exist_ok=True)
    results = []
    for number, (block, reason) in enumerate(planned):
        result = {"place": block.place, "command": block.text}
        if reason is not None:
            print(f"-     {block.place}: {reason}", flush=True)
            results.append(result | {"skipped": reason})
            continue
        log = logs / f"{number}.log"
        succeeded, seconds = run_block(block, folder, env, log)
        print(f"{'ok   ' if succeeded else 'FAIL '} {block.place}: {seconds:.0f} s", flush=True)
        if not succeeded:
            print(f"{block.text}\n...\n{log.read_text()[-3000:]}", flush=True)
        results.append(result | {"ok": succeeded, "seconds": round(seconds, 1)})
    return results


def summary(results: Sequence[dict]) -> str:
    """What took how long, the slowest first, and what was not run, by the reason."""
    ran = sorted((result for result in results if "ok" in result), key=lambda result: -result["seconds"])
    lines = [f"\n{len(ran)} blocks ran:"]
    for result in ran:
        first = result["command"].splitlines()[0].removesuffix("\\").strip()
        lines.append(f"{result['seconds']:8.0f} s  {'ok  ' if result['ok'] else 'FAIL'}  {result['place']}  {first}")
    places: dict[str, list[str]] = {}
    for result in results:
        if result.get("skipped", "").startswith("needs"):
            places.setdefault(result["skipped"], []).append(result["place"])
    lines.append(f"{sum(map(len, places.values()))} blocks are marked and were not run (see --able):")
    lines += [f"  {reason}: {', '.join(found)}" for reason, found in places.items()]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs the commands of the documents.")
    parser.add_argument("pages", nargs="*", default=PAGES, help="pages or patterns (default: all)")
    parser.add_argument("--list", action="store_true", help="print what would be run")
    parser.add_argument("--able", nargs="+", default=[], choices=NEEDS, help="needs that this machine meets")
    parser.add_argument("--folder", type=Path, help="scratch folder to use and keep (default: a temporary one)")
    parser.add_argument("--start", metavar="PLACE", help="first block to run, as it is listed")
    options = parser.parse_args()
    planned = plan(all_blocks(options.pages), options.able, options.start)
    if options.list:
        for block, reason in planned:
            print(f"{block.place}: {reason or 'runs'}\n{block.text}\n")
        return 0
    with tempfile.TemporaryDirectory(prefix="docs-check-") as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        results = check(planned, folder.resolve())
    failed = [result["place"] for result in results if result.get("ok") is False]
    print(summary(results))
    ran = sum("ok" in result for result in results)
    seconds = sum(result.get("seconds", 0) for result in results)
    print(json.dumps({"ran": ran, "failed": failed, "skipped": len(results) - ran, "seconds": round(seconds)}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
