# SPDX-License-Identifier: Apache-2.0
"""What is raised when rewards cannot be had."""


class RewardError(ValueError):
    """A reward function that cannot be used, or an answer of one that is no reward."""
