# SPDX-License-Identifier: Apache-2.0
"""MiniMind, dense and mixture of experts, built from transformers' Qwen3-MoE modules.

Only the differences are here: one architecture for both kinds of feed-forward, an embedding whose pad row is an
ordinary row, the router loss, which is summed over layers and covers real tokens only, and MiniMind's parameter names
in saved files. Saved folders carry this file as remote code, so it imports only torch and transformers.
"""

import torch
from torch import nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)
from transformers.modeling_layers import GenericForSequenceClassification, GenericForTokenClassification
from transformers.modeling_outputs import MoeCausalLMOutputWithPast
from transformers.modeling_utils import slice_logits_to_keep
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.models.qwen3_moe.modeling_qwen3_moe import (
    Qwen3MoeDecoderLayer,
    Qwen3MoeForCausalLM,
    Qwen3MoeModel,
    Qwen3MoePreTrainedModel,
    Qwen3MoeRMSNorm,
    Qwen3MoeRotaryEmbedding,
)
from transformers.utils import can_return_tuple, logging
from transformers.utils.deprecation import deprecate_kwarg

from .configuration_minimind import MiniMindConfig

logger = logging.get_logger(__name__)

AUTO_MAP = {
    "AutoConfig": "configuration_minimind.MiniMindConfig",
    "AutoModel": "modeling_minimind.MiniMindModel",
    "AutoModelForCausalLM": "modeling_minimind.MiniMindForCausalLM",
    "AutoModelForSequenceClassification": "modeling_minimind.MiniMindForSequenceClassification",
    "AutoModelForTokenClassification": "modeling_minimind.MiniMindForTokenClassification",
}


def register_expert_names() -> None:
    """Saves one tensor per expert, with MiniMind's names, although the modules hold all experts in one tensor.

    Idempotent, because the installed package and a remote copy of this file can both be imported. Called when a model
    is made and not on import, because transformers then builds its table of all architectures, which takes a third of
    a second.
    """
    if get_checkpoint_conversion_mapping(MiniMindConfig.model_type) is None:
        mapping = get_checkpoint_conversion_mapping("qwen2_moe")
        register_checkpoint_conversion_mapping(MiniMindConfig.model_type, mapping)


# transformers' Trainer looks here whether label smoothing has to shift the labels.
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.setdefault(MiniMindConfig.model_type, "MiniMindForCausalLM")


def router_load_balancing_loss(
    router_logits: tuple[torch.Tensor, ...], top_k: int, token_weights: torch.Tensor | None = None
) -> torch.Tensor:
    """Load-balancing loss of the routers, without its coefficient.

    Per layer `num_experts * sum_e load_e * mean_score_e`, summed over layers. `load_e` is the number of tokens sent to
    expert `e`, `mean_score_e` the sum of its softmax scores over all tokens, both divided by the number of tokens, so
    the loads of a layer add up to `top_k`. Follows equations (4) to (6) of Fedus et al., "Switch Transformers"
    (https://arxiv.org/abs/2101.03961), with several experts per token.

    Args:
        router_logits (`tuple` of `torch.Tensor` of shape `(tokens, num_experts)`): One entry per layer.
        top_k (`int`): Experts per token.
        token_weights (`torch.Tensor` with `tokens` elements, *optional*): How often each token counts: 0 for padding,
            1 for a token, more for a token that stands for several. Unset: every token counts once.

    Returns:
        `torch.Tensor`: A float32 scalar; 0 when no token counts.
    """
    weights = torch.ones_like(router_logits[0][:, :1], dtype=torch.float32)
    if token_weights is not None:
        weights = token_weights.reshape(-1, 1).to(weights)
    counted = weights > 0
    total_weight = weights.sum().clamp(min=torch.finfo(weights.dtype).tiny)
    loss = weights.new_zeros(())
    for logits in router_logits:
        # Rows that do not count are set to 0 before the softmax: a NaN there must reach neither loss nor gradient.
        here = logits.device
        scores = logits.float().masked_fill(~counted.to(here), 0.0).softmax(dim=-1)
        chosen = torch.zeros_like(scores).scatter_(-1, scores.topk(top_k, dim=-1).indices, 1.0)
        load = (chosen * weights.to(here)).sum(0) / total_weight.to(here)
        mean_score = (scores * weights.to(here)).sum(0) / total_weight.to(here)
        loss = loss + (scores.shape[-1] * (load * mean_score).sum()).to(loss.device)
    return loss


class MiniMindPreTrainedModel(Qwen3MoePreTrainedModel):
    config: MiniMindConfig

    @classmethod
    def _can_set_experts_implementation(cls) -> bool:
        # transformers looks for the dispatching decorator in this file, but it is with the experts in Qwen3-MoE's.
        return True

    def save_pretrained(self, save_directory, *args, **kwargs):
        """As in transformers. A folder that carries our code names every Auto class, not only that of this model."""
        if self.is_remote_code():
            self.config.auto_map = dict(AUTO_MAP)
        return super().save_pretrained(save_directory, *args, **kwargs)


class MiniMindModel(MiniMindPreTrainedModel, Qwen3MoeModel):
    def __init__(self, config: MiniMindConfig):
        register_expert_names()
        PreTrainedModel.__init__(self, config)
        self.padding_idx = config.pad_token_id
        self.vocab_size = config.vocab_size
        # No padding_idx: token 0 is an ordinary token of MiniMind. Its row is initialized and learns like any other.
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            [Qwen3MoeDecoderLayer(config, layer_idx) for layer_idx in range(config.num_hidden_layers)]
        )
        self.norm = Qwen3MoeRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.rotary_emb = Qwen3MoeRotaryEmbedding(config=config)
        self.gradient_checkpointing = False
        self.post_init()


class MiniMindForCausalLM(MiniMindPreTrainedModel, GenerationMixin):
    _tied_weights_keys = Qwen3MoeForCausalLM._tied_weights_keys
    _tp_plan = Qwen3MoeForCausalLM._tp_plan
    _pp_plan = Qwen3MoeForCausalLM._pp_plan
    _fsdp_plan = Qwen3MoeForCausalLM._fsdp_plan

    def __init__(self, config: MiniMindConfig):
        super().__init__(config)
        self.model = MiniMindModel(config)
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.LongTensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        use_cache: bool | None = None,
        output_router_logits: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        router_token_weights: torch.Tensor | None = None,
        **kwargs,
    ) -> MoeCausalLMOutputWithPast:
        r"""
        The arguments of every causal LM of transformers, and:

        Args:
            output_router_logits (`bool`, *optional*): Whether to return `router_logits` and `aux_loss`. Unset: as the
                config says; if that is unset too, a mixture of experts returns them while it trains.
            router_token_weights (`torch.Tensor` of shape `(batch, seq)`, *optional*): How often each token counts in
                `aux_loss`. Unset: the attention mask says which tokens are real.

        Returns:
            `MoeCausalLMOutputWithPast`: `aux_loss` is [`router_load_balancing_loss`], without the coefficient. `loss`
            is the language-model loss plus `config.router_aux_loss_coef * aux_loss`.
        """
        with_router = self._wants_router_logits(output_router_logits)
        if self.training and torch.is_grad_enabled():
            self._warn_of_blind_router()
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            cache=cache,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            output_router_logits=with_router,
            **kwargs,
        )
        hidden_states = outputs.last_hidden_state
        logits = self.lm_head(slice_logits_to_keep(hidden_states, logits_to_keep))

        aux_loss = None
        if with_router:
            weights = router_token_weights
            if weights is None:
                weights = _real_tokens(attention_mask, hidden_states.shape[1])
            aux_loss = router_load_balancing_loss(outputs.router_logits, self.config.num_experts_per_tok, weights)
            self._check_router_gradient(aux_loss, hidden_states)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, self.vocab_size, **kwargs)
            if aux_loss is not None:
                loss = loss + self.config.router_aux_loss_coef * aux_loss.to(loss.device)
        return MoeCausalLMOutputWithPast(
            loss=loss,
            aux_loss=aux_loss,
            logits=logits,
            cache=outputs.cache,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            router_logits=outputs.router_logits if with_router else None,
        )

    def _wants_router_logits(self, requested: bool | None) -> bool:
        if not self.config.use_moe:
            return False
        if requested is None:
            requested = self.config.output_router_logits
        if requested is None:
            requested = self.training and self.config.router_aux_loss_coef > 0
        return requested

    def _check_router_gradient(self, aux_loss: torch.Tensor, hidden_states: torch.Tensor):
        if self.is_activation_checkpointing and hidden_states.requires_grad and not aux_loss.requires_grad:
            raise ValueError(
                "Reentrant gradient checkpointing cuts the router's auxiliary loss off from its gradient. Set "
                'gradient_checkpointing_kwargs={"use_reentrant": False}, or output_router_logits=False to train '
                "without that loss."
            )

    def _warn_of_blind_router(self):
        config = self.config
        if config.use_moe and config.num_experts_per_tok == 1 and config.norm_topk_prob:
            logger.warning_once(
                "num_experts_per_tok=1 with norm_topk_prob=True: the weight of the one chosen expert is always 1, so "
                "the router gets no gradient from the language-model or policy loss, only from the auxiliary loss "
                f"(router_aux_loss_coef={config.router_aux_loss_coef}). To train the router, use "
                "num_experts_per_tok >= 2 or norm_topk_prob=False."
            )


def _real_tokens(attention_mask: torch.Tensor | None, query_length: int) -> torch.Tensor | None:
    """The mask of the tokens of this forward (the cached ones come first in `attention_mask`)."""
    if attention_mask is None:
        return None
    if not isinstance(attention_mask, torch.Tensor) or attention_mask.dim() != 2:
        kind = tuple(attention_mask.shape) if isinstance(attention_mask, torch.Tensor) else type(attention_mask)
        raise ValueError(
            f"The router loss needs to know which tokens are real, but an attention mask of {kind} does not say it. "
            "Pass router_token_weights of shape (batch, seq), or output_router_logits=False."
        )
    return attention_mask[:, -query_length:]


class _MiniMindClassifier(MiniMindPreTrainedModel):
    """Builds the trunk itself, because remote code can run where no Auto class knows MiniMind."""

    _keys_to_ignore_on_load_unexpected = [r"^lm_head\.weight$"]


class MiniMindForSequenceClassification(GenericForSequenceClassification, _MiniMindClassifier):
    def __init__(self, config: MiniMindConfig):
        PreTrainedModel.__init__(self, config)
        self.num_labels = config.num_labels
        self.model = MiniMindModel(config)
        self.score = nn.Linear(config.hidden_size, config.num_labels, bias=False)
        self.post_init()


class MiniMindForTokenClassification(GenericForTokenClassification, _MiniMindClassifier):
    def __init__(self, config: MiniMindConfig):
        PreTrainedModel.__init__(self, config)
        self.num_labels = config.num_labels
        self.model = MiniMindModel(config)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.score = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()


# Saved folders carry this file, for the Auto class of the model that was saved.
MiniMindModel.register_for_auto_class("AutoModel")
MiniMindForCausalLM.register_for_auto_class("AutoModelForCausalLM")
MiniMindForSequenceClassification.register_for_auto_class("AutoModelForSequenceClassification")
MiniMindForTokenClassification.register_for_auto_class("AutoModelForTokenClassification")

__all__ = [
    "MiniMindForCausalLM",
    "MiniMindForSequenceClassification",
    "MiniMindForTokenClassification",
    "MiniMindModel",
    "MiniMindPreTrainedModel",
    "router_load_balancing_loss",
]
