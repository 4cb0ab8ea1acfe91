"""The support matrix in the docs says what is registered, and the request log what was asked."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from shoal.lite.base.hooks.request_log import VARIABLE
from shoal.lite.cluster import LiteCluster
from shoal.wire.api_keys import ApiKey
from support.lite.client import PlainClient

SCRIPT = Path(__file__).parents[2] / "scripts" / "support_matrix.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("support_matrix", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_made_from_the_registration_lines_and_the_runs(script: ModuleType) -> None:
    assert script.PAGE.read_text() == script.page(script.read_kept_rows()), (
        "run scripts/support_matrix.py"
    )
    assert script.read_kept_rows()


def test_a_broker_writes_down_what_it_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: ModuleType
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with LiteCluster() as cluster, PlainClient(cluster.bootstrap) as client:
        client.request(
            ApiKey.API_VERSIONS, 3, client_software_name="some-client", client_software_version="7"
        )
        for _ in range(3):
            client.request(ApiKey.METADATA, 4, topics=None, allow_auto_topic_creation=False)
        client.send_frame(b"\x00\x03\x7f\xff\x00\x00\x00\x01\x00\x04test\x00")
        assert client.is_hung_up()
    rows = {row for row in script.read_request_logs(tmp_path) if row[0] == "some-client"}
    assert rows == {
        ("some-client", "7", 18, 3, "served"),
        ("some-client", "7", 3, 4, "served"),
        ("some-client", "7", 3, 32767, "refused"),
    }
