# SPDX-License-Identifier: Apache-2.0
"""Settings without the values of tokens, for files and trackers."""

from typing import Any

SECRET = "token"


def without_secrets(settings: dict[str, Any]) -> dict[str, Any]:
    """Returns settings without the values of tokens, also those among the arguments of a model."""
    cleaned = {}
    for name, value in settings.items():
        if isinstance(value, dict):
            value = without_secrets(value)
        is_secret = isinstance(name, str) and (name == SECRET or name.endswith(f"_{SECRET}"))
        cleaned[name] = None if is_secret and isinstance(value, str) and not _is_token_name(name) else value
    return cleaned


def _is_token_name(name: str) -> bool:
    """Tokens of a vocabulary (`eos_token`, ...) are no secrets."""
    return name in {"bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token"}
