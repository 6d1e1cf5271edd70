# SPDX-License-Identifier: Apache-2.0
"""SGLang servers on the trainer's own device: they give their memory back while the trainer updates.

    rollout -> release(cache, weights) -> update -> resume(weights), new weights, resume(cache) -> rollout

The weights come back empty, so they are always sent before the server is asked again. Weights return before the cache,
so that both copies of the weights never meet the whole cache. A server ends if it is told to release while it runs a
request, or to resume what it did not release: it is asked first whether it is idle, and by the name of its weights
whether it is still the one that was put to sleep. Its /health draws a token, which a sleeping server cannot, so
/model_info is asked instead.
"""

from transformers.utils import logging

from ..errors import RolloutServerError
from .client import Patience, SGLangServer

logger = logging.get_logger(__name__)

_CACHE, _WEIGHTS = "kv_cache", "weights"


def check_can_sleep(server: SGLangServer) -> None:
    """Refuses a server that would keep its memory whatever it is told.

    Raises:
        RolloutServerError: With the flag that it lacks.
    """
    if not server.get("/server_info").get("enable_memory_saver"):
        raise RolloutServerError(
            f"sglang_enable_sleep_mode is on, but {server.url} was started without --enable-memory-saver and would "
            "keep its memory during the update. Start it with that flag (and pip install torch-memory-saver), or turn "
            "sglang_enable_sleep_mode off."
        )


def fall_asleep(server: SGLangServer, timeout: float) -> None:
    """Makes an idle server give its memory back; waits until it is idle."""
    Patience(server.url, timeout).attempt(server.check_idle)
    server.command("/release_memory_occupation", {"tags": [_CACHE, _WEIGHTS]})


def wake_for_weights(server: SGLangServer, tag: str, timeout: float) -> bool:
    """Gives a server room for weights, which it must be sent next.

    Args:
        server ([`SGLangServer`]): A server that was put to sleep.
        tag (`str`): The name of the weights that it had then.
        timeout (`float`): Seconds for which it may fail to answer.

    Returns:
        `bool`: Whether it slept; one that was restarted since is awake.
    """
    served = Patience(server.url, timeout).attempt(server.weight_version)
    if served != tag:
        logger.warning(
            "The SGLang server %s serves the weights %r, so it was restarted in its sleep.", server.url, served
        )
        return False
    server.command("/resume_memory_occupation", {"tags": [_WEIGHTS]})
    return True


def wake_for_requests(server: SGLangServer) -> None:
    """Gives a server room for its cache, once it has weights."""
    server.command("/resume_memory_occupation", {"tags": [_CACHE]})
