"""The table of error codes is Kafka's."""

from kio.schema.errors import ErrorCode

from shoal.wire.error_codes import Code


def test_our_names_are_kafkas_names_and_none_is_missing() -> None:
    assert {code.value: code.name for code in Code} == {
        code.value: code.name.upper() for code in ErrorCode
    }
