# SPDX-License-Identifier: Apache-2.0
"""What a run can be told: every setting with its default, its meaning and its bounds, checked once, where it is
declared.

`base.py` has what GRPO and PPO share, `grpo.py` and `ppo.py` the rest. A new setting is a field in one of these. Which
losses and estimators there are is read from the tables of `algorithms`; this room imports nothing else of the trainer.
"""
