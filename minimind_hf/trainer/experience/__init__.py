# SPDX-License-Identifier: Apache-2.0
"""From prompts to micro-batches: the data of a rollout and of the update.

`inputs.py` prepares data, engine and sampler, `rollouts.py` samples, `scoring.py` checks rewards, `experience.py`
holds the data of one rollout, `micro_batch.py` the data of a loss, `parts.py` splits it into what is computed at a
time. This package may import `settings`, `distributed`, `metrics` and `models`. A new field for a loss is a line in
`MicroBatch`.
"""
