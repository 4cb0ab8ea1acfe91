"""RemoveRaftVoter (81), version 0 (KIP-853).

Behaviour
- Forwarded to the active controller, which removes the voter with the given id and directory id.
  The active controller cannot remove itself: it resigns, and refuses the request for now.
"""

from shoal.lite.api.api_80_add_raft_voter import handle
from shoal.lite.broker.registry import register
from shoal.wire.api_keys import ApiKey

API = register(ApiKey.REMOVE_RAFT_VOTER, 0, 0, handle)
