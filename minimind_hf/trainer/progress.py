# SPDX-License-Identifier: Apache-2.0
"""The progress bar: the few numbers that tell whether a run learns. All of them go to the trackers and the log history."""

from transformers import ProgressCallback

SHOWN = {
    "reward/mean": "reward",
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
        else:
            numbers = {name: value for name, value in logs.items() if isinstance(value, int | float)}
            self.training_bar.write(" ".join(f"{name} {value:.4g}" for name, value in numbers.items()))


def _short(logs: dict) -> str:
    return ", ".join(f"{label} {logs[name]:.3g}" for name, label in SHOWN.items() if name in logs)
