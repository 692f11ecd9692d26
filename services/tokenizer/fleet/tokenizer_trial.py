"""Tries a tokenizer.json in a child process before this one reads it (`baton/system/child.py`).

Workers give these files, and the library that reads them is not ready for all that they can say: on
some it aborts the process. Whatever it does, it does it to the child first.
"""

from baton.system.child import ChildDied, ChildLimits, ChildProcess, ChildTimedOut
from baton.system.clock import Clock
from baton.wire.model_files import TOKENIZER_FILE
from services.tokenizer.model_folder import ModelFolder, UnusableModel

CHILD_MODULE = "services.tokenizer.fleet.tokenizer_trial_child"
# The largest known take two seconds and half a GiB.
DEADLINE_S = 60.0
MEMORY_BYTES = 4 * 2**30


async def try_tokenizer(folder: ModelFolder, clock: Clock) -> None:
    """Raises UnusableModel when a process that reads the file of this model ends or hangs."""
    if folder.tokenizer_json is None:
        return
    limits = ChildLimits(memory_bytes=MEMORY_BYTES)
    child = ChildProcess(CHILD_MODULE, clock, limits=limits)
    try:
        await child.start()
        await child.call(folder.tokenizer_json, deadline_s=DEADLINE_S)
    except ChildDied as error:
        reason = f"a process that reads it dies ({error})"
        raise UnusableModel(f"{folder.where}: {TOKENIZER_FILE}: {reason}") from error
    except ChildTimedOut as error:
        reason = f"it is not read in {DEADLINE_S:g} s"
        raise UnusableModel(f"{folder.where}: {TOKENIZER_FILE}: {reason}") from error
    finally:
        await child.close()
