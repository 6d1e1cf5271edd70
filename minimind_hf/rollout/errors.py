# SPDX-License-Identifier: Apache-2.0
"""Errors between a trainer and a rollout server."""


class RolloutServerError(RuntimeError):
    """A rollout server refused a request, or its answer cannot be trained on. Asking again would not help."""


class ServerUnavailableError(RolloutServerError):
    """A rollout server did not answer, or cannot answer now. Asking again may help."""


class ServerGoneError(RolloutServerError):
    """A rollout server failed for longer than allowed. Trainers save a checkpoint before they raise it."""


class EngineMismatchError(RuntimeError):
    """Completions come from another distribution than the trainer's, too far from it to be trained on."""
