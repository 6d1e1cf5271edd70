# SPDX-License-Identifier: Apache-2.0
"""Episodes on servers. Each is played on a thread of its own, so that none waits for the slowest.

A turn is one request for a completion of all tokens so far. All turns of an episode, and all episodes that begin with
the same prompt, go to the same server, which has most of these tokens in its cache.
"""

from dataclasses import replace

from ..samples import Rollout, SamplingParams
from ..session import Session
from ..transcript import Transcript
from .protocol import PromptRequest, check_ids
from .rounds import Round


class EpisodeJob:
    """One episode on its way to its end.

    Args:
        session ([`Session`]): Answers the turns.
        server (`int`): Number of the server that draws them.
        sampling ([`SamplingParams`]): How they are drawn.
        vocab_size (`int`): Number of ids that the server knows.

    Attributes:
        transcript ([`Transcript`]): What was drawn and answered so far. A turn that fails midway adds nothing.
        first_turn (`Rollout`, *optional*): The first turn by itself.
        progress (`int`): Turns so far.
        prompt_tokens (`int`), cached_tokens (`int`): See [`PromptRequest`], over all turns.
    """

    def __init__(self, session: Session, server: int, sampling: SamplingParams, vocab_size: int):
        self.session, self.server = session, server
        self.transcript = Transcript(sampling)
        self.first_turn: Rollout | None = None
        self.progress = self.prompt_tokens = self.cached_tokens = 0
        self._vocab_size = vocab_size

    @property
    def is_complete(self) -> bool:
        return self.transcript.finish_reason is not None

    def advance(self, round: Round) -> None:
        """Draws the next turn and asks the session for its answer.

        Raises:
            ValueError: If the answer has ids that would end the server.
        """
        turn = self._draw(round)
        answer = round.observe(self.session.observe, turn.completion_ids, turn.finish_reason)
        if self.transcript.answer(answer):
            check_ids(f"The answer to turn {self.progress} of an episode", answer, self._vocab_size)

    def _draw(self, round: Round) -> Rollout:
        transcript = self.transcript
        sampling = replace(transcript.sampling, max_completion_length=transcript.room, max_turn_length=None)
        request = PromptRequest([*self.session.prompt_ids, *transcript.ids], 1, self.server, sampling)
        round.ask(request)
        (turn,) = request.rollouts
        transcript.add_turn(turn.completion_ids, turn.logprobs, turn.finish_reason, kept=turn.kept)
        self.first_turn = self.first_turn or turn
        self.progress += 1
        self.prompt_tokens += request.prompt_tokens
        self.cached_tokens += request.cached_tokens
        return turn
