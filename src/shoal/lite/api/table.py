"""All APIs that are served: importing this file runs their registration lines."""

from shoal.lite.api import (
    api_00_produce,
    api_01_fetch,
    api_02_list_offsets,
    api_03_metadata,
    api_10_find_coordinator,
    api_18_api_versions,
    api_19_create_topics,
    api_20_delete_topics,
    api_21_delete_records,
    api_22_init_producer_id,
    api_23_offset_for_leader_epoch,
    api_32_describe_configs,
    api_37_create_partitions,
    api_44_incremental_alter_configs,
    api_60_describe_cluster,
    api_61_describe_producers,
)
from shoal.lite.api.registry import APIS

__all__ = [
    "APIS",
    "api_00_produce",
    "api_01_fetch",
    "api_02_list_offsets",
    "api_03_metadata",
    "api_10_find_coordinator",
    "api_18_api_versions",
    "api_19_create_topics",
    "api_20_delete_topics",
    "api_21_delete_records",
    "api_22_init_producer_id",
    "api_23_offset_for_leader_epoch",
    "api_32_describe_configs",
    "api_37_create_partitions",
    "api_44_incremental_alter_configs",
    "api_60_describe_cluster",
    "api_61_describe_producers",
]
