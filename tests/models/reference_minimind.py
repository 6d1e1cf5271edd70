# SPDX-License-Identifier: Apache-2.0
"""A second, independent MiniMind: a function of a dictionary of tensors, loops where loops are clearest.

It shares no code with the package and none with transformers; the tests demand that both agree.
"""

import math

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return weight * x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps)


def inverse_frequencies(head_dim: int, theta: float, yarn: dict | None) -> torch.Tensor:
    """theta ** (-2i / d); YaRN divides the slow ones by `factor`, with a linear ramp in between."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    frequencies = theta**-exponents
    if yarn is None:
        return frequencies.float()

    def pair_of(rotations: float) -> float:
        wavelength_share = yarn["original_max_position_embeddings"] / (rotations * 2 * math.pi)
        return head_dim * math.log(wavelength_share) / (2 * math.log(theta))

    low = max(math.floor(pair_of(yarn["beta_fast"])), 0)
    high = min(math.ceil(pair_of(yarn["beta_slow"])), head_dim // 2 - 1)
    for pair in range(head_dim // 2):
        ramp = min(max((pair - low) / max(high - low, 0.001), 0.0), 1.0)
        frequencies[pair] *= (1 - ramp) + ramp / yarn["factor"]
    return frequencies.float()


def rotate(x: torch.Tensor, frequencies: torch.Tensor, scale: float) -> torch.Tensor:
    """Rotates pair (i, i + d/2) of every head at position p by p * frequency_i; x is (heads, seq, d)."""
    angles = torch.arange(x.shape[1], dtype=torch.float32)[:, None] * frequencies[None, :]
    cos, sin = angles.cos() * scale, angles.sin() * scale
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def attention(x, weights, prefix, shape, frequencies, real):
    length = x.shape[0]
    heads, kv_heads, head_dim, eps = shape
    q = (x @ weights[f"{prefix}.q_proj.weight"].T).view(length, heads, head_dim)
    k = (x @ weights[f"{prefix}.k_proj.weight"].T).view(length, kv_heads, head_dim)
    v = (x @ weights[f"{prefix}.v_proj.weight"].T).view(length, kv_heads, head_dim)
    q = rms_norm(q, weights[f"{prefix}.q_norm.weight"], eps).transpose(0, 1)
    k = rms_norm(k, weights[f"{prefix}.k_norm.weight"], eps).transpose(0, 1)
    q, k, v = rotate(q, *frequencies), rotate(k, *frequencies), v.transpose(0, 1)
    allowed = torch.ones(length, length, dtype=torch.bool).tril() & real[None, :]
    allowed |= torch.eye(length, dtype=torch.bool)  # a padded query must see something; nobody reads its result
    outputs = []
    for head in range(heads):
        group = head // (heads // kv_heads)
        scores = q[head] @ k[group].T / math.sqrt(head_dim)
        outputs.append(scores.masked_fill(~allowed, -torch.inf).softmax(-1) @ v[group])
    return torch.cat(outputs, dim=-1) @ weights[f"{prefix}.o_proj.weight"].T


def feed_forward(x, weights, prefix):
    gate, up = x @ weights[f"{prefix}.gate_proj.weight"].T, x @ weights[f"{prefix}.up_proj.weight"].T
    return (gate * gate.sigmoid() * up) @ weights[f"{prefix}.down_proj.weight"].T


def mixture(x, weights, prefix, top_k, renormalise):
    scores = (x @ weights[f"{prefix}.gate.weight"].T).softmax(-1)
    rows = []
    for token in range(x.shape[0]):
        chosen = scores[token].argsort(descending=True)[:top_k]
        share = scores[token][chosen]
        share = share / share.sum() if renormalise else share
        outputs = [feed_forward(x[token], weights, f"{prefix}.experts.{int(expert)}") for expert in chosen]
        rows.append(sum(weight * output for weight, output in zip(share, outputs, strict=True)))
    return torch.stack(rows), scores


def router_loss(scores: torch.Tensor, top_k: int) -> torch.Tensor:
    """One layer: num_experts * sum_e load_e * mean score_e over the rows of `scores`."""
    tokens, num_experts = scores.shape
    load = torch.zeros(num_experts)
    for row in scores:
        load[row.argsort(descending=True)[:top_k]] += 1 / tokens
    return num_experts * (load * scores.mean(0)).sum()


def reference_minimind(
    weights: dict[str, torch.Tensor],
    input_ids: torch.Tensor,
    *,
    layers: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    top_k: int = 0,
    renormalise: bool = True,
    yarn: dict | None = None,
    attention_mask: torch.Tensor | None = None,
    theta: float = 1e6,
    eps: float = 1e-6,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits `(batch, seq, vocab)` and the router loss summed over layers, over real tokens, without coefficient."""
    mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
    frequencies = inverse_frequencies(head_dim, theta, yarn), yarn["attention_factor"] if yarn else 1.0
    shape = heads, kv_heads, head_dim, eps
    logits, scores = [], [[] for _ in range(layers)]
    for ids, row_mask in zip(input_ids, mask.bool(), strict=True):
        x = weights["model.embed_tokens.weight"][ids]
        for index in range(layers):
            layer = f"model.layers.{index}"
            normed = rms_norm(x, weights[f"{layer}.input_layernorm.weight"], eps)
            x = x + attention(normed, weights, f"{layer}.self_attn", shape, frequencies, row_mask)
            normed = rms_norm(x, weights[f"{layer}.post_attention_layernorm.weight"], eps)
            if top_k:
                mixed, row_scores = mixture(normed, weights, f"{layer}.mlp", top_k, renormalise)
                scores[index].append(row_scores[row_mask])
                x = x + mixed
            else:
                x = x + feed_forward(normed, weights, f"{layer}.mlp")
        x = rms_norm(x, weights["model.norm.weight"], eps)
        logits.append(x @ weights.get("lm_head.weight", weights["model.embed_tokens.weight"]).T)
    aux = sum((router_loss(torch.cat(rows), top_k) for rows in scores if rows), start=torch.zeros(()))
    return torch.stack(logits), aux
