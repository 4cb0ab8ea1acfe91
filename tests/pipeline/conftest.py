"""One Spark session for all tests of this folder."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from shoal.pipeline.session import start_session, stop_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = start_session("local[6]")
    yield session
    stop_session(session)
