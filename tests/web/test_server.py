"""`shoal serve` as a process: security, limits, the API and the stream, with plain requests."""

import asyncio
import json
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import uvicorn

from shoal.web import connections
from shoal.web.access import Access
from shoal.web.app import build_app
from support.web_runs import START_US, RunningRun, write_run, write_traced_run
from support.web_server import TIMEOUT_S, Served, serve_runs

IDLE_CONNECTIONS = 1000
MOST_IDLE_KB = 60 * 1024
API_PATHS = tuple(
    f"/api/v1/{path}"
    for path in (
        "now",
        "runs",
        "starts",
        "overview?thing=cluster:a",
        "proof?thing=mirror:a",
        "sides?thing=mirror:a",
        "tail?thing=cluster:a&topic=t",
        "trace?thing=cluster:a",
    )
)
PATHS = ("/", "/app.js", "/api/v1/now", "/api/v1/runs", "/no-such-file", "/api/v1/nothing")


@pytest.fixture(scope="module")
def runs_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served") / "runs"
    write_run(folder / "first", age_s=60)
    write_run(folder / "second")
    write_traced_run(folder / "traced", age_s=120)
    write_run(folder.parent / "outside")
    return folder


@pytest.fixture(scope="module")
def served(runs_dir: Path) -> Iterator[Served]:
    with serve_runs(runs_dir, "--allow-actions", state=runs_dir.parent / "state") as served:
        served.log_in()
        yield served


def test_an_address_opens_the_page_once(served: Served) -> None:
    path = served.address.partition(served.host)[2]
    first = served.request(path, with_cookie=False)
    assert first.status == 303
    assert first.headers["location"] == "/"
    assert first.headers["set-cookie"].startswith(f"shoal-{served.port}=")
    assert first.headers["set-cookie"].endswith("HttpOnly; SameSite=Strict")
    assert served.request(path, with_cookie=False).status == 403
    # A browser that is logged in may open an old address again.
    assert served.request(path).status == 303
    served.address = served.read_address()
    assert served.address.partition(served.host)[2] != path


@pytest.mark.parametrize("path", PATHS)
def test_every_answer_has_the_security_headers(served: Served, path: str) -> None:
    for host in (served.host, "evil.example"):
        answer = served.request(path, headers={"Host": host})
        assert (answer.status == 421) == (host != served.host)
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in answer.headers
        assert "server" not in answer.headers


@pytest.mark.parametrize("address", ["127.0.0.2", "127.1.2.3"])
def test_other_interfaces_are_not_served(served: Served, address: str) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((address, served.port), timeout=TIMEOUT_S).close()


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_page_of_another_origin_gets_no_data(served: Served, site: str) -> None:
    # SameSite cookies do not see ports, so the browser would send the cookie from another port.
    for path in (*API_PATHS, "/api/v1/stream?now=1"):
        assert served.request(path, headers={"Sec-Fetch-Site": site}).status == 403, path


def test_the_api_needs_the_cookie(served: Served) -> None:
    for path in API_PATHS:
        assert served.request(path, with_cookie=False).status == 401, path
    assert served.request("/api/v1/runs", with_cookie=False).status == 401
    assert served.request("/api/v1/stream?now=1", with_cookie=False).status == 401
    assert served.request("/app.js", with_cookie=False).status == 200


@pytest.mark.parametrize(
    "name",
    ["..", "../outside", "../runs/first", "/etc", "first/ledger", "first\0", "FIRST", "*", "", "."],
)
def test_no_name_of_a_run_leads_out_of_the_folder(served: Served, name: str) -> None:
    for path in (f"/api/v1/runs/{quote(name, safe='')}/result", f"/api/v1/runs/{quote(name)}/page"):
        answer = served.request(path)
        assert answer.status == 404, path
        assert b"violated" not in answer.body
    for kind in ("run", "cluster", "mirror"):
        thing = quote(f"{kind}:{name}", safe="")
        assert json.loads(served.request(f"/api/v1/events?thing={thing}").body)["events"] == []
        for path in ("overview", "proof", "trace", "tail", "sides"):
            assert served.request(f"/api/v1/{path}?thing={thing}&topic=t").status == 404, path


def test_a_raw_path_is_not_a_file(served: Served) -> None:
    for path in ("/../../../etc/passwd", "/static/../access.py", "/%2e%2e/app.py", "//etc/passwd"):
        with served.open_socket() as connection:
            request = f"GET {path} HTTP/1.1\r\nHost: {served.host}\r\nConnection: close\r\n\r\n"
            connection.sendall(request.encode())
            assert read_all(connection).startswith(b"HTTP/1.1 404"), path


def read_all(connection: socket.socket) -> bytes:
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


def test_runs_are_served_as_json(served: Served) -> None:
    listed = json.loads(served.request("/api/v1/runs").body)
    assert [run["name"] for run in listed["runs"]][-3:] == ["second", "first", "traced"]
    run = json.loads(served.request("/api/v1/runs/first").body)
    assert run["summary"]["verdict"] == "violated"
    assert run["result"]["findings"]["lost: not-mirrored"]["count"] == 1
    assert "secret" not in json.dumps(run)
    result = served.request("/api/v1/runs/first/result")
    assert json.loads(result.body)["run"] == "first"
    assert json.loads(served.request("/api/v1/runs/first/page").body)["version"] == 1
    events = json.loads(served.request("/api/v1/events?thing=run:first").body)
    assert events["events"][0]["kind"] == "meta"
    assert events["events"][-1]["kind"] == "end"
    more = f"/api/v1/events?thing=run:first&position={events['position']}"
    assert json.loads(served.request(more).body)["events"] == []
    assert served.request("/api/v1/runs?first=-1").status == 400


def spoil(path: Path, name: str, value: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))


# Each makes one file of a run bad; what shows that run must say so, or leave it out.
BAD_FILES: dict[str, Callable[[Path], object]] = {
    "deep run.json": lambda run: (run / "run.json").write_text("[" * 100_000),
    "NaN in run.json": lambda run: spoil(run / "run.json", "rate", float("nan")),
    "infinite start": lambda run: spoil(run / "run.json", "started_us", float("inf")),
    "surrogate in run.json": lambda run: spoil(run / "run.json", "text", "\ud800"),
    "clusters that are a list": lambda run: spoil(run / "run.json", "clusters", [1]),
    "deep result": lambda run: (run / "result.json").write_text("[" * 100_000),
    "NaN in a result": lambda run: spoil(run / "result.json", "faults", [{"x": float("nan")}]),
    "surrogate in a result": lambda run: spoil(run / "result.json", "sentence", "\ud800"),
    "name that is not UTF-8": lambda run: run.rename(run.with_name(os.fsdecode(b"\xff"))),
    "NaN in an event": lambda run: append_event(run, kind="log", text="", x=float("nan")),
    "surrogate in an event": lambda run: append_event(run, kind="log", text="\ud800"),
    "null in a tick": lambda run: append_event(run, kind="tick", partitions=None),
    "FIFO for events": lambda run: put_fifo(run / "events.jsonl"),
}


def append_event(run: Path, **fields: object) -> None:
    with (run / "events.jsonl").open("a") as file:
        file.write(json.dumps({"t": START_US, **fields}) + "\n")


def put_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.fixture(scope="module")
def spoilt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("spoilt") / "runs"
    write_run(folder / "good")
    for name, make in BAD_FILES.items():
        make(write_run(folder / name, age_s=60))
    with serve_runs(folder, state=folder.parent / "state") as served:
        served.log_in()
        yield served


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_of_a_run_is_no_error_of_the_server(spoilt: Served, name: str) -> None:
    thing = quote(f"run:{name}", safe="")
    paths = (f"runs/{quote(name)}", f"events?thing={thing}", f"overview?thing={thing}")
    for path in paths:
        answer = spoilt.request(f"/api/v1/{path}")
        assert answer.status in (200, 404), path
        json.loads(answer.body, parse_constant=pytest.fail)


def test_a_bad_run_hides_no_other(spoilt: Served) -> None:
    listed = json.loads(spoilt.request("/api/v1/runs").body, parse_constant=pytest.fail)
    assert listed["total"] == len(BAD_FILES) + 1
    assert [run["verdict"] for run in listed["runs"] if run["name"] == "good"] == ["violated"]
    assert json.loads(spoilt.request("/api/v1/now").body)["things"] == []


def test_no_link_in_a_run_leads_out_of_its_folder(served: Served, runs_dir: Path) -> None:
    secret = runs_dir.parent / "secret.json"
    secret.write_text('{"secret": 1}')
    run = write_run(runs_dir / "linking", age_s=300)
    tables = run / "tables"
    tables.mkdir()
    for path in (run / "result.json", run / "page.json", tables / "secret.parquet"):
        path.unlink(missing_ok=True)
        path.symlink_to(secret)
    assert served.request("/api/v1/runs/linking/result").status == 404
    assert json.loads(served.request("/api/v1/runs/linking/page").body) is None
    assert json.loads(served.request("/api/v1/runs/linking/tables").body) == {"tables": []}
    shutil.rmtree(run)


def test_a_reader_that_reads_nothing_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "READ_TIMEOUT_S", 0.0)

    async def read_nothing() -> bool:
        app = build_app(Path("no-such-folder"), Access(1))
        loop = asyncio.get_running_loop()
        config = uvicorn.Config(app, log_config=None)
        config.load()
        protocol = connections.LimitedProtocol(config, uvicorn.server.ServerState(), {}, loop)
        closed = asyncio.Event()
        transport = Mock(get_extra_info=lambda _name: None)
        transport.abort = closed.set
        protocol.connection_made(transport)
        protocol.pause_writing()
        protocol.resume_writing()
        await asyncio.sleep(0)
        assert not closed.is_set()
        protocol.pause_writing()
        await closed.wait()
        protocol.connection_lost(None)
        return True

    assert asyncio.run(read_nothing())


def test_a_token_with_other_fields_is_no_error(served: Served) -> None:
    for query in ("token=a&b=1&c=2&d=3", "token=%ff", "token=", "token=a;b&&&"):
        assert served.request(f"/?{query}", with_cookie=False).status == 403, query


def test_messages_and_tables_are_read_by_another_process(served: Served, runs_dir: Path) -> None:
    message = "/api/v1/runs/traced/life?topic=t&producer=p0&lane=1"
    lost = json.loads(served.request(f"{message}&sequence=7").body)
    assert (lost["last_stage"], lost["has_target"]) == ("source", True)
    assert served.request(f"{message}&sequence=x").status == 400
    assert served.request(f"{message}&sequence={10**30}").status == 400
    tables = runs_dir / "traced" / "tables"
    tables.mkdir()
    pq.write_table(pa.table({"name": ["a", "b", "c"], "value": [1, 2, 3]}), tables / "m.parquet")
    assert json.loads(served.request("/api/v1/runs/traced/tables").body) == {"tables": ["m"]}
    rows = json.loads(served.request("/api/v1/runs/traced/tables/m?first=1&count=1").body)
    assert rows == {"columns": ["name", "value"], "rows": [["b", 2]], "total": 3}
    for name in ("n", "..%2f..%2frun", "m.parquet"):
        assert served.request(f"/api/v1/runs/traced/tables/{name}").status == 404


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"not JSON", 400),
        (b"[]", 400),
        pytest.param(b"[" * 10_000, 400, id="deep"),
        (b'{"kind": "preset", "name": "no-such-preset"}', 400),
        (b'{"kind": "file", "name": "mine.toml"}', 400),
        pytest.param(b" " * 20_000, 413, id="oversized"),
    ],
)
def test_a_start_that_is_not_listed_is_refused(served: Served, body: bytes, status: int) -> None:
    for path in ("/api/v1/starts", "/api/v1/actions"):
        assert served.post(path, body).status == status
        for wrong in ({"Origin": "http://127.0.0.1:1"}, {"Origin": "null"}, {"X-Shoal": "0"}):
            assert served.post(path, body, **wrong).status == 403
        assert served.post(path, body, Host="localhost:1").status == 421


def test_a_body_of_unknown_length_is_refused(served: Served) -> None:
    with served.open_socket() as connection:
        head = f"POST /api/v1/starts HTTP/1.1\r\nHost: {served.host}\r\nCookie: {served.cookie}\r\n"
        head += f"Origin: http://{served.host}\r\nX-Shoal: 1\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(head.encode() + b"5\r\nhello\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 413")


def test_nothing_can_be_stopped_that_the_page_did_not_start(served: Served) -> None:
    assert served.post("/api/v1/starts/stop", b"{}").status == 400


def test_an_action_needs_permission(spoilt: Served) -> None:
    """The server of the bad runs was started without it."""
    for path in ("starts", "starts/stop", "actions"):
        assert spoilt.post(f"/api/v1/{path}", b"{}").status == 403
    assert json.loads(spoilt.request("/api/v1/starts").body)["allow_actions"] is False


def test_idle_connections_do_not_keep_others_out(served: Served) -> None:
    idle = [served.open_socket() for _ in range(IDLE_CONNECTIONS)]
    try:
        assert served.request("/api/v1/runs").status == 200
        half = idle[-1]
        half.sendall(b"GET / HTTP/1.1\r\nHost:")
        assert served.request("/").status == 200
    finally:
        for each in idle:
            each.close()


def test_the_stream_sends_what_is_written(served: Served, runs_dir: Path) -> None:
    running = RunningRun(runs_dir / "streamed")
    running.tick()
    with served.open_socket() as connection:
        request = f"GET /api/v1/stream?now=1 HTTP/1.1\r\nHost: {served.host}\r\n"
        connection.sendall(f"{request}Cookie: {served.cookie}\r\n\r\n".encode())
        received = read_until(connection, b'"sent":1000')
        assert b"event: things" in received
        assert b"text/event-stream" in received
        running.tick()
        assert b'"is_start":false' in read_until(connection, b'"sent":2000')
    now = json.loads(served.request("/api/v1/now").body)
    assert [thing["id"] for thing in now["things"]] == ["run:streamed"]
    running.end()
    assert json.loads(served.request("/api/v1/now").body)["things"] == []


def read_until(connection: socket.socket, wanted: bytes) -> bytes:
    received = b""
    deadline = time.monotonic() + TIMEOUT_S
    while wanted not in received:
        assert time.monotonic() < deadline, received
        received += connection.recv(65536)
    return received


def test_it_takes_little_memory(served: Served) -> None:
    served.request("/api/v1/runs")
    status = Path(f"/proc/{served.pid}/status")
    if not status.exists():
        return
    [line] = [line for line in status.read_text().splitlines() if line.startswith("VmRSS")]
    assert int(line.split()[1]) < MOST_IDLE_KB
    assert "pyarrow" not in Path(f"/proc/{served.pid}/maps").read_text()
