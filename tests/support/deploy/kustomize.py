"""What `kubectl kustomize` does with the few features that the generated overlays use."""

import json
from pathlib import Path
from typing import Any

import yaml

Manifest = dict[str, Any]
KNOWN_KEYS = {"apiVersion", "kind", "namespace", "resources", "replicas", "patches"}


def build_kustomization(folder: Path) -> list[Manifest]:
    """All documents of a folder with a kustomization.yaml, with its changes applied."""
    wanted = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert set(wanted) <= KNOWN_KEYS, sorted(set(wanted) - KNOWN_KEYS)
    documents: list[Manifest] = []
    for resource in wanted["resources"]:
        path = (folder / resource).resolve()
        if path.is_dir():
            documents += build_kustomization(path)
        else:
            documents += yaml.safe_load_all(path.read_text())
    for patch in wanted.get("patches", ()):
        _apply_patch(documents, patch)
    for change in wanted.get("replicas", ()):
        for document in documents:
            if document["metadata"]["name"] == change["name"] and "replicas" in document["spec"]:
                document["spec"]["replicas"] = change["count"]
    if "namespace" in wanted:
        for document in documents:
            document["metadata"]["namespace"] = wanted["namespace"]
    return documents


def _apply_patch(documents: list[Manifest], patch: Manifest) -> None:
    target = patch["target"]
    hit = [
        d
        for d in documents
        if d["kind"] == target["kind"] and d["metadata"]["name"] == target["name"]
    ]
    assert len(hit) == 1, f"a patch hits {len(hit)} documents: {target}"
    for step in json.loads(patch["patch"]):
        assert step["op"] == "replace"
        *parents, last = [part.replace("~1", "/") for part in step["path"].split("/")[1:]]
        place: Any = hit[0]
        for part in parents:
            place = place[int(part)] if isinstance(place, list) else place[part]
        assert last in place, f"nothing to replace at {step['path']}"
        place[last] = step["value"]
