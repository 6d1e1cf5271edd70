# SPDX-License-Identifier: Apache-2.0
"""The choices of a prompt depend on (seed, epoch, index) and on nothing else."""

import sys

import pytest
from launching import Running

from minimind_hf.data import choices
from minimind_hf.data.choices import DEFAULT_SYSTEM_PROMPTS, PromptChoices, prompt_choices

# Computed apart: blake2b(b"0/0/0", digest_size=24, person=b"minimind-prompt"), three little-endian 64-bit words,
# each shifted right by 11 and divided by 2**53. They pin the draws: changing them would break resumed runs.
PINNED = {
    (0, 0, 0): (0.7814317613191625, 0.8521953667495686, 0.742596741232677),
    (7, 2, 31): (0.41588713013229706, 0.817347109150881, 0.8349661042904369),
}


@pytest.mark.parametrize("key", PINNED)
def test_draws_stay_what_they_are(key):
    assert tuple(prompt_choices(*key)) == PINNED[key]


def test_same_key_same_choice_in_any_order():
    keys = [(seed, epoch, index) for seed in range(2) for epoch in range(2) for index in range(5)]
    forward = {key: prompt_choices(*key) for key in keys}
    backward = {key: prompt_choices(*key) for key in reversed(keys)}
    assert forward == backward
    assert len(set(forward.values())) == len(keys)


def test_no_key_is_confused_with_another():
    assert prompt_choices(1, 11, 1) != prompt_choices(11, 1, 1) != prompt_choices(1, 1, 11)


@pytest.mark.parametrize("salt", ["0", "1"])
def test_another_process_with_another_hash_salt_draws_the_same(salt):
    # The module alone: its package imports much else
    code = f"import runpy; print(*map(repr, runpy.run_path({choices.__file__!r})['prompt_choices'](7, 2, 31)))"
    output = Running([sys.executable, "-c", code], {"PYTHONHASHSEED": salt}).finish().stdout
    assert tuple(map(float, output.split())) == prompt_choices(7, 2, 31)


def test_draws_are_uniform_and_independent():
    draws = [prompt_choices(0, 0, index) for index in range(4000)]
    for name in PromptChoices._fields:
        share = sum(getattr(draw, name) < 0.9 for draw in draws) / len(draws)
        # Standard deviation sqrt(0.9 * 0.1 / 4000) = 0.0047; the draws are fixed, so this can never flicker.
        assert abs(share - 0.9) < 0.015
    both = sum(draw.thinking < 0.5 and draw.system < 0.5 for draw in draws) / len(draws)
    assert abs(both - 0.25) < 0.025


def test_pick_reaches_every_option_and_no_other():
    options = ["a", "b", "c"]
    picks = [PromptChoices(0.0, 0.0, draw).pick(options) for draw in (0.0, 0.34, 0.67, 1 - 2**-53)]
    assert picks == ["a", "b", "c", "c"]


def test_built_in_system_prompts_are_in_both_languages():
    assert any(prompt.isascii() for prompt in DEFAULT_SYSTEM_PROMPTS)
    assert any("。" in prompt for prompt in DEFAULT_SYSTEM_PROMPTS)
    assert len(set(DEFAULT_SYSTEM_PROMPTS)) == len(DEFAULT_SYSTEM_PROMPTS)
