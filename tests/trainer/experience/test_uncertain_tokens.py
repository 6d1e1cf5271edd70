# SPDX-License-Identifier: Apache-2.0
"""Which tokens have the highest entropies, when several processes have unequally many."""

import pytest
import torch


@pytest.fixture
def uncertain(make_trainer, monkeypatch):
    """Chooses among the entropies of this process, while another one has those given."""

    def choose(entropy: torch.Tensor, elsewhere: torch.Tensor, quantile: float) -> torch.Tensor:
        trainer = make_trainer(top_entropy_quantile=quantile)
        accelerator = trainer.accelerator

        def pad(tensor, dim=0, pad_index=0, pad_first=False):
            longest = max(len(entropy), len(elsewhere))
            return torch.cat([tensor, tensor.new_full((longest - len(tensor),), pad_index)])

        monkeypatch.setattr(type(accelerator), "num_processes", 2)
        padding = []
        monkeypatch.setattr(
            accelerator,
            "pad_across_processes",
            lambda tensor, pad_index: padding.append(pad_index) or pad(tensor, pad_index=pad_index),
        )
        monkeypatch.setattr(accelerator, "gather", lambda own: torch.cat([own, pad(elsewhere, pad_index=padding[0])]))
        return trainer._uncertain_tokens(entropy[None], torch.ones_like(entropy)[None])[0].bool()

    return choose


def test_an_entropy_of_zero_or_of_a_rounding_error_below_counts(uncertain):
    own = torch.tensor([-1e-3, 0.0, -1e-6, 2.0])
    elsewhere = torch.tensor([0.0, 3.0])
    assert uncertain(own, elsewhere, 0.35).tolist() == [False, False, False, True]  # 2 of 6, and 3.0 is the other
    assert uncertain(own, elsewhere, 0.8).sum() == 3  # 4.8 of 6 at the least, padding not among them
