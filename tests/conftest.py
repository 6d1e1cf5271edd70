# SPDX-License-Identifier: Apache-2.0
"""Fixtures that every part of the suite may use.

What takes seconds to import is imported by those who use it: of several processes, the first only hands out tests.
"""

import gc
import os
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from minimind_hf import GRPOConfig, GRPOTrainer, MiniMindForCausalLM

os.environ["LC_ALL"] = "C.UTF-8"  # runs and reports speak the language of the locale; tests read English

SEVERAL_PROCESSES = {
    "test_agents_distributed.py",
    "test_agreement.py",
    "test_distill_distributed.py",
    "test_dynamic_sampling.py",
    "test_faults.py",
    "test_kills.py",
    "test_leaving.py",
    "test_modes.py",
    "test_ppo_distributed.py",
    "test_refilling.py",
    "test_resharding.py",
    "test_rollout_servers_distributed.py",
    "test_sglang_episodes_distributed.py",
    "test_training_streams.py",
}
GOLDEN = Path(__file__).resolve().parents[2] / "shared" / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slowest", type=int, default=0, metavar="N", help="print the N slowest tests as a table")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What needs a device is skipped without one. What takes longest comes first, so that no worker is left alone with
    it at the end."""
    import torch

    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="there is no CUDA device"))
    items.sort(key=lambda item: item.path.name not in SEVERAL_PROCESSES and not item.get_closest_marker("slow"))


def pytest_collection_finish(session: pytest.Session) -> None:
    forget_what_is_imported()


def forget_what_is_imported() -> None:
    """Every run of a trainer collects garbage, and would look at all modules' objects again: half of a tiny run."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def imports_are_no_garbage() -> Iterator[None]:
    """Nor are those that the tests of a file have added."""
    yield
    forget_what_is_imported()


@pytest.fixture(scope="session", autouse=True)
def packages_are_looked_up_once() -> None:
    """accelerate asks a dozen times in a tiny run what is installed, and reads a package's description each time."""
    from accelerate.utils import imports

    imports._is_package_available = cache(imports._is_package_available)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log):
    """Where tests run side by side, a file stays with one worker, as what its fixtures have made does. Files whose
    tests start several processes stay with the same one, so that no two of them compete for the cores."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return "several processes" if Path(file).name in SEVERAL_PROCESSES else file

    return Scheduling(config, log)


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    count = config.getoption("slowest")
    if not count:
        return
    seconds: Counter[str] = Counter()
    for report in chain.from_iterable(terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport):  # one each for the setup, the test and the teardown
            seconds[report.nodeid] += report.duration
    lines = [f"| {duration:.0f} | `{test}` |" for test, duration in seconds.most_common(count)]
    terminalreporter.write_line("\n".join(["", "| Seconds | Test |", "|---:|---|", *lines]))


@pytest.fixture(scope="session", autouse=True)
def kernels(tmp_path_factory) -> None:
    """Kernels are compiled below a folder of their own: in the user's cache, the lock of a compilation that was killed
    would stop every later one."""
    os.environ["TORCH_EXTENSIONS_DIR"] = str(tmp_path_factory.mktemp("kernels"))


@pytest.fixture
def golden_dir() -> Path:
    """The folder of shared reference values; the test is skipped where it does not exist."""
    if not GOLDEN.is_dir():
        pytest.skip(f"no reference values at {GOLDEN}")
    return GOLDEN


@pytest.fixture(scope="session")
def servers(tmp_path_factory) -> Iterator:
    """SGLang servers in processes of their own, see sglang_process.py; the same ones for all tests."""
    from sglang_process import SharedServers

    shared = SharedServers(tmp_path_factory.mktemp("servers"))
    yield shared
    shared.kill()


@pytest.fixture
def tiny_minimind() -> "Callable[..., MiniMindForCausalLM]":
    """Builds a small MiniMind in float32 and evaluation mode; keyword arguments go to its config.

    The initial weights are wide (0.2), so that logits differ by far more than rounding.
    """
    import torch

    from minimind_hf.models import MiniMindConfig, MiniMindForCausalLM

    def build(seed: int = 0, attn_implementation: str | None = None, **overrides: Any) -> MiniMindForCausalLM:
        sizes = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}
        config = MiniMindConfig(**{**sizes, **heads, "initializer_range": 0.2, **overrides})
        torch.manual_seed(seed)
        return MiniMindForCausalLM._from_config(config, attn_implementation=attn_implementation).eval()

    return build


# A trainer with scripted completions, so that runs of different shapes train on the same tokens


@pytest.fixture
def make_config(tmp_path):
    from tiny import GRPO

    from minimind_hf import GRPOConfig

    def make(**changes) -> "GRPOConfig":
        return GRPOConfig(**{"output_dir": str(tmp_path / "run"), **GRPO, **changes})

    return make


@pytest.fixture
def make_trainer(make_config):
    from tiny import share_of_a, tiny_trainer

    def make(
        model=None, reward=share_of_a, prompts=12, scripted=True, config=None, engine=None, **changes
    ) -> "GRPOTrainer":
        engine = engine or ("scripted" if scripted else None)
        return tiny_trainer(config or make_config(**changes), model, reward, prompts, engine)

    return make
