# SPDX-License-Identifier: Apache-2.0
"""Rollouts from SGLang servers that the user runs: never from other weights than were sent, never silently fewer.

Each process asks for its own prompts, one request per prompt, or per turn of an episode, spread over the servers. The
first process sends the weights to all servers. After each round the processes tell each other what happened. They wait
for a server that failed, send it the weights again if it lost them, and ask again for what is missing. Any other error
ends them all.
"""

import os
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import nn
from transformers.utils import logging

from ...forward.introspection import unwrap
from ..agreement import failing_together, gather, on_main, rank
from ..engine import Rollout, RolloutEngine, SamplingParams
from ..errors import RolloutServerError, ServerUnavailableError
from ..observers import checked_workers
from ..refill import Refill
from ..session import Session
from .broadcast import DistributedSync
from .checks import check_logprobs, check_room, check_server, how_to_start
from .client import Patience, SGLangServer
from .episodes import EpisodeJob
from .jobs import Jobs
from .protocol import Expected, check_prompts
from .rounds import Outcome, PromptJob, Round
from .sleeping import check_can_sleep, fall_asleep, wake_for_requests, wake_for_weights
from .sync import DiskSync, WeightSync
from .top_k import check_truncation

logger = logging.get_logger(__name__)

WEIGHT_SYNCS = ("disk", "distributed")
_TAG = "minimind-hf"  # the names of weights that trainers send begin with it


class SGLangEngine(RolloutEngine):
    """Draws completions from one or several [SGLang](https://docs.sglang.ai) servers.

    Args:
        base_urls (`str` or `Sequence[str]`): The servers, such as `http://localhost:30000`.
        weight_sync (`str`): `"disk"` writes the weights to a folder that the servers can read; `"distributed"`
            broadcasts them in a process group with each server.
        sync_folder (`str` or `Path`): The folder for `"disk"`, for example in `/dev/shm`. It belongs to one run.
        server_timeout (`float`): Seconds for which a server may fail or not answer before the run ends.
        api_key (`str`, *optional*): The servers' `--api-key`. Unset: the environment's `SGLANG_API_KEY`.
        admin_key (`str`, *optional*): Their `--admin-api-key`. Unset: the environment's `SGLANG_ADMIN_API_KEY`.
        keeps_sent (`bool`): Whether `"distributed"` keeps a copy of what it sent in CPU memory, so that a restarted
            server gets the same weights again, even if the model has changed since. Turn it off to save that memory
            if `sync_weights` is called after every change of the model.
        sleeps (`bool`): Whether the servers give their memory back while the trainer updates, for servers on the
            trainer's own device; see [`rest`].
    """

    def __init__(
        self,
        base_urls: str | Sequence[str],
        weight_sync: str = "disk",
        sync_folder: str | Path = "rollout_weights",
        server_timeout: float = 300.0,
        api_key: str | None = None,
        admin_key: str | None = None,
        keeps_sent: bool = True,
        sleeps: bool = False,
    ):
        urls = [base_urls] if isinstance(base_urls, str) else list(base_urls)
        if not urls or len(set(urls)) < len(urls):
            raise ValueError(f"base_urls must name one or more different servers, got {urls}.")
        if weight_sync not in WEIGHT_SYNCS:
            raise ValueError(f"weight_sync must be one of {', '.join(WEIGHT_SYNCS)}, got {weight_sync!r}.")
        if not server_timeout > 0:
            raise ValueError(f"server_timeout must be above 0 seconds, got {server_timeout}.")
        api_key = api_key or os.environ.get("SGLANG_API_KEY")
        admin_key = admin_key or os.environ.get("SGLANG_ADMIN_API_KEY")
        self.servers = [SGLangServer(url, server_timeout, api_key, admin_key) for url in urls]
        self.server_timeout = server_timeout
        is_disk = weight_sync == "disk"
        self._sync: WeightSync = DiskSync(sync_folder) if is_disk else DistributedSync(server_timeout, keeps_sent)
        self._sleeps = sleeps
        self._slept_with: str | None = None  # the name of the weights with which the servers were put to sleep
        self._run: str | None = None
        self._syncs = 0
        self._tag: str | None = None
        self._version = 0
        self._model: nn.Module | None = None
        self._room: int | None = None
        self._is_compared = False
        self._cached = self._prompted = 0

    def check_ready(self, model: nn.Module, max_prompt_length: int | None, max_completion_length: int) -> None:
        """Waits for the servers and checks that they serve this architecture with room for these lengths.

        Raises:
            ServerGoneError: If a server is not up within `server_timeout`, with the command that starts it.
            RolloutServerError: If a server serves something else.
        """
        checked = on_main(
            "checking the SGLang servers", lambda: [self._check(server, model) for server in self.servers]
        )
        self._room = min(checked)
        check_room(self._room, max_prompt_length, max_completion_length)

    def _check(self, server: SGLangServer, model: nn.Module) -> int:
        patience = Patience(server.url, self.server_timeout, how_to_start(model, server.url))
        patience.attempt(server.check_health)
        if self._sleeps:
            check_can_sleep(server)
        return patience.attempt(lambda: check_server(server, model))

    # Weights

    def sync_weights(self, model: nn.Module, version: int) -> None:
        if self._room is None:
            self.check_ready(model, None, 1)
        if self._run is None:
            self._run = on_main("naming the run", lambda: uuid.uuid4().hex[:8])
        self._syncs += 1
        self._tag, self._version, self._model = f"{_TAG}-{self._run}-{self._syncs}", version, model
        self._send(range(len(self.servers)))

    def _send(self, numbers: Sequence[int]) -> None:
        """Sends servers the weights of the last sync, not the current ones."""
        with failing_together("exporting the weights"):
            self._sync.take(self._model, self._tag)
        servers = [self.servers[number] for number in numbers]
        if self._slept_with is not None:
            torch.cuda.empty_cache()  # what the update has left of the device; nothing happens without one
        on_main("sending the weights to the SGLang servers", lambda: self._push_all(servers))
        self._sync.done(self._tag)
        self._slept_with = None

    def _push_all(self, servers: list[SGLangServer]) -> None:
        with ThreadPoolExecutor(len(servers) if self._sync.pushes_at_once else 1) as pool:
            list(pool.map(self._push, servers))

    def _push(self, server: SGLangServer) -> None:
        slept_with, timeout = self._slept_with, self.server_timeout
        slept = slept_with is not None and wake_for_weights(server, slept_with, timeout)
        Patience(server.url, timeout).attempt(lambda: self._push_once(server))
        if slept:
            wake_for_requests(server)

    def _push_once(self, server: SGLangServer) -> None:
        self._sync.push(server, self._tag)
        served = server.weight_version()
        if served.startswith(_TAG) and served != self._tag:
            raise RolloutServerError(self._foreign_weights(server, served))
        if served != self._tag:
            raise ServerUnavailableError(f"it was sent the weights {self._tag} but serves {served!r}")

    def _foreign_weights(self, server: SGLangServer, found: str) -> str:
        return (
            f"The SGLang server {server.url} was sent the weights {self._tag} but serves {found}. Is another run "
            "using it, or are several servers behind this address? Give the address of each server, and use a server "
            "for one run at a time."
        )

    def rest(self) -> None:
        """Makes the servers give their memory back, if `sleeps`; they get it back with the next weights, or with the
        same weights if completions are asked for before."""
        if not self._sleeps or self._tag is None or self._slept_with is not None:
            return

        def put_to_sleep() -> None:
            for server in self.servers:
                fall_asleep(server, self.server_timeout)

        on_main("putting the SGLang servers to sleep", put_to_sleep)
        self._slept_with = self._tag

    # Completions

    def generate(
        self,
        prompt_ids: Sequence[Sequence[int]],
        num_generations: int,
        sampling: SamplingParams,
        refill: Refill | None = None,
    ) -> list[Rollout]:
        def job(ids: Sequence[int]) -> PromptJob:
            self._check_prompts([ids], sampling)
            return PromptJob(list(ids), num_generations, self._server_of(len(jobs.all)), sampling)

        jobs = Jobs(job, lambda job: job.rollouts, refill)
        with failing_together("checking the prompts"):
            self._check_request(prompt_ids, sampling)
            jobs.add(prompt_ids)
        self._complete(jobs, sampling)
        self._compare([job.prompt_ids for job in jobs.all], jobs.rollouts, sampling)
        return jobs.rollouts

    def converse(
        self, sessions: Sequence[Session], sampling: SamplingParams, refill: Refill | None = None
    ) -> list[Rollout]:
        """Plays episodes, each at its own pace; see [`RolloutEngine.converse`]."""
        groups: dict[tuple[int, ...], int] = {}  # equal prompts have the same number

        def job(session: Session) -> EpisodeJob:
            self._check_prompts([session.prompt_ids], sampling)
            group = groups.setdefault(tuple(session.prompt_ids), len(groups))
            return EpisodeJob(session, self._server_of(group), sampling, self._vocab_size)

        jobs = Jobs(job, lambda job: [job.transcript.rollout(self._version)], refill)
        with failing_together("checking the prompts"):
            checked_workers(self.tool_workers)
            self._check_request([session.prompt_ids for session in sessions], sampling)
            jobs.add(sessions)
        self._complete(jobs, sampling)
        prompts = [job.session.prompt_ids for job in jobs.all]
        self._compare(prompts, [job.first_turn for job in jobs.all], sampling)
        return jobs.rollouts

    def measured(self) -> dict[str, tuple[float, float]]:
        """See [`RolloutEngine.measured`]: the share of the tokens of prompts, which are all tokens before a turn, that
        the servers had in their caches."""
        found = {"cached_share": (self._cached, self._prompted)}
        self._cached = self._prompted = 0
        return found

    def _server_of(self, number: int) -> int:
        """The server of a prompt; processes begin with different ones."""
        return (number + rank()) % len(self.servers)

    def _compare(self, prompt_ids: Sequence[Sequence[int]], rollouts: list[Rollout], sampling: SamplingParams) -> None:
        """Compares the first log-probabilities of a run with the model's own."""
        if not self._is_compared:
            check_logprobs(self._model, prompt_ids, rollouts, sampling.temperature)
            self._is_compared = True

    def _check_request(self, prompt_ids: Sequence[Sequence[int]], sampling: SamplingParams) -> None:
        if self._tag is None:
            raise RuntimeError("SGLangEngine has no weights yet: call sync_weights(model, version) first.")
        if sampling.greedy and sampling.temperature != 1.0:
            raise ValueError(
                f"An SGLang server returns the log-probabilities of greedy tokens only at temperature 1, not at "
                f"temperature={sampling.temperature}. Set it to 1, or sample with a low temperature instead."
            )
        check_truncation(sampling)
        self._check_prompts(prompt_ids, sampling)

    def _check_prompts(self, prompt_ids: Sequence[Sequence[int]], sampling: SamplingParams) -> None:
        check_prompts(prompt_ids, self._vocab_size, self._room - sampling.max_completion_length)

    @property
    def _vocab_size(self) -> int:
        return unwrap(self._model).config.get_text_config().vocab_size

    def _complete(self, jobs: Jobs, sampling: SamplingParams) -> None:
        """Asks until nothing is missing in any process."""
        if self._slept_with is not None:
            self._send(range(len(self.servers)))
        expected = Expected(self._tag, self._version, sampling.eos_token_ids, sampling.top_k)
        patience = {number: Patience(server.url, self.server_timeout) for number, server in enumerate(self.servers)}
        while (outcome := self._play_round(jobs, expected)).is_incomplete:
            self._mend(outcome, patience)
        self._cached += sum(job.cached_tokens for job in jobs.all)
        self._prompted += sum(job.prompt_tokens for job in jobs.all)

    def _play_round(self, jobs: Jobs, expected: Expected) -> Outcome:
        """Asks for what is missing and returns what happened in all processes."""
        with failing_together("asking the SGLang servers"):
            missing = [job for job in jobs.all if not job.is_complete]
            own = Round(self.servers, expected, self.tool_workers).play(missing, jobs.further)
        outcomes = gather(own)
        for other in outcomes[1:]:
            outcomes[0].join(other)
        return outcomes[0]

    # Servers that failed

    def _mend(self, outcome: Outcome, patience: dict[int, Patience]) -> None:
        """Waits for the servers whose completions are missing, and sends weights to those that lost them."""
        lost = on_main("waiting for the SGLang servers", lambda: self._wait_for(outcome, patience))
        if lost:
            self._send(lost)

    def _wait_for(self, outcome: Outcome, patience: dict[int, Patience]) -> list[int]:
        lost = []
        for number, server in enumerate(self.servers):
            if number not in outcome.failures and number not in outcome.strangers:
                continue
            if outcome.progressed:
                patience[number].renew()
            if number in outcome.failures:
                patience[number].wait(outcome.failures[number])
            served = patience[number].attempt(lambda server=server: _served_weights(server))
            if self._has_lost_weights(server, served, outcome.strangers.get(number)):
                lost.append(number)
        return lost

    def _has_lost_weights(self, server: SGLangServer, served: str, answered_with: str | None) -> bool:
        if served == self._tag and answered_with is None:
            return False
        if served.startswith(_TAG):
            raise RolloutServerError(self._foreign_weights(server, answered_with or served))
        logger.warning(
            "The SGLang server %s serves the weights %r, so it was restarted. The weights of this rollout are sent "
            "again.",
            server.url,
            served,
        )
        return True

    def close(self) -> None:
        self._sync.close()
        for server in self.servers:
            server.close()


def _served_weights(server: SGLangServer) -> str:
    """Returns the name of the weights that a server serves; the server must be up."""
    server.check_health()
    return server.weight_version()
