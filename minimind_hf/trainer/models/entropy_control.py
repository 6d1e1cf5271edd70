# SPDX-License-Identifier: Apache-2.0
"""The weight of the entropy bonus over a run: a constant, or moved after each step towards a target entropy.

The rule is trl's, from [Skywork-OR1](https://arxiv.org/abs/2505.22312); so is the file in checkpoints.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import Tensor
from transformers import TrainerCallback
from transformers.utils import logging

from ..metrics import Metrics
from ..settings.grpo import GRPOConfig

logger = logging.get_logger(__name__)

STATE_FILE = "entropy_ctrl_state.json"


class EntropyControl(TrainerCallback):
    """Knows the weight of the entropy bonus in the step that is computed.

    Args:
        args ([`GRPOConfig`]): Start, target and limits.
        accelerator: Joins the processes.
        metrics (`Callable[[], Metrics]`): Where the weight is logged.

    Attributes:
        coefficient (`float`): `entropy_coef` as it is now.
        last_entropy (`float`): Mean over the tokens of the step before; infinity before the first.
    """

    def __init__(self, args: GRPOConfig, accelerator: Accelerator, metrics: Callable[[], Metrics]):
        self._args, self._accelerator, self._metrics = args, accelerator, metrics
        self.coefficient, self.last_entropy = args.entropy_coef, math.inf
        self._measured: Tensor | None = None

    @property
    def weight(self) -> float:
        """Of the bonus in this step; constant within it."""
        if self._args.use_adaptive_entropy and self.last_entropy > self._args.entropy_target:
            return 0.0
        return self.coefficient

    def measure(self, entropy_sum: Tensor, num_tokens: Tensor) -> None:
        """Adds a part of the step: the sum of the entropies of the tokens that the policy's term sees."""
        if self._args.use_adaptive_entropy:
            measured = torch.stack([entropy_sum.detach().double(), num_tokens.double()])
            self._measured = measured if self._measured is None else self._measured + measured

    def on_step_end(self, *args, **kwargs) -> None:
        """Moves the weight for the next step, in all processes alike. A step without tokens says nothing."""
        if self._measured is not None:
            entropy_sum, num_tokens = self._accelerator.reduce(self._measured, reduction="sum").tolist()
            self._measured = None
            if num_tokens:
                self._move(entropy_sum / num_tokens)
        if self._args.use_adaptive_entropy or self.coefficient:
            self._metrics().add_mean("entropy_coef", self.coefficient, 1)

    def _move(self, entropy: float) -> None:
        args = self._args
        if entropy <= args.entropy_target:
            self.coefficient = min(self.coefficient + args.entropy_coef_delta, args.entropy_coef_max)
        else:
            self.coefficient = max(self.coefficient - args.entropy_coef_delta, args.entropy_coef_min)
        self.last_entropy = entropy

    def save(self, checkpoint: str) -> None:
        """Puts the state into a checkpoint that is being made; one process does."""
        if self._args.use_adaptive_entropy:
            state = {"entropy_coef": self.coefficient, "last_world_entropy": self.last_entropy}
            (Path(checkpoint) / STATE_FILE).write_text(json.dumps(state), encoding="utf-8")

    def load(self, checkpoint: str) -> None:
        """Takes the state of a checkpoint."""
        if not self._args.use_adaptive_entropy:
            return
        file = Path(checkpoint) / STATE_FILE
        if not file.exists():
            logger.warning(
                f"{file} is missing: the checkpoint was written without use_adaptive_entropy, so entropy_coef starts "
                f"at {self.coefficient}."
            )
            return
        state = json.loads(file.read_text(encoding="utf-8"))
        self.coefficient, self.last_entropy = state["entropy_coef"], state["last_world_entropy"]
