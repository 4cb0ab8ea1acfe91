"""Answers the fetches of followers. A follower's fetch offset is its log end offset.

Rules of this file:
- What is answered, and when, is decided by `ReplicaSession`; here are the futures that connections
  wait for.
- A held fetch is answered when the follower sends another request on the connection.
"""

import asyncio

from shoal.lite.base.codes import ApiError, Code
from shoal.lite.base.hooks.held_answers import HeldAnswer
from shoal.lite.broker.core import BrokerCore
from shoal.lite.broker.fetch.fetch_answers import encode_answer
from shoal.lite.broker.registry import Answer, RawRequest
from shoal.lite.partitions.sessions.replica_session import Answers, ReplicaSession
from shoal.wire.fetch import FIRST_VERSION_WITH_TOPIC_IDS, FetchRequest


def answer_replica_fetch(
    core: BrokerCore, request: RawRequest, fetch: FetchRequest, wait_ms: int
) -> "Answer | asyncio.Future[Answer]":
    try:
        session = core.replica_sessions.find(fetch)
    except ApiError as error:
        return encode_answer(request, [], error.code)
    uses_ids = request.version >= FIRST_VERSION_WITH_TOPIC_IDS
    answers = session.on_fetch(fetch, wait_ms=wait_ms, uses_ids=uses_ids)
    if answers is None:
        held = _FutureAnswer(session, request)
        session.hold(held)
        return held
    answer = encode_answer(request, answers, session_id=session.session_id)
    session.release_acks()
    return answer


class _FutureAnswer(HeldAnswer[Answer]):
    """The future of an answer that a session holds."""

    def __init__(self, session: ReplicaSession, request: RawRequest) -> None:
        super().__init__(lambda: session.release(self))
        self._request = request

    def deliver(self, session_id: int, code: Code, answers: Answers) -> None:
        self.set_result(encode_answer(self._request, answers, code, session_id=session_id))
