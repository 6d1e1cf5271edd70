# SPDX-License-Identifier: Apache-2.0
"""The error of rewards."""


class RewardError(ValueError):
    """A reward function cannot be used, raised, or returned something that is not a reward."""
