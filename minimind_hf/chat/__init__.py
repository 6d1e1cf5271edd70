# SPDX-License-Identifier: Apache-2.0
"""A conversation with a trained model, streamed to a console, with tools that are really called.

It may import everything but the commands. Settings are in `settings`, how text is shown while it is decoded in
`streaming`, what the model may call and who allows it in `tools`, and the conversation itself in `chat`.
"""

from typing import TYPE_CHECKING

from ..lazy import lazy

if TYPE_CHECKING:
    from .chat import Chat, converse
    from .settings import HELP, NO_SWITCH, AnswerSettings, ChatSettings, ToolSettings
    from .tools import ChatTools

_LAZY = {
    "AnswerSettings": ".settings",
    "Chat": ".chat",
    "ChatSettings": ".settings",
    "ChatTools": ".tools",
    "HELP": ".settings",
    "NO_SWITCH": ".settings",
    "ToolSettings": ".settings",
    "converse": ".chat",
}

__all__ = ["HELP", "NO_SWITCH", "AnswerSettings", "Chat", "ChatSettings", "ChatTools", "ToolSettings", "converse"]

__getattr__, __dir__ = lazy(__name__, _LAZY)
