# SPDX-License-Identifier: Apache-2.0
"""A model's weights in the form the lean decoder computes with: joined, packed, in the rollout dtype."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..forward.signature import unwrap
from .fast_support import linear_weight
from .packed_linear import PackedLinear, Packer


@dataclass
class Norm:
    """Root mean square norm over the last dimension."""

    weight: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


@dataclass
class HeadNorm:
    """The norms of queries and keys, over each head of both at once.

    Attributes:
        weight (`Tensor` of shape `(query heads + key heads, head_dim)`): float32.
    """

    weight: Tensor
    eps: float

    def __call__(self, heads: Tensor) -> Tensor:
        return F.rms_norm(heads, self.weight.shape[-1:], None, self.eps) * self.weight


@dataclass
class MLP:
    gate_up: PackedLinear
    down: PackedLinear

    def __call__(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate).mul_(up))


@dataclass
class Experts:
    """A mixture of experts: softmax over all, then the likeliest `top_k`, whose weights may be renormalised."""

    router: Tensor
    experts: list[MLP]
    top_k: int
    renormalise: bool

    def __call__(self, x: Tensor) -> Tensor:
        scores = F.linear(x, self.router).softmax(dim=-1, dtype=torch.float32)
        weights, chosen = scores.topk(self.top_k, dim=-1)
        if self.renormalise:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        mixed = torch.zeros_like(x)
        for number in chosen.unique().tolist():
            rows, rank = (chosen == number).nonzero(as_tuple=True)
            output = self.experts[number](x[rows]) * weights[rows, rank, None].to(x.dtype)
            mixed.index_add_(0, rows, output)
        return mixed


@dataclass
class Layer:
    """Attributes:
    qkv (`PackedLinear`): Query heads, key heads, value heads; see [`paired`] for the order inside a head.
    head_norm (`HeadNorm`, *optional*): Unset for architectures without q/k norm.
    """

    attention_norm: Norm
    qkv: PackedLinear
    head_norm: HeadNorm | None
    output: PackedLinear
    mlp_norm: Norm
    mlp: MLP | Experts


@dataclass
class FastWeights:
    dtype: torch.dtype
    embedding: Tensor
    layers: list[Layer]
    norm: Norm
    head: PackedLinear
    rotary: nn.Module
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scaling: float

    @property
    def device(self) -> torch.device:
        return self.embedding.device


def pack(model: nn.Module, dtype: torch.dtype | None = None) -> FastWeights:
    """Copies the weights of a supported model (see [`why_not_fast`]); the model itself is left alone.

    Args:
        dtype (`torch.dtype`, *optional*): What to compute in; unset: the model's own.
    """
    model = unwrap(model)
    dtype = dtype or model.lm_head.weight.dtype
    config, attention = model.config, model.model.layers[0].self_attn
    packer = Packer(dtype)
    return FastWeights(
        dtype=dtype,
        embedding=model.model.embed_tokens.weight.detach(),
        layers=[_pack_layer(layer, packer) for layer in model.model.layers],
        norm=_norm(model.model.norm, dtype),
        head=_pack_linears(packer, model.lm_head),
        rotary=model.model.rotary_emb,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=attention.head_dim,
        scaling=attention.scaling,
    )


def paired(head_dim: int) -> Tensor:
    """The order of a head's dimensions in which the two that RoPE turns together lie side by side.

    transformers turns dimension `i` with `i + head_dim / 2`. Side by side they are a complex number, and turning is
    one multiplication. Queries and keys in the same order have the same products.
    """
    return torch.arange(head_dim).view(2, -1).t().flatten()


def _pack_layer(layer: nn.Module, packer: Packer) -> Layer:
    attention = layer.self_attn
    order = paired(attention.head_dim)
    qkv = [attention.q_proj, attention.k_proj, attention.v_proj]
    weights = [linear_weight(module) for module in qkv]
    biases = [module.bias for module in qkv]
    for i in range(2):
        weights[i] = _reorder_heads(weights[i], order)
        biases[i] = _reorder_heads(biases[i], order) if biases[i] is not None else None
    return Layer(
        attention_norm=_norm(layer.input_layernorm, packer.dtype),
        qkv=packer.pack(weights, biases),
        head_norm=_head_norm(attention, order) if hasattr(attention, "q_norm") else None,
        output=_pack_linears(packer, attention.o_proj),
        mlp_norm=_norm(layer.post_attention_layernorm, packer.dtype),
        mlp=_pack_experts(layer.mlp, packer) if hasattr(layer.mlp, "experts") else _pack_mlp(layer.mlp, packer),
    )


def _reorder_heads(values: Tensor, order: Tensor) -> Tensor:
    """Reorders the dimensions inside each head, which are the first of a weight or bias."""
    return values.detach().unflatten(0, (-1, len(order)))[:, order].flatten(0, 1)


def _head_norm(attention: nn.Module, order: Tensor) -> HeadNorm:
    heads = [
        _reorder_heads(norm.weight, order).float().expand(linear.out_features // len(order), -1)
        for norm, linear in ((attention.q_norm, attention.q_proj), (attention.k_norm, attention.k_proj))
    ]
    return HeadNorm(torch.cat(heads), attention.q_norm.variance_epsilon)


def _norm(module: nn.Module, dtype: torch.dtype) -> Norm:
    return Norm(module.weight.detach().to(dtype), module.variance_epsilon)


def _pack_linears(packer: Packer, *modules: nn.Module) -> PackedLinear:
    return packer.pack([linear_weight(module) for module in modules], [module.bias for module in modules])


def _pack_mlp(mlp: nn.Module, packer: Packer) -> MLP:
    return MLP(_pack_linears(packer, mlp.gate_proj, mlp.up_proj), _pack_linears(packer, mlp.down_proj))


def _pack_experts(block: nn.Module, packer: Packer) -> Experts:
    weights = zip(block.experts.gate_up_proj, block.experts.down_proj, strict=True)
    return Experts(
        router=block.gate.weight.detach().to(packer.dtype),
        experts=[MLP(packer.pack([gate_up]), packer.pack([down])) for gate_up, down in weights],
        top_k=block.gate.top_k,
        renormalise=block.gate.norm_topk_prob,
    )
