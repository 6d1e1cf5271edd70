# SPDX-License-Identifier: Apache-2.0
"""`minimind-hf doctor`: what to put into an issue: versions, devices, fast paths of a model, the story of a run."""

import argparse
import json
import platform
import tempfile
from collections.abc import Sequence
from importlib import metadata
from typing import Any

LIBRARIES = ("minimind-hf", "torch", "transformers", "trl", "accelerate", "peft", "datasets", "deepspeed", "sglang")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="minimind-hf doctor",
        description="Prints what an issue needs: versions and devices; of a model the fast paths that it takes, and "
        "why not the others; of a run its changed settings, last health messages and error. Secrets are hidden.",
        allow_abbrev=False,
    )
    parser.add_argument("run_dir", nargs="?", metavar="RUN", help="the output_dir of a run")
    parser.add_argument("--model", metavar="FOLDER", help="folder or name of a model, which is loaded")
    parser.add_argument("--trust_remote_code", action="store_true", help="run code that comes with the model")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)

    from ..reports.diagnosis import diagnose, without_secrets

    found: dict[str, Any] = {
        "python": platform.python_version(),
        "system": platform.platform(),
        "versions": versions(),
    }
    if options.run_dir is not None:
        found["run"] = diagnose(options.run_dir)
    if options.run_dir is None or options.model is not None:
        found["devices"] = devices()
    if options.model is not None:
        found["model"] = fast_paths(options.model, options.trust_remote_code)
    found = without_secrets(found)
    print(json.dumps(found, ensure_ascii=False, default=str) if options.json else "\n".join(_lines(found)))
    return 0


def versions() -> dict[str, str | None]:
    """The libraries that matter, without importing any; `None` for those that are not installed."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def devices() -> dict[str, Any]:
    """What torch sees to compute on."""
    import torch

    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return {
        "accelerator": None if accelerator is None else accelerator.type,
        "names": names,
        "cpu_threads": torch.get_num_threads(),
        "onednn": torch.backends.mkldnn.is_available(),
    }


def fast_paths(model: str, trust_remote_code: bool = False) -> dict[str, Any]:
    """Which fast paths training takes for a model on this machine's CPU: `{path: "taken" or why not}`."""
    from transformers.utils.logging import disable_progress_bar

    from ..forward.layouts import choose_layout
    from ..forward.lean import use_lean_norms, use_onednn
    from ..rollout.torch.fast_support import why_not_fast
    from ..rollout.torch.static_decoder import why_not_static
    from ..trainer import GRPOConfig
    from ..trainer.models.policy import load_policy, router_loss_coefficient

    disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        args = GRPOConfig(output_dir=folder, use_cpu=True, report_to="none", trust_remote_code=trust_remote_code)
        policy = load_policy(model, args, None)
        has_router_loss = router_loss_coefficient(policy, args) > 0
    linears = use_onednn(policy)
    norms = use_lean_norms(policy)
    fast, graph = why_not_fast(policy), why_not_static(policy, args.max_completion_length)
    layout, reason = choose_layout("shared_prompt", policy, has_router_loss)
    return {
        "architecture": type(policy).__name__,
        "parameters": sum(parameter.numel() for parameter in policy.parameters()),
        "rollouts: fast decoder (CPU)": fast or "taken",
        "rollouts: graph decoder (on request)": graph or "possible",
        "training: shared_prompt layout": reason or "taken",
        "training: linear layers by oneDNN (CPU)": f"{linears} layers",
        "training: lean norms (CPU)": f"{norms} norms",
    }


def _lines(found: dict[str, Any], depth: int = 0) -> list[str]:
    lines = []
    for name, value in found.items():
        head = "  " * depth + f"{name}:"
        if isinstance(value, dict):
            lines += [head, *(_lines(value, depth + 1) or ["  " * (depth + 1) + "none"])]
        elif isinstance(value, list):
            lines += [head, *("  " * (depth + 1) + f"- {_text(each)}" for each in value or ["none"])]
        else:
            lines.append(f"{head} {'none' if value is None else value}")
    return lines


def _text(value: Any) -> str:
    if not isinstance(value, dict):
        return str(value)
    if "message" in value:
        return f"step {value.get('step')}, {value.get('rule')}: {value['message']}"
    return ", ".join(f"{name} {each}" for name, each in value.items())
