"""Every format that is written by declared names (`shoal.model.serialised`), with its version.

Python names may change here as everywhere; the keys, and what `schemas.json` has under them, are
formats and may not.
"""

from typing import Any, Final

from shoal.experiment import manifest
from shoal.lite import cluster
from shoal.lite.base import spec
from shoal.lite.base.hooks.request_faults import RequestFault
from shoal.lite.metadata.data import records, requests, values
from shoal.lite.nodes import cluster_folder
from shoal.lite.storage.disk import DiskFault
from shoal.mirror import control
from shoal.mirror.config import MirrorConfig
from shoal.mirror.copy.intake import Counts
from shoal.mirror.offsets import checkpoints
from shoal.mirror.proof import files as proof_files
from shoal.mirror.proof.comparison import PartitionReport
from shoal.mirror.status import PartitionStatus
from shoal.model import comparison, events, findings, ledger, result
from shoal.model.nodes import Node
from shoal.model.pages import life
from shoal.model.pages import run as page
from shoal.model.serialised import names_of, schema_of
from shoal.net.messages import DRIVER_MESSAGES, WORKER_MESSAGES
from shoal.pipeline.sink import decisions
from shoal.runtime.processes import ProcessIdentity
from shoal.systems import registry
from shoal.systems.doctor import Check
from shoal.systems.remote import RemoteNode
from shoal.workers import specs as worker_specs
from shoal.workload import specs as workload_specs
from shoal.workload.receive import consumer, scan
from shoal.workload.send import producer

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
            "BrokersDied": requests.ReportBrokerExits,
            "Introduction": requests.ControllerIdentity,
            "Introduce": requests.ExchangeVoterIds,
            "UnregisterBroker": requests.UnregisterBroker,
            "NewTopic": requests.NewTopicSpec,
            "CreateTopic": requests.CreateTopic,
            "DeleteTopic": requests.DeleteTopic,
            "CreatePartitions": requests.CreatePartitions,
            "ConfigChange": requests.ConfigEdit,
            "AlterConfigs": requests.AlterConfigs,
            "LogEnd": requests.LogEnd,
            "ReportLogEnds": requests.ReportLogEnds,
            "ReportFailures": requests.ReportFailures,
            "ReportLosses": requests.ReportLosses,
            "PartitionAnswer": requests.PartitionResult,
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
    "checkpoint topic of a mirror": (checkpoints.FORMAT, {"": checkpoints.Checkpoint}),
    "control port of a mirror": (
        control.VERSION,
        {"address": control.Address, "partition": PartitionStatus, "counts": Counts},
    ),
    "mirror verify": (1, {"": PartitionReport}),
    "control lines of workers": (2, {**WORKER_MESSAGES, **DRIVER_MESSAGES}),
    "proof of a mirror": (proof_files.VERSION, {"": proof_files.Proof}),
    "where a proof continues": (proof_files.VERSION, {"": proof_files.ProofCheckpoint}),
    "assignment of a worker": (
        worker_specs.VERSION,
        {
            "": worker_specs.Assignment,
            "produce": workload_specs.ProducerSpec,
            "consume": workload_specs.ConsumerSpec,
            "scan": workload_specs.ScanSpec,
            "mirror": MirrorConfig,
            "produced": producer.ProducerSummary,
            "consumed": consumer.ConsumerSummary,
            "scanned": scan.ScanSummary,
        },
    ),
    "created.json": (manifest.FORMAT, {"cluster": manifest.CreatedResources}),
    "registry of clusters": (
        registry.FORMAT,
        {"node": Node, "process": ProcessIdentity},
    ),
    "events.jsonl": (events.VERSION, dict(events.KINDS)),
    "decision of an atomic write": (
        decisions.VERSION,
        {"decision": decisions.CommitDecision, "transaction": decisions.OpenTransaction},
    ),
    "doctor": (1, {"check": Check}),
    "cluster status": (1, {"node": RemoteNode}),
    "result.json": (
        result.RESULT_FORMAT,
        {
            "throughput": result.Throughput,
            "series": result.Series,
            "strip": result.Strip,
            "ratios": result.Ratios,
        },
    ),
    "page.json": (
        page.VERSION,
        {
            "page": page.PageData,
            "group": page.GroupPage,
            "bins": page.TimeBins,
            "flow": page.FlowCounts,
            "stage": page.FlowStage,
            "lane": page.LaneRow,
            "curve": page.PercentileCurve,
            "life": life.MessageLife,
        },
    ),
    "comparison and sweep": (
        comparison.FORMAT,
        {"comparison": comparison.Comparison, "sweep": comparison.SweepResult},
    ),
}
# Written by declared names, with some values in a form of their own.
NAMES_ONLY: Final[dict[str, type[Any]]] = {"metrics of result.json": result.Metrics}


def collect_schemas() -> dict[str, Any]:
    """What the code declares, as it stands in `schemas.json`."""
    written: dict[str, Any] = {
        name: {
            "version": version,
            "fields": {kind: schema_of(cls) for kind, cls in classes.items()},
        }
        for name, (version, classes) in DECLARED.items()
    }
    written["ledger tables"] = {"version": ledger.FORMAT, "columns": dict(ledger.TABLES)}
    written["words of ledgers"] = {
        "commit kinds": ledger.COMMIT_KINDS,
        "outcomes": ledger.OUTCOMES,
        "fates": ledger.FATES,
        "fault phases": ledger.FAULT_PHASES,
    }
    written["words of results"] = {
        "verdicts": [each.value for each in findings.Verdict],
        "outcomes": [each.value for each in findings.Outcome],
        "findings": [each.value for each in findings.Finding],
        "stages": result.STAGES,
        "percentiles": [name for name, _, _ in result.PERCENTILES],
        "judgements": comparison.JUDGEMENTS,
    }
    for name, cls in NAMES_ONLY.items():
        written[name] = [each.serialised_name for each in names_of(cls)]
    return written
