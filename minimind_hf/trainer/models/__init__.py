# SPDX-License-Identifier: Apache-2.0
"""The models that a run holds: policy, reference, critic, their adapters, and the optimizer over them.

It may import `settings` and `distributed`. How a model is loaded, wrapped or checked belongs here; what is computed
with it belongs into `forward`, how it is saved into `checkpoints`.
"""
