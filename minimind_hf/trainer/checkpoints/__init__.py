# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: saving, publishing and resuming a run, its output folder, and the model card.

This package may import everything below it in the trainer: `settings`, `distributed`, `metrics`, `models` and
`experience`. New state of a run goes into `state.py`, checks before a resume into `resuming.py`.
"""
