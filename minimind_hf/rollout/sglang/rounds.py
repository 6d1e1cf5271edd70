# SPDX-License-Identifier: Apache-2.0
"""One round of requests of this process: everything that is missing, at the same time, and why some of it still is.

What is missing is completions of a prompt, or turns of an episode. Both are asked for in the same way, and what a
server failed to give is asked for again in the next round.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from threading import Semaphore
from typing import Protocol

from ..errors import ServerUnavailableError
from ..observers import Answer, Threads
from .client import SGLangServer
from .protocol import Expected, OtherWeightsError, PromptRequest, make_payload, read_answers

_CONCURRENT = 64  # prompts or episodes on a server at a time, by each process


@dataclass
class Outcome:
    """What came of a round.

    Args:
        is_incomplete (`bool`): Whether something is still missing.
        progressed (`bool`): Whether anything came.
        failures (`dict[int, str]`): Why something of a server is still missing, by the number of the server.
        strangers (`dict[int, str]`): Names of other weights with which a server answered.
    """

    is_incomplete: bool = False
    progressed: bool = False
    failures: dict[int, str] = field(default_factory=dict)
    strangers: dict[int, str] = field(default_factory=dict)

    def join(self, other: "Outcome") -> None:
        self.is_incomplete |= other.is_incomplete
        self.progressed |= other.progressed
        self.failures |= other.failures
        self.strangers |= other.strangers


class NotServedError(Exception):
    """A server did not give what it was asked for; the outcome of the round says why."""


class Job(Protocol):
    """Something that takes one or several requests to one server.

    Attributes:
        server (`int`): Number of the server.
        prompt_tokens (`int`), cached_tokens (`int`): See [`PromptRequest`], over all requests so far.
        progress (`int`): What has come so far, completions or turns.
        is_complete (`bool`): Whether nothing is missing.
    """

    server: int
    prompt_tokens: int
    cached_tokens: int
    progress: int
    is_complete: bool

    def advance(self, round: "Round") -> None:
        """Makes one request, and whatever follows from its answer.

        Raises:
            NotServedError: If it has to be made again.
        """


class PromptJob(PromptRequest):
    """Completions of one prompt, asked for at once."""

    @property
    def is_complete(self) -> bool:
        return self.missing == 0

    @property
    def progress(self) -> int:
        return len(self.rollouts)

    def advance(self, round: "Round") -> None:
        round.ask(self)


class Round:
    """A round; its methods `ask` and `observe` are for jobs.

    Args:
        servers (`Sequence[SGLangServer]`): All servers.
        expected ([`Expected`]): What the answers must match.
        tool_workers (`int`): Most sessions that answer at a time.
    """

    def __init__(self, servers: Sequence[SGLangServer], expected: Expected, tool_workers: int):
        self._servers, self._expected = servers, expected
        self._tools = Semaphore(tool_workers)
        self._outcome = Outcome()
        self._is_over = False

    def play(self, jobs: Sequence[Job], further: Callable[[Job], Sequence[Job]] = lambda job: ()) -> Outcome:
        """Advances all jobs, each at its own pace, until they are complete or their server fails.

        Args:
            jobs (`Sequence[Job]`): What is missing.
            further (`Callable`): Called with each job that is complete; returns jobs to advance too.

        Raises:
            BaseException: The first error of a job that asking again would not help. The other jobs make no further
                requests then.
        """
        jobs, before = list(jobs), sum(job.progress for job in jobs)
        try:
            with Threads(_CONCURRENT * len(self._servers)) as threads:
                for number, job in enumerate(jobs):
                    threads.start(number, partial(self._work, job))
                while threads.pending:
                    ended = [jobs[number] for number in threads.first()]
                    for job in [new for each in ended if each.is_complete for new in further(each)]:
                        threads.start(len(jobs), partial(self._work, job))
                        jobs.append(job)
        finally:
            self._is_over = True
        self._outcome.is_incomplete = not all(job.is_complete for job in jobs)
        self._outcome.progressed = sum(job.progress for job in jobs) > before
        return self._outcome

    def ask(self, request: PromptRequest) -> None:
        """Asks for the missing completions of a request.

        Raises:
            NotServedError: If some did not come; those that did are kept.
            RolloutServerError: If an answer does not follow the protocol, or the server refuses.
        """
        server = self._servers[request.server]
        try:
            aborted = read_answers(server.generate(make_payload(request)), request, self._expected, server.url)
            if aborted:
                raise ServerUnavailableError(aborted)
        except ServerUnavailableError as error:
            self._outcome.failures[request.server] = str(error)
            raise NotServedError from error
        except OtherWeightsError as error:
            self._outcome.strangers[request.server] = str(error)
            raise NotServedError from error

    def observe(self, observe: Callable[[list[int], str], Answer], ids: list[int], finish_reason: str) -> Answer:
        """Asks a session for its answer to a turn, when it is its turn."""
        with self._tools:
            if self._is_over:
                raise InterruptedError("The round has ended with an error.")  # in a thread that nobody waits for
            return observe(list(ids), finish_reason)

    def _work(self, job: Job) -> None:
        with suppress(NotServedError):
            while not job.is_complete and self._is_worth_asking(job.server):
                job.advance(self)

    def _is_worth_asking(self, server: int) -> bool:
        """A server that fails for one job fails for others as well; they ask it again when it is back."""
        return not (self._is_over or server in self._outcome.failures or server in self._outcome.strangers)
