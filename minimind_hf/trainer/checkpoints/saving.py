# SPDX-License-Identifier: Apache-2.0
"""Saves and publishes a run: complete checkpoints, and an output folder that is a model with its card.

A checkpoint is written to a staging folder and moved into place when it is complete. If a process is killed, it never
leaves an incomplete one.
"""

import shutil
from abc import abstractmethod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from accelerate.utils import is_peft_model
from torch import Tensor, nn
from transformers import PreTrainedModel, Trainer
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, HubStrategy

from ...atomic import whole_file
from ...reports.curve import plot_reward_curve
from ..distributed.rollout_weights import RolloutWeights
from ..distributed.sharding import without_copies
from ..models.adapters import TEACHER_ADAPTER
from ..models.reference import REFERENCE_ADAPTER
from ..models.weights import declare_float32, saving_where_called, with_master_weights, without_tied
from .atomic import committed, drop_old_checkpoints
from .card import REWARD_CURVE, model_card
from .publishing import publish_folder, save_merged


class SavingTrainer(Trainer):
    """A Trainer that writes checkpoints atomically, merges adapters if asked to, and describes what it saves."""

    _rollout_weights: RolloutWeights
    _staging: Path | None = None  # where a checkpoint is being written

    @property
    @abstractmethod
    def policy(self) -> PreTrainedModel:
        """The model that is saved."""

    # The model and its card

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        with saving_where_called():
            self._save_model(output_dir, _internal_call)

    def _save_model(self, output_dir: str | None, _internal_call: bool) -> None:
        if self.args.merge_adapters and self._staging is None and is_peft_model(self.policy):
            with self._rollout_weights.gathered(self.model_wrapped, self.policy) as policy:
                if self.args.should_save:
                    save_merged(policy, output_dir or self.args.output_dir, self.processing_class)
        super().save_model(output_dir, _internal_call)
        is_result = not output_dir or Path(output_dir).resolve() == Path(self.args.output_dir).resolve()
        if is_result and not _internal_call:
            self.create_model_card()  # peft has written an empty one next to adapters

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        weights = self._weights_to_save(self.policy, state_dict)
        super()._save(output_dir, weights)
        if self.args.should_save:
            folder = Path(output_dir or self.args.output_dir)
            declare_float32(folder, weights)
            for frozen in {REFERENCE_ADAPTER, TEACHER_ADAPTER} & set(getattr(self.policy, "peft_config", {})):
                shutil.rmtree(folder / frozen)  # a resumed run makes it again of what it began with

    def _weights_to_save(self, model: nn.Module, gathered: dict[str, Tensor] | None) -> dict[str, Tensor] | None:
        """Returns gathered weights, or `None` to save those of the modules; every process calls it."""
        if self.is_deepspeed_enabled:
            gathered = with_master_weights(model, gathered)
        return without_copies(model, gathered)

    def create_model_card(
        self,
        language: str | list[str] | None = None,
        license: str | None = None,
        tags: str | list[str] | None = None,
        model_name: str | None = None,
        finetuned_from: str | None = None,
        dataset_name: str | list[str] | None = None,
        **kwargs: Any,
    ) -> None:
        """Writes the README of the output folder: the model, how to load it, how it was trained, results."""
        if kwargs:
            raise TypeError(f"create_model_card takes no {', '.join(kwargs)}; see its signature for valid arguments.")
        if not self.is_world_process_zero():
            return
        if any("reward" in entry for entry in self.state.log_history):
            plot_reward_curve(self.state.log_history, Path(self.args.output_dir) / REWARD_CURVE)
        card = model_card(self, model_name=model_name, dataset_name=dataset_name, tags=tags)
        for name, value in {"language": language, "license": license, "base_model": finetuned_from}.items():
            if value is not None:
                setattr(card.data, name, value)
        with whole_file(Path(self.args.output_dir) / "README.md") as path:
            card.save(path)

    # Checkpoints

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        missing = without_tied(self.model, load_result.missing_keys)
        super()._issue_warnings_after_load(
            SimpleNamespace(missing_keys=missing, unexpected_keys=load_result.unexpected_keys)
        )

    def _get_output_dir(self, trial: Any) -> str:
        return super()._get_output_dir(trial) if self._staging is None else str(self._staging)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        folder, name = Path(self._get_output_dir(trial)), f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        with committed(folder, name, self.accelerator, self.args.should_save) as staging:
            self._staging = staging
            try:
                super()._save_checkpoint(model, trial)
            finally:
                self._staging = None
            if self.state.best_model_checkpoint == str(staging / name):
                self.state.best_model_checkpoint = str(folder / name)
                if self.args.should_save:
                    self.state.save_to_json(str(staging / name / TRAINER_STATE_NAME))
        if self.args.should_save:
            drop_old_checkpoints(folder, self.args.save_total_limit, self.state.best_model_checkpoint, name)
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(folder / name))

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if self._staging is not None:  # the checkpoint is pushed later, once it is in place
            return
        if self.is_world_process_zero() and self.args.hub_strategy != HubStrategy.END:
            publish_folder(checkpoint_folder, self.args.output_dir, self._published_folders())
            self.create_model_card()
        super()._push_from_checkpoint(checkpoint_folder)

    def _published_folders(self) -> list[str]:
        """Folders of a checkpoint that hold additional models."""
        return []
