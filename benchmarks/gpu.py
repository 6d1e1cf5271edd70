# SPDX-License-Identifier: Apache-2.0
"""Everything that is to be known of one device, in about 20 minutes: fast paths proved, steps and rollouts measured.

    python benchmarks/gpu.py                               # all cases; writes docs/benchmarks-gpu.md
    python benchmarks/gpu.py --case rollout/26M --case attention
    python benchmarks/gpu.py --device cpu --quick          # tiny shapes, to see that the program works

Each case prints one JSON line. `attention` compares FlexAttention in the shared-prompt layout with torch's fused
attention, group by group, forward and backward; `proof` makes a step of a run that proves its fast paths itself;
`rollout/SIZE/WHO` measures tokens per second and `step/SIZE/WHO` whole steps, against `model.generate`, transformers'
continuous batching, trl's GRPOTrainer and, if it is installed, vLLM. A case that fails says why in its line, and the
others go on; the exit status is 1 if a proof failed. With `--minutes` passed, what is left is said to be skipped.
"""

import argparse
import gc
import sys
import time
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch
from gpu_page import write_page
from gpu_proofs import prove_attention, prove_run
from gpu_shapes import QUICK, SIZES
from gpu_speed import ROLLOUTS, STEPS
from workloads import machine_info, print_json

PAGE = Path(__file__).resolve().parents[1] / "docs" / "benchmarks-gpu.md"
Case = Callable[[], dict[str, Any]]


def cases(device: torch.device, quick: bool) -> Iterator[tuple[str, Case]]:
    """All cases by name, proofs first; each returns its figures."""
    shapes = QUICK if quick else SIZES
    for dtype in ("float32", "bfloat16"):
        yield f"attention/{dtype}", lambda dtype=dtype: prove_attention(device, dtype, quick)
    smallest = next(iter(shapes.values()))
    yield "proof/run", lambda: prove_run(device, smallest)
    for measured, contestants in (("rollout", ROLLOUTS), ("step", STEPS)):
        for size, shape in shapes.items():
            for who, measure in contestants.items():
                yield f"{measured}/{size}/{who}", lambda m=measure, s=shape: m(device, s)


def chosen(name: str, patterns: list[str]) -> bool:
    """Whether a case is meant: by its name, the beginning of it up to a slash, or a pattern such as
    `rollout/*/ours`."""
    return not patterns or any(
        name == each or name.startswith(f"{each.rstrip('/')}/") or fnmatch(name, each) for each in patterns
    )


def run(name: str, case: Case) -> dict[str, Any]:
    """The line of a case."""
    start = time.perf_counter()
    try:
        found = case()
    except Exception as error:  # of any kind, as when memory runs out: the next case may still work
        found = {"error": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:300]}"}
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    return {"case": name, **found, "took_s": round(time.perf_counter() - start, 1)}


def described(device: torch.device) -> dict[str, Any]:
    """The machine and its device."""
    found = {"case": "machine", "device": device.type, "date": time.strftime("%Y-%m-%d"), **machine_info()}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {
            "name": properties.name,
            "gib": round(properties.total_memory / 2**30, 1),
            "cuda": torch.version.cuda,
        }
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", help="default: %(default)s")
    parser.add_argument("--quick", action="store_true", help="tiny shapes")
    parser.add_argument("--case", action="append", default=[], metavar="NAME", help="only these; may be repeated")
    parser.add_argument("--minutes", type=float, default=20, help="begin no case after this (default: %(default)s)")
    parser.add_argument("--page", type=Path, help=f"where to write the page (default: {PAGE.name}, if all cases ran)")
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    args = parser.parse_args(arguments)
    device = torch.device(args.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error("there is no CUDA device. Try the program with --device cpu --quick.")
    wanted = [(name, case) for name, case in cases(device, args.quick) if chosen(name, args.case)]
    if not wanted:
        parser.error(f"no case is named {', '.join(args.case)}; --list prints the names.")
    if args.list:
        print("\n".join(name for name, _ in wanted))
        return 0
    return measure(wanted, device, args)


def measure(wanted: list[tuple[str, Case]], device: torch.device, args: argparse.Namespace) -> int:
    """Runs the cases, prints a line for each, and writes the page."""
    lines, end = [described(device)], time.monotonic() + 60 * args.minutes
    print_json(lines[0])
    for name, case in wanted:
        in_time = time.monotonic() < end
        lines.append(run(name, case) if in_time else {"case": name, "skipped": f"after {args.minutes:g} minutes"})
        print_json(lines[-1])
    page = args.page or (None if args.quick or args.case else PAGE)
    if page is not None:
        write_page(page, lines)
    proofs = [line for line in lines if line["case"].startswith(("attention/", "proof/"))]
    return int(any(not line.get("holds") for line in proofs))


if __name__ == "__main__":
    sys.exit(main())
