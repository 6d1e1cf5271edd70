# SPDX-License-Identifier: Apache-2.0
"""The settings of the trainers: what a run may be, declared and checked before there is a model or data.

A new setting is a field of RLConfig, GRPOConfig or PPOConfig; its bounds are part of its type (see `bounds.py` of the
package). Imports nothing of the trainer but what is in this folder.
"""
