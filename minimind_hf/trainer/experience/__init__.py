# SPDX-License-Identifier: Apache-2.0
"""From prompts to micro-batches: what a rollout is made of, and what the update takes of it.

`inputs.py` makes data, engine and sampler ready, `rollouts.py` draws, `scoring.py` checks rewards, `experience.py` is
what one rollout gathers, `micro_batch.py` what a loss sees, `parts.py` what of it is computed at a time. It may import
`settings`, `distributed`, `metrics` and `models`. A new field that a loss needs is a line in `MicroBatch`.
"""
