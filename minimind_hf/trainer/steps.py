# SPDX-License-Identifier: Apache-2.0
"""The four steps of a rollout and its update. Each is a method that an algorithm fills in or replaces.

    prompts -> 1 rollout -> 2 score -> 3 advantages -> 4 update -> next prompts

Steps 1 and 2 are the same for all algorithms, in training and in evaluation. An algorithm defines step 3 and the loss
of step 4. docs/extending.md builds one in a dozen lines.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..algorithms import loss_denominator
from ..event_loop import Pending
from ..forward.layouts import score_completions
from ..forward.logprobs import TokenScores
from ..rewards import RewardScorer
from ..rewards.judging import begin_judging, readable_completions
from ..rewards.signals import Signals
from ..rollout.agreement import failing_together, gather
from .experience.agents import all_weights
from .experience.audit import check_episodes, tolerance
from .experience.experience import Experience, split_experience
from .experience.measures import measure_experience
from .experience.micro_batch import MicroBatch, part_of
from .experience.mismatch import correct_rollout, measure_engine, measure_staleness
from .experience.parts import score_in_parts, split_by_tokens
from .experience.rollouts import Rollouts
from .experience.scoring import check_totals, total_by_turn
from .logs.reward_notes import RewardNotes
from .metrics import Metrics
from .models.reference import Reference
from .proving import ProvingTrainer
from .settings.base import RLConfig


class FourSteps(ProvingTrainer):
    """The steps of an algorithm; [`RLTrainer`] sets up the attributes and runs the loop.

    Attributes:
        args ([`RLConfig`]): Settings.
        scorer ([`RewardScorer`]): The reward functions.
        reference ([`Reference`], *optional*): The frozen initial policy, if there is a KL penalty.
        layout (`str`): The layout in which log-probabilities are computed.
        metrics ([`Metrics`]): Metrics of training between two logs.
        router_loss_coefficient (`float`): Weight of the balancing loss of a mixture of experts; 0 for other models.
    """

    args: RLConfig
    scorer: RewardScorer
    reference: Reference | None
    layout: str
    metrics: Metrics
    router_loss_coefficient: float
    _audit_is_due: bool
    _rollouts: Rollouts
    _step_denominator: Tensor  # of the loss of the optimizer step that is being computed

    @property
    def policy(self) -> PreTrainedModel:
        """The model that is trained and saved, without wrappers."""
        return self.policy_of(self.accelerator.unwrap_model(self.model))

    # The steps

    def rollout(self, experience: Experience) -> None:
        """Step 1: samples `experience.rollouts` from the current policy."""
        with (
            experience.metrics.phase("rollout"),
            self._rollout_weights.gathered(self.model_wrapped, self.policy) as policy,
            failing_together("the rollout"),
        ):
            experience.rollouts = self._rollouts.draw(policy, experience)
        counted = experience.counted
        experience.metrics.add_sampled(len(counted.rollouts), int(counted.lengths.sum()))
        measure_staleness(counted.rollouts, experience.step, experience.metrics)
        measure_engine(self._rollouts.engine, experience.metrics)

    def score(self, experience: Experience) -> None:
        """Step 2: calls the reward functions and fills in `experience.completions`, `signals` and `rewards`.

        If there are rewards of turns, also `turn_rewards`: from replies of environments, and from functions.
        """
        if experience.rewards is None:  # else its groups were scored as they were completed
            self._agree_on_rewards(experience.counted)
            with experience.metrics.phase("scoring"), failing_together("scoring"):
                self.begin_scoring(experience).result()
        if any(gather(experience.turn_rewards is not None)):  # rewards of turns in one process concern all
            experience.turn_rewards = experience.rewards_by_turn

    def begin_scoring(self, experience: Experience) -> Pending:
        """Calls the reward functions of this process alone. The result fills in what [`score`] does."""
        counted = experience.counted
        notes = RewardNotes(counted.num_counted, experience.metrics, self.scorer.names)
        experience.completions = self._completions(counted)
        judging = self._signals(counted, experience.completions, notes)
        return Pending(judging.waits, lambda: self._add_rewards(experience, judging.result(), notes))

    def _add_rewards(self, experience: Experience, signals: Signals, notes: RewardNotes) -> None:
        experience.signals = signals.values.to(self.accelerator.device)
        self.scorer.follow(all_weights(self.args, self.agent))
        experience.rewards, experience.turn_rewards = total_by_turn(experience.counted, signals, self.scorer)
        experience.rewards = experience.rewards.to(self.accelerator.device)
        check_totals(experience.rewards, experience.signals, self.scorer, self.takes_rewards_unscaled)
        experience.notes = notes.columns
        experience.fill_up()
        if self.agent is not None:
            self.agent.release(experience.episodes)

    def _agree_on_rewards(self, counted: Experience) -> None:
        """Environments that have rewarded turns in one process are known to do so in all."""
        if self.agent is not None:
            self.agent.expect_rewards(set().union(*gather(self.agent.rewarding(counted.episodes))))

    def _completions(self, counted: Experience) -> list:
        if counted.episodes is not None:
            return [episode.messages for episode in counted.episodes]
        ids = [rollout.completion_ids for rollout in counted.rollouts]
        return readable_completions(counted.prompts, ids, self.processing_class, self._rollouts.eos_token_ids)

    def _signals(self, counted: Experience, completions: list, notes: RewardNotes) -> Pending:
        if not completions:
            return Pending(False, lambda: Signals(torch.empty(0, len(self.scorer.names))))
        episodes = counted.episodes or [None] * len(completions)
        further = {
            "trainer_state": self.state,
            "log_metric": notes.log_metric,
            "log_extra": notes.log_extra,
            "num_turns": counted.num_turns,
            "environments": [None if episode is None else episode.environment for episode in episodes],
            "turn_rewards": [None if episode is None else episode.turn_rewards for episode in episodes],
        }
        prompts = [counted.prompt_of(index) for index in range(len(completions))]
        return begin_judging(self.scorer, prompts, completions, counted.policy_ids, **further)

    def choose_prompts(self, numbers: Sequence[int]) -> Sequence[int]:
        """The prompts of the train dataset that a rollout draws, given those whose turn it is."""
        return numbers

    def resample(self, experience: Experience, numbers: Sequence[int]) -> Experience:
        """After the rewards, may put groups of a training rollout aside and draw others: as many as there were."""
        return experience

    @abstractmethod
    def add_advantages(self, experience: Experience) -> None:
        """Step 3: computes `experience.advantages`, `(N,)`, from the rewards."""

    def training_batches(self, experience: Experience) -> list[MicroBatch]:
        """Step 4: returns `args.micro_batches_per_rollout` micro-batches for the update, all passes in order."""
        return self.micro_batches(experience)

    # More hooks of an algorithm

    @staticmethod
    def kl_weight(args: RLConfig) -> float:
        """Weight of the KL penalty; with 0, no reference is kept."""
        return 0.0

    @property
    def takes_rewards_unscaled(self) -> bool:
        """Whether the loss grows with the scale of the rewards, because nothing divides by that scale."""
        return True

    def trained_model(self, policy: PreTrainedModel, args: RLConfig) -> nn.Module:
        """Returns the model to optimize: the policy, or a module that holds it (see [`~RLTrainer.policy_of`])."""
        return policy

    def policy_of(self, model: nn.Module) -> PreTrainedModel:
        """Returns the policy inside the unwrapped model."""
        return model

    def measure(self, experience: Experience) -> None:
        """Adds the metrics of a rollout that has advantages."""
        measure_experience(experience, self.scorer.names, self.processing_class)

    @torch.no_grad()
    def audit(self, experience: Experience) -> None:
        """Compares the engine's log-probabilities of episodes with the trainer's, at the first rollout of a run.

        Raises:
            EngineMismatchError: Naming the episode, the turn and the token at which they differ.
        """
        is_due = self._audit_is_due or self.args.debug_mode
        if experience.episodes is None or not is_due or self.args.sync_every > 1:
            return
        self._audit_is_due = False
        size, device = self.args.per_device_train_batch_size, self.accelerator.device
        cut = split_experience(experience, size, mask_truncated=False, device=device)
        with experience.metrics.phase("audit"):
            logps = [row for batch in cut for row in self.policy_logps(batch)]
        with failing_together("the audit of episodes"):
            largest = check_episodes(experience.rollouts, logps, tolerance(self.args, self._rollouts.engine))
        experience.metrics.add_max("sampling/audit", torch.tensor(largest))

    def micro_batches(self, experience: Experience) -> list[MicroBatch]:
        """Splits an experience into the micro-batches of one pass, with everything that the loss needs."""
        args, size = self.args, self.args.per_device_train_batch_size
        cut = split_experience(experience, size, args.mask_truncated_completions, self.accelerator.device)
        correct_rollout(cut, self.model_wrapped, self.policy_logps, args, experience.metrics)
        if self.reference is not None:
            with experience.metrics.phase("reference"):
                self._add_reference_logps(cut)
        return cut

    def loss_denominator(self, micro_batches: list[MicroBatch]) -> Tensor:
        """The contribution of these micro-batches to the divisor of the loss of the optimizer step."""
        how, width = self.args.loss_aggregation, self.args.max_completion_length
        counts = [loss_denominator(batch.loss_mask, how, width) for batch in micro_batches if len(batch)]
        return sum(counts, start=torch.zeros((), dtype=torch.long, device=self.accelerator.device))

    @abstractmethod
    def loss(self, model: nn.Module, batch: MicroBatch, denominator: Tensor, metrics: Metrics) -> Tensor:
        """The contribution of a micro-batch to the loss of the whole optimizer step."""

    def parts(self, batch: MicroBatch) -> list[MicroBatch]:
        """Splits a micro-batch into parts that are computed one at a time."""
        budget = self.args.max_tokens_per_microbatch
        parts = split_by_tokens(batch, budget)
        if budget is None or not (self.is_deepspeed_enabled or self.is_fsdp_enabled):
            return parts
        # Every pass needs all processes there, so all must have the same number of parts.
        count = self.accelerator.gather(torch.tensor(len(parts), device=self.accelerator.device)).max().item()
        return parts if len(parts) == count else split_by_tokens(batch, budget, at_least=count)

    def learns(self, batch: MicroBatch) -> list[bool]:
        """Whether the loss depends on a completion at all; others are not computed in the update."""
        if batch.scored is None or self.router_loss_coefficient > 0:  # a router balances all tokens
            return [True] * len(batch)
        return [any(scored) for scored in batch.scored]

    def work(self, batch: MicroBatch) -> MicroBatch | None:
        """The completions that the loss depends on. Every process has at least one, for the exchange of gradients."""
        if self.is_deepspeed_enabled or self.is_fsdp_enabled:  # where all need equally many passes
            return batch
        rows = [row for row, learns in enumerate(self.learns(batch)) if learns]
        if not rows and self.accelerator.num_processes == 1:
            return None
        rows = rows or [min(range(len(batch)), key=lambda row: len(batch.completion_ids[row]))]
        return batch if len(rows) == len(batch) else part_of(batch, rows)

    def skips_update(self) -> bool:
        """Whether to skip the next update; called once per step, in all processes."""
        return self._step_denominator.item() == 0  # read no earlier than here, where the update waits for the device

    def clip_in_deepspeed(self) -> None:
        """Clips gradients before DeepSpeed updates within the backward pass. Default: DeepSpeed clips them."""

    # Helpers for hooks

    def read_prompts(self, numbers: Sequence[int]) -> list[dict]:
        """Renders prompts of the train dataset."""
        with failing_together("reading the prompts"):
            return [self.train_dataset[number] for number in numbers]

    def new_experience(self, prompts: list[dict], draw: int = 0) -> Experience:
        """Returns an empty experience for the next training rollout.

        Args:
            prompts (`list[dict]`): Its prompts.
            draw (`int`): Number of the pass, if a rollout draws several times. The seed is a pure function of both.
        """
        seed = self.sampling_seed(self.rollouts_made, draw)
        step = self.state.global_step
        return Experience(prompts, self.args.num_generations, seed, step, metrics=self.metrics, draw=draw)

    def sampling_seed(self, number: int, draw: int = 0) -> int:
        """The sampling seed of a rollout: a pure function of (seed, number of the rollout, process, pass)."""
        further = (draw,) if draw else ()
        sequence = np.random.SeedSequence((self.args.seed, number, self.args.process_index, *further))
        return int(sequence.generate_state(1)[0])

    def token_scores(self, model: nn.Module, batch: MicroBatch, **options: bool) -> TokenScores:
        """Log-probabilities of a micro-batch under a causal LM; see [`score_completions`] for the options."""
        return score_completions(model, batch, self.args.temperature, self.layout, **options)

    def score_in_parts(self, batch: MicroBatch, score: Callable[[MicroBatch], Tensor]) -> Tensor:
        """Computes one number per token of a batch (such as logps), in the same parts as the update."""
        return score_in_parts(batch, self.parts, score)

    def policy_logps(self, batch: MicroBatch) -> Tensor:
        """Log-probabilities under the current policy, `(N, C)`."""
        return self.score_in_parts(batch, lambda part: self.token_scores(self.model_wrapped, part).logps)

    @torch.no_grad()
    def _add_reference_logps(self, micro_batches: list[MicroBatch]) -> None:
        with self.reference.scoring(self.model_wrapped, self.accelerator) as model:
            for batch in micro_batches:
                batch.ref_logps = self.score_in_parts(batch, lambda part: self.token_scores(model, part).logps)

    def over_all(self, values: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
        """Computes on the values of all processes, in order of rank, and returns the results for this process.

        Args:
            values (`Tensor` of shape `(N, ...)`): Values of this process; every process has equally many.
            compute (`Callable`): Takes the values of all processes and returns one result per value.
        """
        own = len(values)
        start = own * self.accelerator.process_index
        return compute(self.accelerator.gather(values))[start : start + own]

    def router_loss(self, aux_loss: Tensor, share: float, metrics: Metrics) -> Tensor:
        """The balancing loss of a micro-batch or a part of it; all micro-batches of the step have the same weight."""
        metrics.add_mean("aux_loss", aux_loss.detach(), 1)
        parts = self.current_gradient_accumulation_steps * self.accelerator.num_processes
        return self.router_loss_coefficient * aux_loss * share / parts
