# SPDX-License-Identifier: Apache-2.0
"""Episodes of several turns: tools and environments, the calls of a turn, and the ids that answer it.

It imports `data`, `import_paths` and `event_loop`, and knows no trainer and no engine. How a function becomes a tool
belongs in `tools`, how its value becomes text in `results`, where the text is cut in `episodes` and `data.untrusted`,
how a turn is read in `calls`, what stands between two turns in `turns`, and what a kind of environment offers in
`environments`; `episodes` plays one of them.
"""

from .agent import Agent
from .calculator import calculate
from .calls import AssistantTurn, TurnReader, opens_thought, read_turn
from .conversation import Conversation, Reply, Turn
from .episodes import Episode
from .errors import AgentError
from .games import TextArenaGame
from .results import result_text
from .tools import Tool, Toolbox, public_methods
from .turns import TurnTemplate

__all__ = [
    "Agent",
    "AgentError",
    "AssistantTurn",
    "Conversation",
    "Episode",
    "Reply",
    "TextArenaGame",
    "Tool",
    "Toolbox",
    "Turn",
    "TurnReader",
    "TurnTemplate",
    "calculate",
    "opens_thought",
    "public_methods",
    "read_turn",
    "result_text",
]
