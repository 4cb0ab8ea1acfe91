"""Which tests share a process of a parallel run: those that share what is dear to start.

The tests of a file stay together, for the sake of its clusters; so do all that use the one Spark
session, and (in `support.apache`) all that use the one real broker. Groups are set by the first
calls of this hook, because pytest-xdist reads them in its own; a test has one group, or none.
"""

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            uses_spark = "spark" in getattr(item, "fixturenames", ())
            group = "spark" if uses_spark else item.path.name
            item.add_marker(pytest.mark.xdist_group(group))
