# SPDX-License-Identifier: Apache-2.0
"""Policy and critic as one model, so that both share one accelerate wrapper, one optimizer and one backward pass.

Every training pass goes through `forward`, so the wrapper (DDP, FSDP) sees both models in one pass. Rollouts and
saving use the two models directly. With a shared base, the critic's adapter is active only while the critic computes.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from peft import PeftModel
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel
from transformers.utils.peft_utils import find_adapter_config_file

from ...forward.introspection import unwrap
from ...forward.layouts import score_completions
from ...forward.logprobs import TokenScores
from ...forward.token_batch import TokenBatch
from ...forward.values import choose_values_layout, completion_values
from .adapters import CRITIC_ADAPTER, POLICY_ADAPTER, activate, adapters_off, belongs_to, recompute_contexts
from .critic import is_shared, load_critic_adapter, part_of, save_critic_adapter
from .weights import load_weights

CRITIC_FOLDER = "critic"


@dataclass
class ActorCriticOutput:
    """The results of one pass for the tokens of N completions.

    Args:
        scores ([`TokenScores`], *optional*): Log-probabilities and more from the policy.
        values (`Tensor` of shape `(N, C)`, *optional*): Values from the critic; arbitrary at padding.
    """

    scores: TokenScores | None = None
    values: Tensor | None = None


class ActorCritic(nn.Module):
    """Holds the policy and its critic.

    Args:
        policy (`PreTrainedModel` or `PeftModel`): A causal LM.
        critic (`PreTrainedModel`): A token classifier with one label, from [`load_critic`].
        layout (`str`): The layout of the policy, and of the critic if it supports it.
    """

    def __init__(self, policy: PreTrainedModel | PeftModel, critic: PreTrainedModel, layout: str):
        super().__init__()
        self.policy = policy
        self.critic = critic
        self.shares_base = is_shared(critic)
        self.layout = layout
        self.values_layout = choose_values_layout(layout, critic, attaches=not self.shares_base)
        blocks = {*(unwrap(policy)._no_split_modules or []), *(critic._no_split_modules or [])}
        self._no_split_modules = sorted(blocks)
        self.saves_memory = self.shares_base  # see `_values`
        self._checkpointing: dict = {}
        self._checkpointing_options: dict = {}

    def forward(
        self,
        batch: TokenBatch,
        temperature: float = 1.0,
        with_scores: bool = True,
        with_values: bool = True,
        with_entropy: bool = False,
        with_aux_loss: bool = False,
    ) -> ActorCriticOutput:
        """Computes log-probabilities by the policy, values by the critic, or both.

        Args:
            batch ([`TokenBatch`]): N completions and their prompts.
            temperature (`float`): The temperature at which the completions were sampled.
            with_scores (`bool`), with_values (`bool`): Whether to run the policy, and the critic.
            with_entropy (`bool`), with_aux_loss (`bool`): Additional outputs of the policy.

        Returns:
            [`ActorCriticOutput`]
        """
        output = ActorCriticOutput()
        if with_values:
            output.values = self._values(batch)
        if with_scores:
            output.scores = score_completions(
                self.policy, batch, temperature, self.layout, with_entropy, with_aux_loss
            )
        return output

    def _values(self, batch: TokenBatch) -> Tensor:
        lean = self.saves_memory and self.training and torch.is_grad_enabled() and not self.is_gradient_checkpointing
        if not lean:
            return completion_values(self.critic, batch, self.values_layout)
        # Runs that share the base are short of memory, so the critic's activations are not kept next to the policy's
        # but recomputed in the backward pass.
        return checkpoint(completion_values, self.critic, batch, self.values_layout, use_reentrant=False)

    # The interface that accelerate, peft, trl and the Trainer expect of a model

    @property
    def config(self) -> PreTrainedConfig:
        return self.policy.config

    @property
    def generation_config(self) -> GenerationConfig:
        return unwrap(self.policy).generation_config

    @property
    def is_gradient_checkpointing(self) -> bool:
        return unwrap(self.policy).is_activation_checkpointing

    def activation_checkpointing_enable(self, activation_checkpointing_kwargs: dict | None = None, **options) -> None:
        """As in transformers; without arguments, those of the last call apply.

        Raises:
            ValueError: If reentrant checkpointing is requested on a shared base.
        """
        if activation_checkpointing_kwargs or options or not self._checkpointing:
            self._checkpointing = {**(activation_checkpointing_kwargs or {"use_reentrant": False})}
            self._checkpointing_options = options
        kwargs, options = dict(self._checkpointing), self._checkpointing_options
        if self.shares_base:
            if kwargs.get("use_reentrant", False):
                raise ValueError(
                    'gradient_checkpointing_kwargs={"use_reentrant": True} recomputes layers without telling policy '
                    "and critic apart, which share a base. Set it to False, or share_critic_base=False."
                )
            kwargs["context_fn"] = partial(recompute_contexts, self.policy)
        unwrap(self.policy).activation_checkpointing_enable(kwargs, **options)
        if not self.shares_base:
            self.critic.activation_checkpointing_enable(kwargs, **options)

    def activation_checkpointing_disable(self) -> None:
        unwrap(self.policy).activation_checkpointing_disable()
        if not self.shares_base:
            self.critic.activation_checkpointing_disable()

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: dict | None = None, **options) -> None:
        self.activation_checkpointing_enable(gradient_checkpointing_kwargs, **options)

    def gradient_checkpointing_disable(self) -> None:
        self.activation_checkpointing_disable()

    @property
    def active_adapter(self) -> str:
        return self.policy.active_adapter

    def set_adapter(self, name: str) -> None:
        activate(self.policy, name)

    def disable_adapter(self) -> AbstractContextManager:
        return adapters_off(self.policy)

    def num_parameters(self, exclude_embeddings: bool = False) -> int:
        models = [unwrap(self.policy)] if self.shares_base else [unwrap(self.policy), self.critic]
        return sum(model.num_parameters(exclude_embeddings=exclude_embeddings) for model in models)

    # Its parameters, by model

    def parameters_by_model(self) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """Returns the trainable parameters of the policy and of the critic, including those on a shared base."""
        critic = [parameter for parameter in self.critic.parameters() if parameter.requires_grad]
        policy = []
        for name, parameter in self.policy.named_parameters():
            if parameter.requires_grad:
                owner = critic if self.shares_base and belongs_to(name, CRITIC_ADAPTER) else policy
                owner.append(parameter)
        return policy, critic

    # Folders

    def save_pretrained(
        self, folder: str | Path, weights: dict[str, Tensor] | None = None, with_critic: bool = True
    ) -> None:
        """Saves the policy as an ordinary model or adapter, and the critic as another in `critic/`.

        Args:
            folder (`str` or `Path`): Folder for the policy.
            weights (`dict[str, Tensor]`, *optional*): Gathered weights, if the modules hold shards.
            with_critic (`bool`): Whether to save the critic too.
        """
        folder = Path(folder)
        only_policy = {"selected_adapters": [POLICY_ADAPTER]} if isinstance(self.policy, PeftModel) else {}
        self.policy.save_pretrained(folder, state_dict=part_of(weights, "policy."), **only_policy)
        if not with_critic:
            return
        if self.shares_base:
            save_critic_adapter(self.policy, self.critic, folder / CRITIC_FOLDER, weights)
        else:
            self.critic.save_pretrained(folder / CRITIC_FOLDER, state_dict=part_of(weights, "critic."))

    def load_saved(self, folder: str | Path) -> None:
        """Loads what [`~ActorCritic.save_pretrained`] saved.

        Raises:
            FileNotFoundError: If the folder holds no critic.
            ValueError: If it holds different models.
        """
        critic_folder = Path(folder) / CRITIC_FOLDER
        if not critic_folder.is_dir():
            raise FileNotFoundError(
                f"{critic_folder} is missing, so the critic cannot continue where it stopped. Resume from a "
                "checkpoint of a PPO run, or start from this folder as a model (--model_name_or_path) with a new "
                "critic."
            )
        is_adapter = find_adapter_config_file(str(critic_folder)) is not None
        if is_adapter != self.shares_base:
            saved, wanted = ("an adapter", "a whole model") if is_adapter else ("a whole model", "an adapter")
            raise ValueError(
                f"{critic_folder} holds the critic as {saved}, and this run's critic is {wanted}. Set "
                f"share_critic_base={is_adapter} as in the run that wrote it (with the same peft_config)."
            )
        load_weights(self.policy, folder)
        if self.shares_base:
            load_critic_adapter(self.policy, self.critic, critic_folder)
        else:
            load_weights(self.critic, critic_folder)


def has_dropout(model: nn.Module) -> bool:
    """Whether two passes over the same tokens can differ in training mode."""
    modules = [module for module in model.modules() if not isinstance(module, nn.Dropout)]
    rates = [module.p for module in model.modules() if isinstance(module, nn.Dropout)]
    rates += [value for module in modules for name, value in vars(module).items() if "dropout" in name]
    return any(isinstance(rate, float) and rate > 0 for rate in rates)
