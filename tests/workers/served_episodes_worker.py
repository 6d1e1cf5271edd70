# SPDX-License-Identifier: Apache-2.0
"""What test_sglang_episodes_distributed.py runs in two processes: episodes on SGLang servers, their own for each."""

from pathlib import Path

import torch
from sessions import FixedSession
from tiny import EOS, make_policy
from torch import distributed as dist

from minimind_hf.rollout import SamplingParams, SGLangEngine

SAMPLING = SamplingParams(max_completion_length=60, temperature=0.8, eos_token_ids=(EOS,))
SESSIONS = [([5, 6, 7], [[11], [12]]), ([8, 9], [[13]]), ([5, 6, 7], []), ([30, 31, 32, 33], [[14], [15], [16]])]


class Failing(FixedSession):
    def observe(self, ids, finish_reason):
        raise LookupError("this tool knows no answer")


def main(folder: Path, urls: list[str], case: str) -> None:
    dist.init_process_group("gloo")
    rank, result = dist.get_rank(), {}
    own = {"all in one": [SESSIONS, []]}.get(case, [SESSIONS[:2], SESSIONS[2:]])[rank]
    kind = Failing if (case, rank) == ("failing", 1) else FixedSession
    engine = SGLangEngine(urls, sync_folder=folder / "sync", server_timeout=60)
    try:
        engine.sync_weights(make_policy(), 1)
        result["rollouts"] = engine.converse([kind(list(ids), answers) for ids, answers in own], SAMPLING)
        result["measured"] = engine.measured()["cached_share"]
    except Exception as error:
        result["error"] = f"{type(error).__name__}: {error}"
        raise
    finally:
        torch.save(result, folder / f"result_{rank}.pt")
    engine.close()
