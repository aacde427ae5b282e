"""Import before torch: OpenMP threads wait without spinning, unless the user's environment says otherwise.

By default every idle worker thread spins for milliseconds. Where cores are shared (a TUI beside the engine, other jobs)
the spinning takes the time of the thread it waits for: on 2 busy cores a decode step of SmolLM2 took 600 to 2400 ms
with spinning, 140 ms without. Read once, when torch loads its OpenMP library.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
