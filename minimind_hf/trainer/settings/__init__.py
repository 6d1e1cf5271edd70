# SPDX-License-Identifier: Apache-2.0
"""What a run can be told: every setting with its default, its meaning and its bounds, checked before there is a model.

`base.py` has what GRPO and PPO share, `grpo.py` and `ppo.py` the rest. A new setting is a field in one of these; its
bounds are part of its type (see `bounds.py` of the package). Which losses and estimators there are is read from the
tables of `algorithms`. This room imports nothing else of the trainer.
"""
