# SPDX-License-Identifier: Apache-2.0
"""The models of a run: policy, reference, critic, their adapters, and the optimizer.

This package may import `settings`, `distributed` and `metrics`. Loading, wrapping and checking a model belong here;
computing with it belongs in `forward`, saving it in `checkpoints`.
"""
