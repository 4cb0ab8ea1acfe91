"""Which delivery a topic gets, while the target does not say how long it remembers producers."""

import asyncio
import time

import pytest

from shoal.client.codes import Code
from shoal.client.errors import ClientError
from shoal.lite.cluster import LiteCluster
from shoal.mirror.copy.delivery import choice
from shoal.mirror.copy.delivery.choice import Chooser
from shoal.mirror.copy.delivery.names import COMPARE_AND_APPEND, IDEMPOTENT
from shoal.model.topics import TopicPartition
from shoal.wire.api_keys import ApiKey
from support.mirror.copies import HOUR_MS, client, fill, make_topic

EXPIRATION_MS = 24 * HOUR_MS


@pytest.fixture(autouse=True)
def ask_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_ASK_AGAIN_S", 0.0)
    monkeypatch.setattr(choice, "_REFUSED_AGAIN_S", 0.0)


@pytest.mark.parametrize("code", [Code.INVALID_REQUEST, Code.CLUSTER_AUTHORIZATION_FAILED])
async def test_a_refused_question_is_asked_again(target: LiteCluster, code: Code) -> None:
    async with client(target.bootstrap) as one:
        chooser = Chooser(one, one, wanted=IDEMPOTENT, start="earliest")
        await asyncio.to_thread(target.fail_requests, 1, ApiKey.DESCRIBE_CONFIGS, error=code)
        assert await chooser.expiration_ms() is None
        assert await chooser.expiration_ms() == EXPIRATION_MS
        assert await chooser.old_before_ms() > 0


async def test_a_topic_of_old_records_waits_until_the_target_answers(
    source: LiteCluster, target: LiteCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "_ANSWER_S", 0.5)
    old_ms = time.time_ns() // 1_000_000 - 72 * HOUR_MS
    await make_topic(source.bootstrap, "old", retention_ms="-1")
    await asyncio.to_thread(fill, source.bootstrap, "old", range(20), at_ms=old_ms)
    partitions = [TopicPartition("old", 0)]
    async with client(source.bootstrap) as one, client(target.bootstrap) as other:
        chooser = Chooser(one, other, wanted=IDEMPOTENT, start="earliest")
        await asyncio.to_thread(target.fail_requests, 1, ApiKey.DESCRIBE_CONFIGS, times=10_000)
        try:
            with pytest.raises(ClientError) as raised:
                await chooser.choose(partitions)
            assert raised.value.retriable
            # Hand-overs do not fail because of it: the age is unknown until then.
            assert await chooser.old_before_ms() == 0
        finally:
            await asyncio.to_thread(target.heal)
        chosen = await chooser.choose(partitions)
    assert chosen["old"].delivery == COMPARE_AND_APPEND
