# SPDX-License-Identifier: Apache-2.0
"""What can go wrong between a trainer and a rollout server."""


class RolloutServerError(RuntimeError):
    """A rollout server refused a request, or answered what cannot be trained on. Asking again would not help."""


class ServerUnavailableError(RolloutServerError):
    """A rollout server did not answer, or said that it cannot now. Asking again may help."""


class ServerGoneError(RolloutServerError):
    """A rollout server stayed away for longer than allowed. Trainers save a checkpoint before they pass it on."""
