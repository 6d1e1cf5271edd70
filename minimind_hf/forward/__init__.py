# SPDX-License-Identifier: Apache-2.0
"""From token ids to log-probabilities."""
