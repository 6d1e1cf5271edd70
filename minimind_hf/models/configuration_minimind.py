# SPDX-License-Identifier: Apache-2.0
"""Configuration of MiniMind.

One config describes the dense model and the mixture of experts (`use_moe`). It reads transformers' keys
(`rope_parameters`) and those of MiniMind's own config.json (`rope_theta`, `rope_scaling`, `inference_rope_scaling`,
`dropout`, `flash_attn`, ...), and writes transformers' keys. Saved folders carry this file as remote code, so it
imports only transformers.
"""

import math
from dataclasses import field
from typing import Any, ClassVar

from transformers import PreTrainedConfig, Qwen3MoeConfig
from transformers.activations import ACT2FN
from transformers.utils import logging

logger = logging.get_logger(__name__)

YARN_ROPE_PARAMETERS = {
    "rope_type": "yarn",
    "factor": 16.0,
    "original_max_position_embeddings": 2048,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "attention_factor": 1.0,
}

# trl and others take these fields as the mark of a mixture of experts, so a dense config does not have them.
_ROUTER_FIELDS = ("router_aux_loss_coef", "output_router_logits")

# Keys of MiniMind releases whose experts are routed and shared separately: another architecture.
_OLD_MOE_KEYS = ("n_routed_experts", "n_shared_experts", "aux_loss_alpha", "scoring_func", "seq_aux")


def default_intermediate_size(hidden_size: int) -> int:
    """MiniMind's feed-forward width: `hidden_size * pi` rounded up to a multiple of 64."""
    return math.ceil(hidden_size * math.pi / 64) * 64


class MiniMindConfig(PreTrainedConfig):
    r"""
    Configuration of a MiniMind model. The defaults are those of the released dense model.

    Args:
        vocab_size (`int`, defaults to 6400): Size of the vocabulary.
        hidden_size (`int`, defaults to 768): Width of the residual stream.
        intermediate_size (`int`, *optional*): Width of the feed-forward. Unset: `ceil(hidden_size * pi / 64) * 64`.
        num_hidden_layers (`int`, defaults to 8): Number of decoder layers.
        num_attention_heads (`int`, defaults to 8): Number of query heads.
        num_key_value_heads (`int`, *optional*, defaults to 4): Number of key/value heads (GQA). `None`: as many as
            query heads.
        head_dim (`int`, *optional*): Width of a head. Unset: `hidden_size // num_attention_heads`.
        hidden_act (`str`, defaults to `"silu"`): Activation of the gated feed-forward.
        max_position_embeddings (`int`, defaults to 32768): Longest sequence for which the model is meant.
        initializer_range (`float`, defaults to 0.02): Standard deviation of the initial weights.
        rms_norm_eps (`float`, defaults to 1e-6): Epsilon of every RMSNorm.
        use_cache (`bool`, defaults to `True`): Whether the model returns its key/value cache.
        tie_word_embeddings (`bool`, defaults to `True`): Whether the output head is the embedding matrix.
        rope_parameters (`dict`, *optional*): transformers' RoPE parameters; theta is 1e6 unless given.
        attention_dropout (`float`, defaults to 0.0): Dropout on attention weights. MiniMind's key `dropout` sets it.
        use_moe (`bool`, defaults to `False`): Whether every feed-forward is a mixture of experts.
        num_experts (`int`, defaults to 4): Number of experts.
        num_experts_per_tok (`int`, defaults to 1): Experts per token (top-k).
        moe_intermediate_size (`int`, *optional*): Width of one expert. Unset: `intermediate_size`.
        norm_topk_prob (`bool`, defaults to `True`): Whether the weights of the chosen experts are renormalized to 1.
        router_aux_loss_coef (`float`, defaults to 5e-4): Coefficient of the router's load-balancing loss. A dense
            config does not have it.
        output_router_logits (`bool`, *optional*): Whether the causal LM returns router logits and auxiliary loss.
            Unset: it does while a mixture of experts trains, as in MiniMind. A dense config does not have it.
        classifier_dropout (`float`, defaults to 0.0): Dropout before the head of a token classifier. It is 0 because
            a critic must give the same value twice.
        inference_rope_scaling (`bool`, *optional*): MiniMind's switch for YaRN x16 from 2048 positions.

    Raises:
        ValueError: A value is out of range, or two values contradict each other.
    """

    model_type = "minimind"
    keys_to_ignore_at_inference = ["past_key_values", "cache"]
    attribute_map = {"num_local_experts": "num_experts"}
    default_theta = 1_000_000.0
    base_model_tp_plan = Qwen3MoeConfig.base_model_tp_plan
    base_model_ep_plan = Qwen3MoeConfig.base_model_ep_plan
    base_model_pp_plan = Qwen3MoeConfig.base_model_pp_plan

    # What Qwen3-MoE's modules need and MiniMind never changes.
    attention_bias: ClassVar[bool] = False
    sliding_window: ClassVar[None] = None
    decoder_sparse_step: ClassVar[int] = 1

    vocab_size: int = 6400
    hidden_size: int = 768
    intermediate_size: int | None = None
    num_hidden_layers: int = 8
    num_attention_heads: int = 8
    num_key_value_heads: int | None = 4
    head_dim: int | None = None
    hidden_act: str = "silu"
    max_position_embeddings: int = 32768
    initializer_range: float = 0.02
    rms_norm_eps: float = 1e-6
    use_cache: bool = True
    tie_word_embeddings: bool = True
    rope_parameters: dict | None = None
    attention_dropout: float = 0.0
    use_moe: bool = False
    num_experts: int = 4
    num_experts_per_tok: int = 1
    moe_intermediate_size: int | None = None
    norm_topk_prob: bool = True
    # With factories, because a plain default would remain readable on the class, also for a dense config.
    router_aux_loss_coef: float = field(default_factory=lambda: 5e-4)
    output_router_logits: bool | None = field(default_factory=lambda: None)
    classifier_dropout: float = 0.0
    pad_token_id: int | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2

    def __post_init__(self, **kwargs: Any):
        _refuse_old_layout(kwargs)
        kwargs.pop("flash_attn", None)  # in transformers `attn_implementation` chooses the kernel
        self._read_dropout(kwargs.pop("dropout", None))
        self._check_sizes()
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads
        if self.head_dim is None:
            self.head_dim = self._default_head_dim()
        if self.intermediate_size is None:
            self.intermediate_size = default_intermediate_size(self.hidden_size)
        if self.moe_intermediate_size is None:
            self.moe_intermediate_size = self.intermediate_size
        self._check_heads()
        self._check_experts()
        self._read_rope(kwargs)
        super().__post_init__(**kwargs)
        if not self.use_moe:
            for name in _ROUTER_FIELDS:
                delattr(self, name)

    @property
    def mlp_only_layers(self) -> list[int]:
        """Layers with a plain feed-forward: all, or none with `use_moe`."""
        return [] if self.use_moe else list(range(self.num_hidden_layers))

    @property
    def inference_rope_scaling(self) -> bool:
        """Whether YaRN scales RoPE. Setting it switches MiniMind's YaRN x16 on or off."""
        return self.rope_parameters["rope_type"] == "yarn"

    @inference_rope_scaling.setter
    def inference_rope_scaling(self, enabled: bool):
        theta = self.rope_parameters["rope_theta"]
        yarn = enabled and self._is_stretched(YARN_ROPE_PARAMETERS)
        self.rope_parameters = {**(YARN_ROPE_PARAMETERS if yarn else {"rope_type": "default"}), "rope_theta": theta}

    def _read_dropout(self, dropout: float | None):
        if dropout is not None:
            self.attention_dropout = dropout
        if not 0 <= self.attention_dropout < 1:
            raise ValueError(f"dropout is {self.attention_dropout}, but it must be a probability: 0 <= dropout < 1.")
        if dropout:
            logger.warning_once(
                f"dropout={dropout} applies only to attention weights; MiniMind's own script also drops embeddings "
                "and feed-forward outputs during training. Evaluation is the same."
            )

    def _read_rope(self, kwargs: dict[str, Any]):
        """Merges MiniMind's `rope_theta`, `rope_scaling` and `inference_rope_scaling` into `rope_parameters`."""
        legacy = kwargs.pop("rope_scaling", None)
        rope = dict(legacy or self.rope_parameters or {})
        rope["rope_type"] = rope.pop("type", None) or rope.get("rope_type", "default")
        rope.setdefault("rope_theta", kwargs.pop("rope_theta", self.default_theta))
        enabled = kwargs.pop("inference_rope_scaling", None)
        if enabled is False and rope["rope_type"] == "yarn":
            raise ValueError(
                f"inference_rope_scaling is False, but rope_parameters ask for YaRN ({rope}). Remove one of the two."
            )
        if enabled:
            rope = {**YARN_ROPE_PARAMETERS, **rope, "rope_type": "yarn"}
            if not self._is_stretched(rope):
                rope = {"rope_type": "default", "rope_theta": rope["rope_theta"]}
        if not rope["rope_theta"] or rope["rope_theta"] <= 0:
            raise ValueError(f"rope_theta is {rope['rope_theta']}, but it must be positive (MiniMind: 1e6).")
        self.rope_parameters = rope

    def _is_stretched(self, rope: dict[str, Any]) -> bool:
        """MiniMind scales frequencies only if the model is meant for more positions than it was pretrained with."""
        return self.max_position_embeddings > rope["original_max_position_embeddings"]

    def _check_sizes(self):
        names = ["vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings"]
        optional = ["intermediate_size", "num_key_value_heads", "head_dim", "moe_intermediate_size"]
        names += [name for name in optional if getattr(self, name) is not None]
        for name in names:
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} is {value!r}, but it must be a positive integer.")
        if self.hidden_act not in ACT2FN:
            raise ValueError(
                f"hidden_act is {self.hidden_act!r}, which transformers does not know. Choose one of its activations, "
                "e.g. 'silu'."
            )
        if not self.rms_norm_eps > 0:
            raise ValueError(f"rms_norm_eps is {self.rms_norm_eps!r}, but it must be positive, e.g. 1e-6.")

    def _default_head_dim(self) -> int:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size={self.hidden_size} is not a multiple of num_attention_heads={self.num_attention_heads}. "
                "Change one of them or set head_dim."
            )
        return self.hidden_size // self.num_attention_heads

    def _check_heads(self):
        if self.head_dim % 2:
            raise ValueError(
                f"head_dim is {self.head_dim} (hidden_size={self.hidden_size}, "
                f"num_attention_heads={self.num_attention_heads}), but RoPE rotates pairs, so it must be even. Set "
                "head_dim or other heads."
            )
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads={self.num_attention_heads} is not a multiple of num_key_value_heads="
                f"{self.num_key_value_heads}. Change one of them: all key/value heads serve as many query heads."
            )

    def _check_experts(self):
        if not self.use_moe:
            return
        for name in ("num_experts", "num_experts_per_tok"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} is {value!r}, but it must be a positive integer.")
        if self.num_experts_per_tok > self.num_experts:
            raise ValueError(
                f"num_experts_per_tok={self.num_experts_per_tok} is larger than num_experts={self.num_experts}. Lower "
                "it: a token cannot use more experts than there are."
            )
        if self.router_aux_loss_coef < 0:
            raise ValueError(
                f"router_aux_loss_coef is {self.router_aux_loss_coef}, but it must not be negative. Set 0 to switch "
                "the loss off."
            )


def _refuse_old_layout(kwargs: dict[str, Any]):
    found = [name for name in _OLD_MOE_KEYS if name in kwargs]
    if found:
        raise ValueError(
            f"The config has {', '.join(found)}: keys of an older MiniMind with other experts and attention. Use a "
            "checkpoint of a release with use_moe, num_experts and num_experts_per_tok."
        )


MiniMindConfig.register_for_auto_class()  # saved folders carry this file

__all__ = ["MiniMindConfig"]
