# SPDX-License-Identifier: Apache-2.0
"""What the trainers of this package do around updates and checkpoints, for trl's trainers in the recipes before RL.

An update that is not finite is not made; a checkpoint has checksums, which resuming verifies; the best checkpoint is
found beside the resumed one; a resume that leaves nothing to train says so; the progress looks the same, and a step is
timed.
"""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel, PrinterCallback, ProgressCallback, Trainer
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, TrainOutput, get_last_checkpoint

from minimind_hf.language import AUTO, Texts
from minimind_hf.trainer.checkpoints.best import is_same_folder, restore_best
from minimind_hf.trainer.checkpoints.checksums import changed_files, write_checksums
from minimind_hf.trainer.checkpoints.data_order import warn_if_nothing_is_left
from minimind_hf.trainer.checkpoints.run_folder import refuse_left_adapters
from minimind_hf.trainer.distributed.launcher import ending_with_launcher
from minimind_hf.trainer.logs.health import what_remains
from minimind_hf.trainer.logs.progress import RLProgressCallback
from minimind_hf.trainer.metrics import Metrics
from minimind_hf.trainer.models.weights import NotFiniteError
from minimind_hf.trainer.step_guard import StepGuard

SHOWN = {
    "loss": "loss",
    "rewards/accuracies": "accuracy",
    "accuracy": "accuracy",
    "rewards/margins": "margin",
    "margin": "margin",
    "mean_token_accuracy": "token accuracy",
    "grad_norm": "grad norm",
}
"""What the progress line shows of sft, dpo and reward, by the names of trl's logs."""


def guarded(trainer_class: type[Trainer]) -> type[Trainer]:
    """Returns the class with all of this, under the same name. It takes a `language` for its progress, too."""
    return type(trainer_class.__name__, (_Guarded, trainer_class), {"__doc__": trainer_class.__doc__})


class _Guarded:
    """Stands before a Trainer among the bases of a class."""

    def __init__(self, *args: Any, language: str = AUTO, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._times = Metrics()
        self._guard = StepGuard(self.accelerator, lambda: False, self._judge, judges_gradients=not self.args.fp16)
        self.add_callback(self._guard)
        self.remove_callback(PrinterCallback)
        self.remove_callback(ProgressCallback)
        if not self.args.disable_tqdm:
            self.add_callback(RLProgressCallback(shown=SHOWN, language=language))

    @property
    def policy(self) -> PreTrainedModel:
        """The model that is trained, as the trainers of this package call it."""
        return self.accelerator.unwrap_model(self.model)

    def _judge(self, not_finite: str | None, k3: float) -> None:
        if not_finite is not None:
            remains = Texts(*what_remains(Path(self.args.output_dir)), between="; ")
            raise NotFiniteError(
                f"step {self.state.global_step + 1}: {not_finite}; {remains}. Try: "
                "lower learning_rate; or use bf16 instead of fp16; or check that the weights to start from are finite."
            )

    # Updates

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> tuple:
        samples = super().get_batch_samples(*args, **kwargs)
        self._guard.begin_step()
        return samples

    def compute_loss(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        result = super().compute_loss(model, inputs, *args, **kwargs)
        if model.training:
            self._guard.begin_micro_batch(SimpleNamespace(rows=[]))
            self._guard.add_loss(result[0] if isinstance(result, tuple) else result)
        return result

    def _get_grad_norm(self, model: nn.Module, grad_norm: Tensor | None = None) -> Tensor | float:
        norm = super()._get_grad_norm(model, grad_norm)
        self._guard.add_gradient_norm(norm)
        return norm

    def _prepare_for_training(self, *args: Any, **kwargs: Any) -> tuple:
        prepared = super()._prepare_for_training(*args, **kwargs)
        if self.is_deepspeed_enabled:
            self._guard.guard(self.deepspeed, lambda: None)
        return prepared

    # Logs

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        with self._times.phase("update"):
            return super().training_step(*args, **kwargs)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:  # a training log, not an evaluation or the final summary
            logs.update(self._times.flush(self.accelerator, self.state.global_step))
        super().log(logs, start_time)

    # Checkpoints

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> TrainOutput:
        if resume_from_checkpoint is True:
            resume_from_checkpoint = get_last_checkpoint(self.args.output_dir) or True
        is_folder = isinstance(resume_from_checkpoint, str)
        damage = next(changed_files(Path(resume_from_checkpoint)), None) if is_folder else None
        if damage is not None:
            raise ValueError(f"{damage}. Resume from another checkpoint.")
        refuse_left_adapters(self.args.output_dir, self.model)
        with ending_with_launcher():
            return super().train(resume_from_checkpoint, *args, **kwargs)

    def _init_training_state(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        places = super()._init_training_state(*args, **kwargs)
        self._times = Metrics(step=self.state.global_step)
        checkpoint = kwargs.get("resume_from_checkpoint", args[3] if len(args) > 3 else None)
        if checkpoint is not None:
            restore_best(self.state, checkpoint)
            best = self.state.best_model_checkpoint
            if best is not None and is_same_folder(Path(best).parent, self.args.output_dir):
                # as the Trainer lists checkpoints, which it compares by their names
                self.state.best_model_checkpoint = os.path.join(self.args.output_dir, Path(best).name)
            if self.is_world_process_zero():
                warn_if_nothing_is_left(checkpoint, self.state)
        return places

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        super()._save_checkpoint(*args, **kwargs)
        self.accelerator.wait_for_everyone()
        folder = Path(self.args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        if self.args.should_save and folder.is_dir():
            write_checksums(folder)
