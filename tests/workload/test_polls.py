"""What a consumer notes of its polls: since when it could know that there was something."""

from shoal.model.topics import TopicPartition
from shoal.workload.receive.polls import MAX_STEPS, NOTHING_KNOWN, Poll, PollRecorder

LOG, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)


def test_an_offset_is_known_since_the_first_answer_that_told_of_it() -> None:
    polls = PollRecorder()
    polls.on_log_end(LOG, 5, at_us=100)
    polls.on_log_end(LOG, 5, at_us=150)
    polls.on_log_end(LOG, 9, at_us=200)
    polls.on_poll({LOG: 4, OTHER: 0}, at_us=1000)
    polls.on_poll({LOG: 5}, at_us=1001)
    polls.on_poll({LOG: 9}, at_us=1002)
    assert sorted(polls.take()) == [
        Poll(LOG, 4, 1000, 100),
        Poll(LOG, 5, 1001, 200),
        Poll(LOG, 9, 1002, NOTHING_KNOWN),
        Poll(OTHER, 0, 1000, NOTHING_KNOWN),
    ]
    assert polls.take() == []


def test_polls_in_vain_are_one_row() -> None:
    polls = PollRecorder()
    for at_us in (10, 20, 30):
        polls.on_poll({LOG: 0}, at_us)
    polls.on_log_end(LOG, 1, at_us=35)
    polls.on_poll({LOG: 0}, at_us=40)
    polls.on_poll({LOG: 1}, at_us=50)
    assert polls.take() == [
        Poll(LOG, 0, 10, NOTHING_KNOWN, times=3),
        Poll(LOG, 0, 40, 35),
        Poll(LOG, 1, 50, NOTHING_KNOWN),
    ]


def test_far_behind_it_keeps_a_lower_bound_and_little_memory() -> None:
    polls = PollRecorder()
    for number in range(1, 3 * MAX_STEPS + 1):
        polls.on_log_end(LOG, number, at_us=10 * number)
    for offset in (0, MAX_STEPS - 2, MAX_STEPS, 3 * MAX_STEPS - 1):
        polls.on_poll({LOG: offset}, at_us=10**9)
    known = [poll.known_us for poll in polls.take()]
    last = 10 * 3 * MAX_STEPS
    assert known == [10, 10 * (MAX_STEPS - 1), last, last]


def test_what_was_read_before_is_known_again_no_earlier() -> None:
    polls = PollRecorder()
    polls.on_log_end(LOG, 5, at_us=100)
    polls.on_log_end(LOG, 9, at_us=200)
    polls.on_poll({LOG: 6}, at_us=300)
    polls.on_poll({LOG: 2}, at_us=400)
    assert [poll.known_us for poll in polls.take()] == [200, 200]
