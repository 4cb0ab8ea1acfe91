"""Which groups of tests a parallel run begins with: those that take longest.

By default pytest-xdist begins with the groups of most tests. A group of one long test comes last
then, and all other processes wait for it. A group that is missing here costs time, nothing else.
"""

from collections import Counter
from typing import Final

import pytest

# Every group of more than about ten seconds, longest first.
LONG_GROUPS: Final = (
    "spark",
    "apache",
    "test_demo.py",
    "test_session.py",
    "test_produce_consume.py",
    "test_mirror_containment.py",
    "test_run_command.py",
    "test_against_bruteforce.py",
    "test_tidy.py",
    "test_cluster.py",
    "test_histories.py",
    "test_lifecycle.py",
    "test_cluster_torn.py",
    "test_external.py",
    "test_apache.py",
    "test_kills.py",
    "test_nodes.py",
    "test_cluster_failover.py",
    "test_words.py",
    "test_quorum.py",
    "test_chaos.py",
    "test_cluster_survivors.py",
    "test_mirror_unclean.py",
    "test_fault_runs.py",
    "test_target_loss.py",
    "test_lite_processes.py",
    "test_mirror_team.py",
    "test_presets.py",
    "test_groups.py",
    "test_group_kills.py",
    "test_compacted_runs.py",
    "test_network.py",
    "test_cluster_faults.py",
    "test_self_test.py",
    "test_fuzz.py",
    "test_raft_world.py",
    "test_lite_pytest_plugin.py",
    "test_orphans.py",
    "test_lite_facade.py",
    "test_coordinator_kills.py",
    "test_re_encoded.py",
    "test_mirror_generations.py",
    "test_history_against_plain.py",
    "test_mirror_kills.py",
    "test_silence.py",
    "test_mirror_zombies.py",
    "test_planted.py",
    "test_cluster_sizes.py",
    "test_mirror_lite.py",
    "test_roles.py",
    "test_mirror_odd.py",
    "test_mirror_delivery.py",
    "test_replicas.py",
    "test_copiers.py",
    "test_fault_windows.py",
    "test_history_format.py",
    "test_interop_group_clients.py",
)
_RANKS: Final = {group: rank for rank, group in enumerate(LONG_GROUPS)}


def pytest_configure(config: pytest.Config) -> None:
    """Keep the order of the tests, where pytest-xdist is there to change it."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    groups = [_group_of(item) for item in items]
    items[:] = [items[place] for place in order_places(groups)]


def order_places(groups: list[str]) -> list[int]:
    """Long groups first, then those of many tests; within a group the order stays as it is."""
    sizes = Counter(groups)

    def key(place: int) -> tuple[int, int, str]:
        group = groups[place]
        return _RANKS.get(group, len(_RANKS)), -sizes[group], group

    return sorted(range(len(groups)), key=key)


def _group_of(item: pytest.Item) -> str:
    mark = item.get_closest_marker("xdist_group")
    return str(mark.args[0]) if mark else item.path.name
