"""Every format that is written by declared names (`shoal.model.serialised`), with its version.

Python names may change here as everywhere; the keys, and what `schemas.json` has under them, are
formats and may not.
"""

from typing import Any, Final

from shoal.lite import cluster, cluster_folder, spec
from shoal.lite.controller import records, requests, values
from shoal.lite.faults.request_faults import RequestFault
from shoal.lite.log.disk import DiskFault
from shoal.model.serialised import schema_of

# By format: the version that is written, and the classes by the names that the format has for
# them.
DECLARED: Final[dict[str, tuple[int, dict[str, type[Any]]]]] = {
    "metadata log": (
        records.VERSION,
        {
            "cluster": records.ClusterRecord,
            "broker": records.BrokerRecord,
            "broker-removed": records.BrokerRemovedRecord,
            "topic": records.TopicRecord,
            "partition": records.PartitionRecord,
            "topic-removed": records.TopicRemovedRecord,
            "config": records.ConfigRecord,
            "producer-ids": records.ProducerIdsRecord,
            "snapshot-end": records.SnapshotEndRecord,
        },
    ),
    "requests to controllers": (
        values.VERSION,
        {
            "BrokersDied": requests.BrokersDied,
            "Introduction": requests.Introduction,
            "Introduce": requests.Introduce,
            "UnregisterBroker": requests.UnregisterBroker,
            "NewTopic": requests.NewTopic,
            "CreateTopic": requests.CreateTopic,
            "DeleteTopic": requests.DeleteTopic,
            "CreatePartitions": requests.CreatePartitions,
            "ConfigChange": requests.ConfigChange,
            "AlterConfigs": requests.AlterConfigs,
            "LogEnd": requests.LogEnd,
            "ReportLogEnds": requests.ReportLogEnds,
            "ReportFailures": requests.ReportFailures,
            "ReportLosses": requests.ReportLosses,
            "PartitionAnswer": requests.PartitionAnswer,
            "ElectLeaders": requests.ElectLeaders,
            "MoveLeader": requests.MoveLeader,
            "ShrinkInSync": requests.ShrinkInSync,
            "Reassign": requests.Reassign,
        },
    ),
    "processes of a cluster": (
        spec.VERSION,
        {
            "broker": spec.BrokerSpec,
            "controller": spec.ControllerSpec,
            "supervisor": spec.SupervisorSpec,
        },
    ),
    "cluster.json": (cluster_folder.FORMAT, {"": cluster_folder.Description}),
    "control port of a cluster": (
        cluster_folder.CONTROL_VERSION,
        {
            "supervisor.json": cluster_folder.ControlAddress,
            "node": cluster.NodeStatus,
            "quorum": cluster.QuorumStatus,
            "request fault": RequestFault,
            "disk fault": DiskFault,
        },
    ),
}


def declared_schemas() -> dict[str, Any]:
    """What the code declares, as it stands in `schemas.json`."""
    return {
        name: {
            "version": version,
            "fields": {kind: schema_of(cls) for kind, cls in classes.items()},
        }
        for name, (version, classes) in DECLARED.items()
    }
