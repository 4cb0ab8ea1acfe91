"""Damage for valid bytes, from a source of chance that repeats for the same seed."""

import random
from collections.abc import Callable, Sequence

_BYTES_OF_INTEREST = (0, 1, 0x7F, 0x80, 0xFE, 0xFF)
_NUMBERS_OF_INTEREST = (
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\xff\xff\xff\xff",
    b"\xff\xff\xff\xfe",
    b"\x00\x00\x00\x00",
    b"\x7f\xff\xff\xff\xff\xff\xff\xff",
    b"\x80\x00\x00\x00\x00\x00\x00\x00",
    b"\xff\xff\xff\xff\x0f",
    b"\xfe\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80",
)
_MOST_MUTATIONS = 4
_RANDOM_SHARE = 0.05
_RANDOM_MOST_BYTES = 300

Mutation = Callable[[bytearray, random.Random], None]


def damage(seeds: Sequence[bytes], dice: random.Random) -> bytearray:
    """A seed with a few mutations, now and then a splice of two, or nothing but chance."""
    chance = dice.random()
    if chance < _RANDOM_SHARE:
        return bytearray(dice.randbytes(int(dice.random() * _RANDOM_MOST_BYTES)))
    data = bytearray(seeds[int(dice.random() * len(seeds))])
    if chance < 2 * _RANDOM_SHARE:
        other = seeds[int(dice.random() * len(seeds))]
        data[_place(data, dice) :] = other[_place(other, dice) :]
    for _ in range(1 + int(dice.random() * _MOST_MUTATIONS)):
        _MUTATIONS[int(dice.random() * len(_MUTATIONS))](data, dice)
    return data


def _place(data: bytes | bytearray, dice: random.Random) -> int:
    return int(dice.random() * len(data))


def _flip_bit(data: bytearray, dice: random.Random) -> None:
    if data:
        data[_place(data, dice)] ^= 1 << int(dice.random() * 8)


def _set_byte(data: bytearray, dice: random.Random) -> None:
    if data:
        data[_place(data, dice)] = int(dice.random() * 256)


def _set_byte_of_interest(data: bytearray, dice: random.Random) -> None:
    if data:
        data[_place(data, dice)] = _BYTES_OF_INTEREST[int(dice.random() * len(_BYTES_OF_INTEREST))]


def _set_number_of_interest(data: bytearray, dice: random.Random) -> None:
    number = _NUMBERS_OF_INTEREST[int(dice.random() * len(_NUMBERS_OF_INTEREST))]
    place = _place(data, dice)
    data[place : place + len(number)] = number


def _nudge_byte(data: bytearray, dice: random.Random) -> None:
    """One more or one less: off-by-one lengths and counts."""
    if data:
        place = _place(data, dice)
        data[place] = (data[place] + (1 if dice.random() < 0.5 else -1)) & 0xFF


def _cut(data: bytearray, dice: random.Random) -> None:
    del data[_place(data, dice) :]


def _remove(data: bytearray, dice: random.Random) -> None:
    place = _place(data, dice)
    del data[place : place + 1 + int(dice.random() ** 3 * 40)]


def _insert(data: bytearray, dice: random.Random) -> None:
    place = _place(data, dice)
    data[place:place] = dice.randbytes(1 + int(dice.random() ** 3 * 40))


def _repeat(data: bytearray, dice: random.Random) -> None:
    place = _place(data, dice)
    data[place:place] = data[place : place + 1 + int(dice.random() ** 2 * 60)]


_MUTATIONS: tuple[Mutation, ...] = (
    _flip_bit,
    _set_byte,
    _set_byte_of_interest,
    _set_byte_of_interest,
    _set_number_of_interest,
    _nudge_byte,
    _nudge_byte,
    _cut,
    _remove,
    _insert,
    _repeat,
)
