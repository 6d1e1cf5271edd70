# SPDX-License-Identifier: Apache-2.0
"""One optimizer for two models, with separate learning rates and separate gradient clipping."""

from pathlib import Path

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim.lr_scheduler import LRScheduler
from transformers.trainer import SCHEDULER_NAME

CRITIC_GROUP = "critic"


def group_by_model(optimizer: torch.optim.Optimizer, critic: list[nn.Parameter], learning_rate: float) -> None:
    """Splits each parameter group of a fresh optimizer into one for the policy and one for the critic, in place.

    Args:
        optimizer: An optimizer without state. Other settings of each group, such as weight decay, are kept.
        critic (`list[nn.Parameter]`): The critic's parameters.
        learning_rate (`float`): The critic's learning rate.
    """
    of_critic = {id(parameter) for parameter in critic}
    groups = {"policy": [], CRITIC_GROUP: []}
    for group in optimizer.param_groups:
        for model, members in groups.items():
            wanted = model == CRITIC_GROUP
            parameters = [parameter for parameter in group["params"] if (id(parameter) in of_critic) == wanted]
            if parameters:
                rate = learning_rate if wanted else group["lr"]
                members.append({**group, "params": parameters, "lr": rate, "model": model})
    optimizer.param_groups[:] = groups["policy"] + groups[CRITIC_GROUP]


def check_trains(optimizer: torch.optim.Optimizer, **models: list[nn.Parameter]) -> None:
    """Refuses a custom optimizer that lacks parameters of a model.

    Raises:
        ValueError: Naming the model, and where to get its parameters.
    """
    trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for model, parameters in models.items():
        left_out = sum(id(parameter) not in trained for parameter in parameters)
        if left_out:
            raise ValueError(
                f"The optimizer passed to the trainer lacks {left_out} of the {len(parameters)} trainable parameters "
                f"of the {model}. The trainer creates the critic: set trainer.optimizer before train(), from "
                "trainer.model.parameters(), or choose one with optim and critic_learning_rate."
            )


def learning_rate_of(optimizer: torch.optim.Optimizer, model: str) -> float | None:
    """Returns the current learning rate; `None` if the optimizer was not grouped by [`group_by_model`]."""
    for group in optimizer.param_groups:
        if group.get("model") == model:
            return float(group["lr"])
    return None


def clip_by_model(accelerator: Accelerator, models: tuple[list[nn.Parameter], ...], max_norm: float) -> list[Tensor]:
    """Clips the gradients of each model to `max_norm`, and returns the norms before clipping."""
    accelerator.unscale_gradients()
    norms = [nn.utils.clip_grad_norm_(parameters, max_norm) for parameters in models]
    return [norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms]


def fill_gradients(model: nn.Module) -> None:
    """Gives all parameters a gradient of 0, if none has any: an optimizer then still moves by its momentum.

    Args:
        model (`nn.Module`): The model that is trained.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if all(parameter.grad is None for parameter in trained):
        for parameter in trained:
            parameter.grad = torch.zeros_like(parameter)


def is_stateless(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimizer keeps no state between steps: SGD without momentum."""
    optimizer = getattr(optimizer, "optimizer", optimizer)  # accelerate's wrapper
    return type(optimizer) is torch.optim.SGD and not any(group["momentum"] for group in optimizer.param_groups)


def load_schedule(optimizer: torch.optim.Optimizer, schedule: LRScheduler, checkpoint: str) -> None:
    """Restores the learning rates of a checkpoint, for an optimizer without state."""
    schedule.load_state_dict(torch.load(Path(checkpoint) / SCHEDULER_NAME, weights_only=True))
    for group, rate in zip(optimizer.param_groups, schedule.get_last_lr(), strict=True):
        group["lr"] = rate
