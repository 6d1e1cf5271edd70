# SPDX-License-Identifier: Apache-2.0
"""A Trainer that resumes exactly: it restores everything from a checkpoint, unused rollouts included.

A run locks its output folder. If its rollout server is gone, the run saves a checkpoint before it ends.
"""

from abc import abstractmethod
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn
from torch.utils.data import DataLoader
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, TrainOutput
from transformers.utils import logging

from ...agent import Agent
from ...rollout import ServerGoneError
from ...rollout.agreement import failing_together
from ..distributed.launcher import ending_with_launcher
from ..experience.micro_batch import MicroBatch
from ..experience.rollouts import Rollouts
from ..models.optimization import is_stateless, load_schedule
from .atomic import clear_staging
from .best import restore_best
from .data_order import (
    REFERENCE,
    data_order,
    warn_if_nothing_is_left,
    warn_of_other_order,
    warn_of_other_reference,
)
from .resharding import is_of_other_processes, load_resharded
from .resuming import checkpoint_to_resume, warn_of_earlier_run
from .run_folder import ending_in_order, held_by_this_run, interrupted, refuse_left_adapters
from .same_model import check_same_model
from .saving import SavingTrainer
from .state import engine_state, load_agent_state, load_rollout_state, save_rollout_state, saved_order

logger = logging.get_logger(__name__)


class CheckpointingTrainer(SavingTrainer):
    """Saves unused rollouts in its checkpoints, and continues a run exactly where a checkpoint was made.

    Attributes:
        buffer (`deque[MicroBatch]`): Micro-batches of the current rollout that have not been trained on yet.
        rollouts_made (`int`): Rollouts so far; the sampling seeds depend on it.
        agent ([`Agent`], *optional*): The tools and environments, if completions are episodes.
    """

    agent: Agent | None
    _rollouts: Rollouts
    reference_kind = "reference (of the KL penalty)"  # the frozen model that is not part of a checkpoint
    further_models: tuple[str, ...] = ()  # folders of a checkpoint that hold models beside the policy

    def __init__(self, *args: Any, **kwargs: Any):
        self.buffer: deque[MicroBatch] = deque()
        self.rollouts_made = 0
        self._checkpoint_to_resume: str | None = None  # until its random states are restored
        super().__init__(*args, **kwargs)

    @abstractmethod
    def recording(self) -> AbstractContextManager:
        """Surrounds a run and writes its records, however it ends."""

    @abstractmethod
    def check_settings(self) -> None:
        """Refuses settings that were changed after the trainer was made and that it cannot follow."""

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> TrainOutput:
        """As in transformers. If the rollout server is gone for good, the run saves a checkpoint and ends."""
        with failing_together("checking the settings"):
            self.check_settings()
            refuse_left_adapters(self.args.output_dir, self.policy, self.further_models)
        with (
            held_by_this_run(self.args.output_dir, self.accelerator),
            ending_in_order(self.is_world_process_zero()),
            ending_with_launcher(),
            self.recording(),
            self._rescued(),
        ):
            checkpoint = checkpoint_to_resume(resume_from_checkpoint, self.args, self.policy, self.accelerator)
            if checkpoint is not None:
                with failing_together("comparing the checkpoint with the model"):
                    check_same_model(checkpoint, self.policy, self.further_models)
            return super().train(checkpoint, *args, **kwargs)

    @contextmanager
    def _rescued(self) -> Iterator[None]:
        """If the rollout server is gone, saves a checkpoint of the last finished step before the run ends.

        After Ctrl-C, says where it can go on.
        """
        try:
            yield
        except KeyboardInterrupt:
            if self.is_world_process_zero():
                logger.warning("%s", interrupted(self.state.global_step, Path(self.args.output_dir)))
            raise
        except ServerGoneError as error:
            raise ServerGoneError(f"{error} {self._save_before_the_end()}") from error

    def _save_before_the_end(self) -> str:
        """Saves a checkpoint and returns how to continue; every process calls it."""
        step = self.state.global_step
        if step == 0:
            return "No step was done yet, so nothing was saved."
        self._save_checkpoint(self.model, trial=None)
        self.control = self.callback_handler.on_save(self.args, self.state, self.control)
        folder = Path(self.args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{step}"
        if self.args.save_only_model:
            return f"The model was saved to {folder}; with save_only_model the run cannot be resumed from it."
        return f"A checkpoint was saved: start the server and continue with --resume_from_checkpoint {folder}."

    @cached_property
    def _data_order(self) -> dict[str, Any]:
        return data_order(self.args, self.train_dataset)

    @property
    def _reference_fingerprint(self) -> str | None:
        return None if self.reference is None else self.reference.fingerprint

    # Saving

    def _save_rng_state(self, output_dir: str) -> None:
        """Saves the unused part of the rollout, and states of environments and engine, with the random states."""
        super()._save_rng_state(output_dir)
        agent = self.agent and self.agent.state_dict()
        order = {**self._data_order, REFERENCE: self._reference_fingerprint}
        engine = self._rollouts.state_dict()
        save_rollout_state(output_dir, self.args, self.rollouts_made, self.buffer, order, agent, engine)

    # Resuming

    def _init_training_state(
        self,
        max_steps: int,
        num_update_steps_per_epoch: int,
        num_train_epochs: int,
        resume_from_checkpoint: str | None,
        trial: Any,
    ) -> tuple[int, int]:
        places = super()._init_training_state(
            max_steps, num_update_steps_per_epoch, num_train_epochs, resume_from_checkpoint, trial
        )
        if resume_from_checkpoint is not None:
            restore_best(self.state, resume_from_checkpoint)
            if self.is_world_process_zero():
                saved = saved_order(resume_from_checkpoint)
                warn_of_other_order(resume_from_checkpoint, saved, self._data_order)
                warn_of_other_reference(
                    resume_from_checkpoint, saved.get(REFERENCE), self._reference_fingerprint, self.reference_kind
                )
                warn_if_nothing_is_left(resume_from_checkpoint, self.state)
        return places

    def _prepare_for_training(
        self, max_steps: int, train_dataloader: DataLoader, resume_from_checkpoint: str | None
    ) -> tuple[nn.Module, DataLoader]:
        if self.args.should_save:
            clear_staging(self.args.output_dir)
        if resume_from_checkpoint is None and self.is_world_process_zero():
            warn_of_earlier_run(self.args.output_dir)
        if not self._is_resharded(resume_from_checkpoint):
            return super()._prepare_for_training(max_steps, train_dataloader, resume_from_checkpoint)
        prepared = super()._prepare_for_training(max_steps, train_dataloader, None)
        load_resharded(self.deepspeed, resume_from_checkpoint, self.args.output_dir, self.accelerator)
        self._load_optimizer_and_scheduler(resume_from_checkpoint)
        self._load_scaler(resume_from_checkpoint)
        return prepared

    def _is_resharded(self, checkpoint: str | None) -> bool:
        if checkpoint is None or not self.is_deepspeed_enabled:
            return False
        return is_of_other_processes(checkpoint, self.accelerator)

    def _load_best_model(self) -> None:
        best = self.state.best_model_checkpoint
        if self._is_resharded(best):
            load_resharded(self.deepspeed, best, self.args.output_dir, self.accelerator)
        else:
            super()._load_best_model()

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None and self.is_fsdp_enabled and is_stateless(self.optimizer):
            load_schedule(self.optimizer, self.lr_scheduler, checkpoint)  # torch does not load an empty sharded state
        else:
            super()._load_optimizer_and_scheduler(checkpoint)
        self.buffer.clear()
        self.rollouts_made = 0
        if checkpoint is not None:
            self._checkpoint_to_resume = checkpoint
            self.rollouts_made, micro_batches = load_rollout_state(checkpoint, self.args)
            self.buffer.extend(micro_batches)

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        # The Trainer checks for the end only after a step, so a run resumed at its last step would train one more.
        if self.state.global_step < self.state.max_steps:
            super()._run_epoch(*args, **kwargs)

    def restore_random_states(self) -> None:
        """After a resume within an epoch, between the first numbers of prompts and the first rollout.

        The Trainer would restore them after the rollout. Before the first numbers is too early: the DataLoader's
        iterator draws its seed from torch's generator, which a run that never stopped did when the epoch began.
        """
        if self._checkpoint_to_resume is not None:
            self._load_rng_state(self._checkpoint_to_resume)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Restores the random states, environments and the engine, once, before the first rollout after a resume."""
        if checkpoint is None or self._checkpoint_to_resume is not None:
            super()._load_rng_state(checkpoint)
            self._checkpoint_to_resume = None
            if checkpoint is not None:
                self._rollouts.load_state_dict(engine_state(checkpoint, self.args))
            if checkpoint is not None and self.agent is not None:
                load_agent_state(self.agent, checkpoint, self.args)
