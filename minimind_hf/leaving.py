# SPDX-License-Identifier: Apache-2.0
"""What one of several processes does last: it lets the threads of gloo finish.

A thread of gloo gives back the tensors of an exchange after the exchange is over, and takes Python's lock for that.
Python before 3.14 ends threads that ask for the lock once it shuts down, in C++ code that must not be ended so: the
process aborts ("terminate called without an active exception"), and with it a run that has done all it was to do.
Destroying the process groups does not wait for those threads, as DDP and DeepSpeed hold on to them.
"""

import atexit
import os
import time

SECONDS = 0.5  # they need microseconds, once they have the lock and a core


def let_gloo_finish() -> None:
    """Gives the threads of gloo the lock, if there is any other process to exchange with."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        time.sleep(SECONDS)


atexit.register(let_gloo_finish)
