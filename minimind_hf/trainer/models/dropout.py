# SPDX-License-Identifier: Apache-2.0
"""Dropout of a model that is sampled from without and trained with: where there is some, and what it does to a run.

So do routers of experts that draw while they train (`router_jitter_noise` and the like): they count as dropout here.
"""

import functools

from torch import nn
from transformers.utils import logging
from trl.trainer.utils import disable_dropout_in_model

logger = logging.get_logger(__name__)


def dropouts(model: nn.Module) -> dict[str, float]:
    """Returns what drops out while the model trains, with its rate: two passes over the same tokens then differ."""
    found = {}
    for name, module in model.named_modules():
        if "train" in vars(module):  # see `disable_dropout`
            continue
        if isinstance(module, nn.Dropout):
            found[name] = module.p
        else:
            found |= {f"{name}.{key}".lstrip("."): value for key, value in vars(module).items() if _is_noise(key)}
    return {name: rate for name, rate in found.items() if isinstance(rate, float) and rate > 0}


def _is_noise(name: str) -> bool:
    return "dropout" in name or "jitter" in name


def disable_dropout(model: nn.Module) -> None:
    """Sets every dropout to 0: that of modules, and the rates that attention and adapters read from attributes.

    Routers with noise stay as they are in evaluation, since the rate also decides which experts they weigh.
    """
    disable_dropout_in_model(model)
    for module in model.modules():
        for key, value in list(vars(module).items()):
            if "dropout" in key and isinstance(value, float):
                setattr(module, key, 0.0)
            elif "jitter" in key and isinstance(value, float) and value > 0:
                module.eval()
                module.train = functools.partial(_stay_in_evaluation, module)


def _stay_in_evaluation(module: nn.Module, mode: bool = True) -> nn.Module:
    return type(module).train(module, False)


def say_that_it_drops_out(model: nn.Module) -> None:
    """Says once, before the first step, that log-probabilities of the update are not those of the rollout."""
    found = dropouts(model)
    if found:
        name, rate = max(found.items(), key=lambda item: item[1])
        logger.warning(
            "%s has dropout, or noise in its routers (%d places, the highest rate is %g at %s). Completions are "
            "sampled without it and scored with it, so ratios differ from 1 and k3 from 0 before the first update. "
            "Set disable_dropout=True to train without it.",
            type(model).__name__,
            len(found),
            rate,
            name,
        )
