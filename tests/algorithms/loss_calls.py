# SPDX-License-Identifier: Apache-2.0
"""The losses with their inputs and settings as plain arguments, as tests state them."""

from dataclasses import fields

from minimind_hf import algorithms
from minimind_hf.algorithms import LossInputs, LossSettings

INPUTS = {each.name for each in fields(LossInputs)}


def policy_loss(logps, old_logps, ref_logps, advantages, mask, **others):
    inputs, settings = _split(others)
    inputs = LossInputs(logps, old_logps, advantages, mask, ref_logps, **inputs)
    return algorithms.policy_loss(inputs, LossSettings(**settings))


def ppo_policy_loss(logps, old_logps, ref_logps, advantages, mask, **others):
    inputs, settings = _split(others)
    return algorithms.ppo_policy_loss(LossInputs(logps, old_logps, advantages, mask, ref_logps, **inputs), **settings)


def _split(others: dict) -> tuple[dict, dict]:
    inputs = {name: value for name, value in others.items() if name in INPUTS}
    return inputs, {name: value for name, value in others.items() if name not in INPUTS}
