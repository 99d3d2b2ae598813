"""Losses over several processes: pairs with all ranks' samples, class weights of which every rank has a part.

    distribute(loss) ──► placing.py        which tensors are sharded (DTensor), which every rank has alike
                             │
                         distribution.py   a batch: by rows, whole, or by classes
                             │
                         sampling.py       which classes take part, where not all do
                         traffic.py        how many bytes that sends

`ranks.py` is what ranks tell each other, `sharing.py` what the engine knows of it.
"""

from nearfar.losses.distributed.placing import distribute, full_state, is_sharded, load_full_state
from nearfar.losses.distributed.traffic import Traffic, count_traffic

__all__ = ["Traffic", "count_traffic", "distribute", "full_state", "is_sharded", "load_full_state"]
