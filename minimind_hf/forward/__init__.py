# SPDX-License-Identifier: Apache-2.0
"""From token ids to log-probabilities and values, in several layouts.

`token_batch.py` defines the input. `padded` (in `logprobs.py`) is the plain layout and the reference;
`shared_prompt.py` computes each prompt once for all its completions: `row_layout.py` knows who attends to whom,
`flex.py` computes it on devices, `block_attention.py` on CPUs. `varlen.py` is the layout of FlashAttention, and
`layouts.py` chooses. `scoring_head.py` avoids holding all logits, `kept_tokens.py` holds what truncated sampling kept,
`lean.py` speeds up linear layers and norms on a CPU, `introspection.py` reads properties of a model. This package may
import `algorithms` and nothing else from the project. New layouts and kernels belong here, each with a test against
the plain version.
"""
