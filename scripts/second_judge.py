"""A second judge of what a Kafka cluster stores, with confluent-kafka only and no code of Shoal.

    python scripts/second_judge.py BOOTSTRAP TOPIC PARTITIONS < a pipe

Sends running numbers with an idempotent producer until the pipe is closed, then reads everything
back: every acknowledged number must be there, in order, and once. Prints one line of JSON.
"""

import json
import sys
import threading
import time
from collections import defaultdict

from confluent_kafka import Consumer, Producer, TopicPartition

bootstrap, topic, partitions = sys.argv[1], sys.argv[2], int(sys.argv[3])
acked, failed, number = defaultdict(list), [], 0
end = threading.Thread(target=sys.stdin.read, daemon=True)
end.start()


def on_delivery(error, message):
    if error is None:
        acked[message.partition()].append(int(message.value()))
    else:
        failed.append(str(error))


settings = {"bootstrap.servers": bootstrap, "log_level": 0, "reconnect.backoff.max.ms": 500}
producer = Producer(settings | {"enable.idempotence": True, "message.timeout.ms": 0})
while end.is_alive():
    if len(producer) < 5000:
        for partition in range(partitions):
            producer.produce(topic, str(number), partition=partition, on_delivery=on_delivery)
        number += 1
    producer.poll(0.005)
unsent, found = producer.flush(120), {}
reading = settings | {"group.id": "judge", "enable.auto.commit": False, "check.crcs": True}
consumer, limit = Consumer(reading), time.monotonic() + 120
for partition in range(partitions):
    consumer.assign([TopicPartition(topic, partition, 0)])
    _, target = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=60)
    found[partition], position = [], 0
    while position < target and time.monotonic() < limit:
        for message in consumer.consume(1000, 0.5):
            if message.error() is None:
                found[partition].append(int(message.value()))
                position = message.offset() + 1
consumer.close()
verdict = {
    "acked": sum(map(len, acked.values())),
    "read": sum(map(len, found.values())),
    "missing": sum(len(set(acked[p]) - set(found[p])) for p in found),
    "twice": sum(len(values) - len(set(values)) for values in found.values()),
    "disordered": sum(values != sorted(values) for values in found.values()),
    "unsent": unsent,
    "failed": failed[:5],
}
print(json.dumps(verdict))
