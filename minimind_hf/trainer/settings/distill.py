# SPDX-License-Identifier: Apache-2.0
"""Settings of DistillTrainer: the names of trl's GKDConfig."""

from dataclasses import dataclass
from typing import Annotated

from ...bounds import Bounds, Count, Share
from .algorithm import Algorithm
from .base import RLConfig, _field

DISTILL_AGGREGATIONS = ("token", "sequence", "constant")

_LossTemperature = Annotated[float | None, Bounds(above=0, remedy="Unset, it is the temperature of the rollouts.")]
_Beta = Annotated[float, Bounds(at_least=0, at_most=1, remedy="0 is the forward KL, 1 the reverse KL.")]


@dataclass
class DistillConfig(RLConfig):
    """Settings of [`DistillTrainer`]. The batch sizes count completions."""

    _VALID_DICT_FIELDS = RLConfig._VALID_DICT_FIELDS + ["teacher_model_init_kwargs"]

    # Defaults that differ from those of reinforcement learning
    per_device_train_batch_size: int = _field(8, "Completions per process and micro-batch.")
    num_generations: Count = _field(1, "Completions per prompt.")
    learning_rate: float = _field(5e-6, "Peak learning rate. Every token teaches, so more than in RL.")
    disable_dropout: bool = _field(True, "Set every dropout of student and teacher to 0.")

    # Teacher
    teacher_model_name_or_path: str | None = _field(
        None,
        "The teacher: a name or folder of a model, or of an adapter. An adapter on the base of a student that has "
        "adapters itself shares that base.",
    )
    teacher_model_init_kwargs: dict | str | None = _field(
        None, "Arguments of AutoModelForCausalLM.from_pretrained for the teacher, such as its dtype."
    )

    # Loss
    beta: _Beta = _field(
        1.0,
        "Which divergence: 1 is the reverse KL, KL(student || teacher); 0 the forward KL; in between the generalised "
        "Jensen-Shannon divergence.",
    )
    loss_temperature: _LossTemperature = _field(
        None, "Divides the logits of both in the divergence. Unset: temperature; in trl's GKD it is 1."
    )
    loss_aggregation: Annotated[str, Bounds(choices=DISTILL_AGGREGATIONS)] = _field(
        "token", "'token': mean over all tokens; 'sequence': over tokens, then sequences; 'constant': fixed length."
    )

    # Whose completions
    lmbda: Share = _field(
        1.0,
        "Share of the prompts whose completions the student draws; the others take the data's own answers, or with "
        "seq_kd the teacher's.",
    )
    seq_kd: bool = _field(False, "The completions that the student does not draw are drawn by the teacher.")
    max_new_tokens: Count | None = _field(None, "Another name of max_completion_length, as in trl's GKD.")

    def __post_init__(self):
        self._settle_length()
        super().__post_init__()
        if not isinstance(self.teacher_model_init_kwargs, dict | None):
            raise ValueError(
                "teacher_model_init_kwargs must be a dictionary or a JSON object, got "
                f"{self.teacher_model_init_kwargs!r}."
            )
        self._check_sources()
        self._check_of_rewards()

    def _settle_length(self) -> None:
        default = type(self).__dataclass_fields__["max_completion_length"].default
        if self.max_new_tokens is None:
            return
        if self.max_completion_length not in (default, self.max_new_tokens):
            raise ValueError(
                f"max_new_tokens ({self.max_new_tokens}) and max_completion_length ({self.max_completion_length}) say "
                "the same thing differently; set only one of them."
            )
        self.max_completion_length = self.max_new_tokens

    def _check_sources(self) -> None:
        if self.seq_kd and self.lmbda == 1:
            raise ValueError(
                "seq_kd=True lets the teacher draw the completions that the student does not, but lmbda is 1.0: the "
                "student draws all of them. Lower lmbda (0: the teacher draws all), or set seq_kd=False."
            )
        if self.rollout_correction != "none":
            raise ValueError(
                f"rollout_correction={self.rollout_correction!r} corrects the ratio of a policy loss, and the loss of "
                "distillation has none. Leave it at 'none'."
            )

    def _check_of_rewards(self) -> None:
        if self.turn_discount < 1:
            raise ValueError(
                f"turn_discount ({self.turn_discount}) discounts rewards, and rewards are only logged here. Leave it "
                "at 1.0."
            )

    @property
    def softness(self) -> float:
        """`loss_temperature` with its default filled in."""
        return self.temperature if self.loss_temperature is None else self.loss_temperature

    @property
    def algorithm(self) -> Algorithm:
        title = "On-Policy Distillation of Language Models: Learning from Self-Generated Mistakes"
        return Algorithm("GKD", title, "2306.13649", kind="knowledge-distillation")
