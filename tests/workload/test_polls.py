"""What a consumer notes of its polls: since when it could know that there was something."""

from shoal.model.topics import TopicPartition
from shoal.workload.receive.polls import MOST_STEPS, NOTHING_KNOWN, Poll, Polls

LOG, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)


def test_an_offset_is_known_since_the_first_answer_that_told_of_it() -> None:
    polls = Polls()
    polls.told(LOG, 5, at_us=100)
    polls.told(LOG, 5, at_us=150)
    polls.told(LOG, 9, at_us=200)
    polls.polled({LOG: 4, OTHER: 0}, at_us=1000)
    polls.polled({LOG: 5}, at_us=1001)
    polls.polled({LOG: 9}, at_us=1002)
    assert sorted(polls.take()) == [
        Poll(LOG, 4, 1000, 100),
        Poll(LOG, 5, 1001, 200),
        Poll(LOG, 9, 1002, NOTHING_KNOWN),
        Poll(OTHER, 0, 1000, NOTHING_KNOWN),
    ]
    assert polls.take() == []


def test_polls_in_vain_are_one_row() -> None:
    polls = Polls()
    for at_us in (10, 20, 30):
        polls.polled({LOG: 0}, at_us)
    polls.told(LOG, 1, at_us=35)
    polls.polled({LOG: 0}, at_us=40)
    polls.polled({LOG: 1}, at_us=50)
    assert polls.take() == [
        Poll(LOG, 0, 10, NOTHING_KNOWN, times=3),
        Poll(LOG, 0, 40, 35),
        Poll(LOG, 1, 50, NOTHING_KNOWN),
    ]


def test_far_behind_it_keeps_a_lower_bound_and_little_memory() -> None:
    polls = Polls()
    for number in range(1, 3 * MOST_STEPS + 1):
        polls.told(LOG, number, at_us=10 * number)
    for offset in (0, MOST_STEPS - 2, MOST_STEPS, 3 * MOST_STEPS - 1):
        polls.polled({LOG: offset}, at_us=10**9)
    known = [poll.known_us for poll in polls.take()]
    last = 10 * 3 * MOST_STEPS
    assert known == [10, 10 * (MOST_STEPS - 1), last, last]


def test_what_was_read_before_is_known_again_no_earlier() -> None:
    polls = Polls()
    polls.told(LOG, 5, at_us=100)
    polls.told(LOG, 9, at_us=200)
    polls.polled({LOG: 6}, at_us=300)
    polls.polled({LOG: 2}, at_us=400)
    assert [poll.known_us for poll in polls.take()] == [200, 200]
