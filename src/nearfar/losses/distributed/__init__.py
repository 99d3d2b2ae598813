"""Losses over several processes: pairs with the samples of all ranks, class vectors divided among ranks.

    distribute(loss) ──► placing.py        which tensors are sharded (DTensor), and which all ranks have
                             │
                         distribution.py   a batch: by rows, whole, or by classes
                             │
                         sampling.py       which classes take part, if only some do
                         traffic.py        how many bytes are sent

`ranks.py` holds the messages between ranks, `sharing.py` what the engine knows of them.
"""

from nearfar.losses.distributed.placing import distribute, full_state, is_sharded, load_full_state
from nearfar.losses.distributed.traffic import Traffic, count_traffic

__all__ = ["Traffic", "count_traffic", "distribute", "full_state", "is_sharded", "load_full_state"]
