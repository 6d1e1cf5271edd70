# SPDX-License-Identifier: Apache-2.0
"""Runs in several processes: supported modes, sharded weights, DeepSpeed, and errors that stop all processes.

This package may import `settings` and packages outside the trainer. Code that depends on how a run is distributed
belongs here, unless it concerns checkpoints.
"""
