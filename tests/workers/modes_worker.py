# SPDX-License-Identifier: Apache-2.0
"""What each of two processes runs in test_modes.py, started by `accelerate launch` with a file of accelerate_configs/.

Does all trainings in one launch and writes, for each, what mode really ran and what was logged.
"""

import faulthandler
import json
import os
import sys
from pathlib import Path

from accelerate.state import AcceleratorState
from mode_runs import BROKEN, RESUMED, RUNS, forget_precision, run, run_broken, run_with_failing_engine
from tiny import run_fsdp_on_cpu, skip_deepspeed_shared_memory


def result_of(trainer) -> dict:
    accelerator = trainer.accelerator
    plugin = accelerator.state.deepspeed_plugin
    return {
        "distributed_type": accelerator.distributed_type.value,
        "world_size": trainer.args.world_size,
        "local_world_size": int(os.environ["LOCAL_WORLD_SIZE"]),
        "wrapped": [kind.__name__ for kind in type(trainer.model_wrapped).__mro__],
        "zero_stage": plugin.zero_stage if plugin else None,
        "updated_by": type(trainer.deepspeed.optimizer.optimizer).__name__ if plugin else None,
        "log": trainer.state.log_history,
    }


def main(folder: Path, names: list[str]) -> None:
    for name in names or [*RUNS, *(f"{name}_resumed" for name in RESUMED), *BROKEN, "engine_error"]:
        AcceleratorState._reset_state()  # the settings of one run would stay those of the next
        forget_precision()
        if name in BROKEN:
            error, moved = run_broken(name, folder / name, processes=2)
            result = {"error": error, "moved": moved}
            (folder / f"{name}_{os.environ['RANK']}.json").write_text(json.dumps(result))
            continue
        if name == "engine_error":
            error = {"error": run_with_failing_engine(folder / name)}
            (folder / f"{name}_{os.environ['RANK']}.json").write_text(json.dumps(error))
            continue
        if name == "each_machine":
            trainer = on_a_disk_of_its_own(folder / f"machine_{os.environ['RANK']}")
            continue
        original = name.removesuffix("_resumed")
        checkpoint = folder / original / RESUMED[original] if name != original else None
        trainer = run(original, folder / name, processes=2, checkpoint=checkpoint)
        (folder / f"{name}_{trainer.args.process_index}.json").write_text(json.dumps(result_of(trainer)))
    trainer.end()


def on_a_disk_of_its_own(folder: Path):
    """Two machines that see no folder of each other: each saves, and goes on from what it has saved."""
    run("grpo_sync", folder / "whole", processes=2, save_on_each_node=True)
    checkpoint = folder / "whole" / RESUMED["grpo_sync"]
    return run("grpo_sync", folder / "resumed", processes=2, checkpoint=checkpoint, save_on_each_node=True)


if __name__ == "__main__":
    faulthandler.dump_traceback_later(300)  # where a process hangs, before the test kills it
    if os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true":
        skip_deepspeed_shared_memory()
    if os.environ.get("ACCELERATE_USE_FSDP") == "true":
        run_fsdp_on_cpu()
    main(Path(sys.argv[1]), sys.argv[2:])
