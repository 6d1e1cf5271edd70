# SPDX-License-Identifier: Apache-2.0
"""`minimind-hf eval`: evaluates one or more models on held-out prompts, or in episodes. `evaluating.py` does it."""

import argparse
from collections.abc import Sequence

from ..evaluation.settings import EpisodeSettings, EvalSettings, thinking_ratio_of
from ..flags import ModelFlags, make_parser, refuse_unused, taken
from .eval_flags import EvalFlags


def main(arguments: Sequence[str]) -> int:
    options = _parsed(arguments)
    flags, of_models, episodes = (taken(each, options) for each in (EvalFlags, ModelFlags, EpisodeSettings))

    from .evaluating import check_models, evaluate  # imported here to keep --help fast

    check_models(options.models, of_models)
    if options.thinking_ratio is None:
        options.thinking_ratio = thinking_ratio_of(options.models)
    settings = taken(EvalSettings, options)
    if not flags.tools and flags.environment is None:
        refuse_unused(episodes, "--tools or --environment")
    evaluate(options.models, flags, settings, episodes, of_models)
    return 0


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = make_parser(
        "eval",
        "Lets models answer prompts, or play episodes with tools and environments, and rates the answers with "
        "rewards. Pass the model before and after training to measure the gain: the difference is taken prompt by "
        "prompt. The last line is one JSON object.",
        EvalFlags,
        EvalSettings,
        EpisodeSettings,
        ModelFlags,
    )
    parser.add_argument(
        "models", nargs="+", metavar="MODEL", help="model folders or Hub names; the others are compared with the first"
    )
    parser.set_defaults(thinking_ratio=None)
    return parser.parse_args(arguments)
