# SPDX-License-Identifier: Apache-2.0
"""A model's weights in the form that the lean decoder uses: joined, packed, in the rollout dtype.

Everything that scales the input of a linear layer is multiplied into its weights: the weights of RMS norms, and the
square root of the width, which turns a root mean square into a vector's length. What remains of a norm is a division
by the length. Likewise, the scaling of attention scores is in the weights of queries.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...forward.introspection import unwrap
from .fast_support import linear_weight
from .packed_linear import PackedLinear, Packer


@dataclass
class Norm:
    """Divides vectors by their length: an RMS norm without its weights.

    Attributes:
        floor (`Tensor`, a float32 scalar): The square root of width times epsilon.
    """

    floor: Tensor

    def __call__(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        length = torch.hypot(torch.linalg.vector_norm(x, dim=-1, keepdim=True), self.floor)
        return torch.div(x, length, out=out)


@dataclass
class HeadNorm:
    """The norms of queries and keys, for all heads of both at once.

    Attributes:
        weight (`Tensor` of shape `(query heads + key heads, head_dim)`): float32; heads in the order of `Layer.qkv`.
    """

    norm: Norm
    weight: Tensor

    def __call__(self, heads: Tensor, out: Tensor) -> Tensor:
        return self.norm(heads, out).mul_(self.weight)


@dataclass
class MLP:
    """One product for gate and up, because a call of oneDNN costs as much as activating and multiplying a few rows."""

    gate_up: PackedLinear
    down: PackedLinear

    def __call__(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).view(len(x), 2, -1).unbind(1)
        return self.down(F.silu(gate).mul_(up))


def _looks_are_free(x: Tensor) -> bool:
    return x.device.type == "cpu"


@dataclass
class Experts:
    """A mixture of experts: softmax over all, then the `top_k` most likely, whose weights can be renormalized."""

    router: Tensor
    experts: list[MLP]
    top_k: int
    renormalise: bool

    def __call__(self, x: Tensor) -> Tensor:
        scores = F.linear(x, self.router).softmax(dim=-1, dtype=torch.float32)
        weights, chosen = scores.topk(self.top_k, dim=-1)
        if self.renormalise:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        return self._chosen(x, weights, chosen) if _looks_are_free(x) else self._all(x, weights, chosen)

    def _chosen(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """Computes the rows of each expert."""
        mixed = torch.zeros_like(x)
        for number in chosen.unique().tolist():
            rows, rank = (chosen == number).nonzero(as_tuple=True)
            output = self.experts[number](x[rows]) * weights[rows, rank, None].to(x.dtype)
            mixed.index_add_(0, rows, output)
        return mixed

    def _all(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """Computes all rows by every expert, so that nobody waits to hear which rows are whose."""
        mixed = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            mixed += expert(x) * torch.where(chosen == number, weights, 0.0).sum(dim=1, keepdim=True).to(x.dtype)
        return mixed


@dataclass
class Layer:
    """One decoder layer.

    Attributes:
        qkv (`PackedLinear`): For each key head its query heads and the key head itself; then all value heads. See
            [`paired`] for the order inside query and key heads.
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

    @property
    def device(self) -> torch.device:
        return self.embedding.device


def pack(model: nn.Module, dtype: torch.dtype | None = None) -> FastWeights:
    """Copies the weights of a supported model (see [`why_not_fast`]) and does not change the model.

    Args:
        dtype (`torch.dtype`, *optional*): The dtype to compute in. Unset: the dtype of the model.
    """
    model = unwrap(model)
    dtype = dtype or model.lm_head.weight.dtype
    packer = Packer(dtype)
    return FastWeights(
        dtype=dtype,
        embedding=model.model.embed_tokens.weight.detach(),
        layers=[_pack_layer(layer, packer) for layer in model.model.layers],
        norm=_norm(model.model.norm),
        head=_pack_linear(packer, model.lm_head, _scale(model.model.norm)),
        rotary=model.model.rotary_emb,
        num_heads=model.config.num_attention_heads,
        num_kv_heads=model.config.num_key_value_heads,
        head_dim=model.model.layers[0].self_attn.head_dim,
    )


def paired(head_dim: int) -> Tensor:
    """The order of a head's dimensions in which the two that RoPE rotates together are side by side.

    transformers rotates dimension `i` with `i + head_dim / 2`. Side by side they are a complex number, and a rotation
    is one multiplication. Queries and keys in the same order have the same products.
    """
    return torch.arange(head_dim).view(2, -1).t().flatten()


def _pack_layer(layer: nn.Module, packer: Packer) -> Layer:
    has_experts = hasattr(layer.mlp, "experts")
    pack_mlp = _pack_experts if has_experts else _pack_mlp
    return Layer(
        attention_norm=_norm(layer.input_layernorm),
        qkv=_pack_qkv(layer.self_attn, packer, _scale(layer.input_layernorm)),
        head_norm=_head_norm(layer.self_attn) if hasattr(layer.self_attn, "q_norm") else None,
        output=_pack_linear(packer, layer.self_attn.o_proj),
        mlp_norm=_norm(layer.post_attention_layernorm),
        mlp=pack_mlp(layer.mlp, packer, _scale(layer.post_attention_layernorm)),
    )


def _norm(module: nn.Module) -> Norm:
    floor = math.sqrt(module.weight.shape[0] * module.variance_epsilon)
    return Norm(torch.tensor(floor, device=module.weight.device))


def _scale(module: nn.Module) -> Tensor:
    """The factor of a norm after the division by the length."""
    return module.weight.detach().float() * math.sqrt(module.weight.shape[0])


def _pack_linear(packer: Packer, module: nn.Module, scale: Tensor | None = None) -> PackedLinear:
    return packer.pack([linear_weight(module)], [module.bias], scale)


def _pack_qkv(attention: nn.Module, packer: Packer, scale: Tensor) -> PackedLinear:
    # A head norm would undo a scaling of the queries, so it is in the weight of that norm.
    scaling = 1.0 if hasattr(attention, "q_norm") else attention.scaling
    query, key, value = attention.q_proj, attention.k_proj, attention.v_proj
    weight = _join_heads(linear_weight(query) * scaling, linear_weight(key), attention.head_dim)
    bias = None
    if query.bias is not None:
        bias = _join_heads(query.bias * scaling, key.bias, attention.head_dim)
    return packer.pack([weight, linear_weight(value)], [bias, value.bias], scale)


def _join_heads(query: Tensor, key: Tensor, head_dim: int) -> Tensor:
    """Joins weights or biases of query and key heads in the order of `Layer.qkv`."""
    order = paired(head_dim)
    key = key.detach().unflatten(0, (-1, 1, head_dim))[:, :, order]
    query = query.detach().unflatten(0, (len(key), -1, head_dim))[:, :, order]
    return torch.cat([query, key], dim=1).flatten(0, 2)


def _head_norm(attention: nn.Module) -> HeadNorm:
    head_dim = attention.head_dim
    query, key = (
        _scale(norm).expand(linear.out_features // head_dim, -1).flatten()
        for norm, linear in ((attention.q_norm, attention.q_proj), (attention.k_norm, attention.k_proj))
    )
    weight = _join_heads(query * attention.scaling, key, head_dim).view(-1, head_dim)
    return HeadNorm(_norm(attention.q_norm), weight)


def _pack_mlp(mlp: nn.Module, packer: Packer, scale: Tensor) -> MLP:
    gate, up = mlp.gate_proj, mlp.up_proj
    return MLP(
        gate_up=packer.pack([linear_weight(gate), linear_weight(up)], [gate.bias, up.bias], scale),
        down=_pack_linear(packer, mlp.down_proj),
    )


def _pack_experts(block: nn.Module, packer: Packer, scale: Tensor) -> Experts:
    weights = zip(block.experts.gate_up_proj, block.experts.down_proj, strict=True)
    return Experts(
        router=(block.gate.weight.detach() * scale).to(packer.dtype),
        experts=[MLP(packer.pack([gate_up], scale=scale), packer.pack([down])) for gate_up, down in weights],
        top_k=block.gate.top_k,
        renormalise=block.gate.norm_topk_prob,
    )
