"""The batch slots that a tenant with a large share leaves free for tenants with a small one.

Without them a tenant that comes back to a full fleet waits until an answer ends. One slot is enough
for a small share: the next answer that ends frees the next one. It must not cost much: a small
fleet keeps none.
"""

from services.router.fleet import stand_ins
from services.router.fleet.columns import Figure
from services.router.fleet.fleet import Fleet
from services.router.pick.shortlist import MAX_PLAIN

# One slot of these is little more than 1 % of the fleet.
MIN_SLOTS = 80
SLOTS_PER_KEPT = 256
MAX_KEPT = 4
# There is plenty of room for requests with so many free slots for each.
PLENTY = 4


def num_kept(num_slots: int) -> int:
    """The slots that are kept free of so many."""
    if num_slots < MIN_SLOTS:
        return 0
    return min(max(1, num_slots // SLOTS_PER_KEPT), MAX_KEPT)


def is_left(fleet: Fleet, model_fp: str) -> bool:
    """Return whether one more sequence leaves the slots free that are to be kept."""
    num_free, num_slots = _slots(fleet, model_fp, stand_ins.decoding_role(fleet, model_fp))
    least = num_kept(num_slots)
    return not least or num_free > least


def is_plenty(fleet: Fleet, model_fp: str, num_requests: int) -> bool:
    """Return whether the pool is large, and a quarter of its batch slots are free, which is also
    PLENTY for these requests."""
    role = stand_ins.decoding_role(fleet, model_fp)
    num_free, num_slots = _slots(fleet, model_fp, role)
    is_large = len(fleet.of_model(model_fp, role)) > MAX_PLAIN
    return is_large and num_free >= max(num_slots // 4, PLENTY * num_requests)


def _slots(fleet: Fleet, model_fp: str, role: int) -> tuple[int, int]:
    """The free batch slots of all workers of a pool that may be picked, and all of theirs."""
    pool = fleet.of_model(model_fp, role)
    if len(pool) > MAX_PLAIN and (columns := fleet.columns(model_fp, role)) is not None:
        is_fit = columns.is_in()
        free, slots = columns[Figure.BATCH_SLOTS_FREE], columns[Figure.BATCH_SLOTS]
        return int(free[is_fit].sum()), int(slots[is_fit].sum())
    rooms = [worker.room() for worker in pool if fleet.is_fit(worker)]
    return (
        sum(room.num_batch_slots_free for room in rooms),
        sum(room.num_batch_slots for room in rooms),
    )
