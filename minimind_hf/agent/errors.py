# SPDX-License-Identifier: Apache-2.0
"""Errors of tools, environments and their settings."""


class AgentError(ValueError):
    """Tools or an environment cannot be used, or an environment failed. Names the cause and what to do."""
