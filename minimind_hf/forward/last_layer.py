# SPDX-License-Identifier: Apache-2.0
"""The last layer of a causal LM, computed only for the tokens whose output something reads.

Its keys and values are needed of every token, but queries, attention, output projection and feed-forward only of the
tokens that predict a scored one: no prompt but its last token, and no answer of a tool. The results are the same.
Only for decoder layers whose order of operations is known here, and which attend to the whole context; others compute
all tokens. Only where attention is computed in blocks.
"""

from functools import partial

from torch import Tensor, nn
from transformers.models.qwen3.modeling_qwen3 import rotate_half

from .introspection import unwrap
from .row_layout import RowLayout
from .shared_prompt import shared_prompt_attention

# Layers that are `x += self_attn(input_layernorm(x)); x += mlp(post_attention_layernorm(x))`, with rotary positions.
LAYERS = frozenset(["LlamaDecoderLayer", "Qwen2DecoderLayer", "Qwen3DecoderLayer", "Qwen3MoeDecoderLayer"])


def attach_last_layer(model: nn.Module) -> None:
    """Makes a last layer of a known kind take `read_tokens`; every other call works as before."""
    layer = _last_layer(model)
    if layer is not None and "forward" not in vars(layer):
        layer.forward = partial(_forward, layer)


def detach_last_layer(model: nn.Module) -> None:
    """Undoes [`attach_last_layer`]."""
    layer = _last_layer(model)
    if _is_attached(layer):
        del layer.forward


def takes_read_tokens(model: nn.Module) -> bool:
    """Whether the last layer of a model can leave out tokens that nothing reads."""
    layer = _last_layer(model)
    return _is_attached(layer) and not (layer.training and layer.self_attn.attention_dropout > 0)


def _is_attached(layer: nn.Module | None) -> bool:
    own = None if layer is None else vars(layer).get("forward")
    return isinstance(own, partial) and own.func is _forward


def _last_layer(model: nn.Module) -> nn.Module | None:
    layers = getattr(unwrap(model).base_model, "layers", None)
    layer = layers[-1] if isinstance(layers, nn.ModuleList) and len(layers) else None
    kind = type(layer)
    known = kind.__name__ in LAYERS and kind.__module__.startswith("transformers.models.")
    return layer if known and getattr(layer.self_attn, "sliding_window", None) is None else None


def _forward(layer: nn.Module, hidden_states: Tensor, *args, read_tokens: Tensor | None = None, **kwargs) -> Tensor:
    """The layer's output, of shape `(1, R, H)` if `read_tokens` of shape `(R,)` are given, else `(1, T, H)`."""
    if read_tokens is None:
        return type(layer).forward(layer, hidden_states, *args, **kwargs)
    normed = layer.input_layernorm(hidden_states)
    hidden_states = hidden_states.index_select(1, read_tokens) + _attend(
        layer.self_attn, normed, read_tokens, **kwargs
    )
    return hidden_states + layer.mlp(layer.post_attention_layernorm(hidden_states))


def _attend(
    attention: nn.Module,
    hidden_states: Tensor,
    read_tokens: Tensor,
    position_embeddings: tuple[Tensor, Tensor],
    shared_prompt: RowLayout,
    **kwargs,
) -> Tensor:
    def by_head(projection: nn.Module, states: Tensor) -> Tensor:
        return projection(states).unflatten(-1, (-1, attention.head_dim))

    query = by_head(attention.q_proj, hidden_states.index_select(1, read_tokens))
    key = by_head(attention.k_proj, hidden_states)
    if hasattr(attention, "q_norm"):
        query, key = attention.q_norm(query), attention.k_norm(key)
    cos, sin = position_embeddings
    query = _rotated(query.transpose(1, 2), cos[:, read_tokens], sin[:, read_tokens])
    key = _rotated(key.transpose(1, 2), cos, sin)
    value = by_head(attention.v_proj, hidden_states).transpose(1, 2)
    output, _ = shared_prompt_attention(
        attention,
        query,
        key,
        value,
        None,
        scaling=attention.scaling,
        shared_prompt=shared_prompt,
        only_read=True,
    )
    return attention.o_proj(output.flatten(-2))


def _rotated(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return states * cos[:, None] + rotate_half(states) * sin[:, None]
