# SPDX-License-Identifier: Apache-2.0
"""What the trainers do at the Trainer's own events."""

from pathlib import Path
from typing import TYPE_CHECKING

from transformers import TrainerCallback

from ..health.monitor import message_of
from ..health.rules import NOT_FINITE, RULES
from ..reports.record import HEALTH_FILE, RUN_FILE, write_json
from .checkpoints.atomic import clear_staging
from .checkpoints.card import algorithm, settings, what_is_trained
from .distributed.deepspeed import guard_step
from .metrics import Metrics
from .models.weights import NotFiniteError
from .step_guard import what_remains

if TYPE_CHECKING:
    from .base import RLTrainer


class RunCallback(TrainerCallback):
    """Follows the run, be it fresh or resumed: where metrics begin, the epoch, empty or broken steps."""

    def __init__(self, trainer: "RLTrainer"):
        self.trainer = trainer

    def on_train_begin(self, args, state, control, **kwargs):
        self.trainer._metrics = Metrics(step=state.global_step)
        if args.should_save:
            clear_staging(args.output_dir)
        if self.trainer.is_deepspeed_enabled:
            guard_step(
                self.trainer.deepspeed,
                self.trainer._clip_in_engine,
                self._stop_if_not_finite,
                self.trainer._skips_update,
            )
        self.trainer._trackers.have_started()
        if state.is_world_process_zero:
            if self.trainer.health is None and state.global_step == 0:
                (Path(args.output_dir) / HEALTH_FILE).unlink(missing_ok=True)  # of an earlier run in this folder
            label, _, _ = algorithm(args)
            shaped_by = what_is_trained(self.trainer) | dict(settings(self.trainer))
            write_json(Path(args.output_dir) / RUN_FILE, {"algorithm": label, "settings": shaped_by})

    def on_epoch_begin(self, args, state, control, **kwargs):
        epoch = int(state.epoch or 0)
        self.trainer._train_sampler.set_epoch(epoch)
        self.trainer.train_dataset.set_epoch(epoch)

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        self._stop_if_not_finite()
        if self.trainer._skips_update():
            # Without gradients an optimizer leaves parameters alone; with gradients of 0 it would still apply
            # momentum and weight decay.
            self.trainer.optimizer.zero_grad(set_to_none=True)

    def _stop_if_not_finite(self, norm: float | None = None) -> None:
        if norm is not None:
            self.trainer._step_watch.add_gradient_norm(norm)
        found = self.trainer._step_watch.verdict()
        health = self.trainer.health
        if found is None or health is None:
            return
        state = self.trainer.state
        rule = next(rule for rule in RULES if rule.name == NOT_FINITE)
        message = message_of(rule, state.global_step + 1, f"{found}; {what_remains(self.trainer.args.output_dir)}")
        health.report(message, state.is_world_process_zero)
        raise NotFiniteError(str(message))
