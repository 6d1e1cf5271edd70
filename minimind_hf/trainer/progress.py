# SPDX-License-Identifier: Apache-2.0
"""The progress bar: the few numbers that tell whether a run learns. Trackers and log history get all of them."""

from transformers import ProgressCallback

SHOWN = {
    "reward": "reward",
    "kl_ref": "kl_ref",
    "completions/mean_length": "length",
    "loss": "loss",
    "tokens_per_second": "tok/s",
}


class RLProgressCallback(ProgressCallback):
    """transformers' bar with reward, KL, length and rate behind it instead of a dictionary on every log."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        if not state.is_world_process_zero or self.training_bar is None or not logs:
            return
        if "loss" in logs:
            self.training_bar.set_postfix_str(_short(logs))
        elif evaluated := _short(logs, prefix="eval_"):
            self.training_bar.write(f"step {state.global_step}, evaluation: {evaluated}")


def _short(logs: dict, prefix: str = "") -> str:
    return ", ".join(f"{label} {logs[prefix + name]:.3g}" for name, label in SHOWN.items() if prefix + name in logs)
