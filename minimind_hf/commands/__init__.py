# SPDX-License-Identifier: Apache-2.0
"""Subcommands of `minimind-hf` that are more than a call.

Each module has `add(commands)`, and loads what it needs only when it runs.
"""
