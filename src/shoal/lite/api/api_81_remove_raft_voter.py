"""RemoveRaftVoter (81), version 0 (KIP-853).

Behaviour
- Passed on to the active controller, which takes the vote of a controller that is named by its
  id and its disk. The active one cannot remove itself: it hands over, and refuses for now.
"""

from shoal.lite.api.api_80_add_raft_voter import handle
from shoal.lite.broker.registry import register
from shoal.wire.api_keys import ApiKey

API = register(ApiKey.REMOVE_RAFT_VOTER, 0, 0, handle)
