"""The routes of the page: its files, and the JSON API below `/api/v1/`.

    GET  /api/v1/now                      things that run now
    GET  /api/v1/runs?first=&count=       runs with their verdicts, newest first
    GET  /api/v1/runs/NAME                one run: summary, manifest, result
    GET  /api/v1/runs/NAME/result         its result.json, as it is
    GET  /api/v1/runs/NAME/page           its page.json, the data behind the charts
    GET  /api/v1/runs/NAME/life?topic=&producer=&lane=&sequence=   one message
    GET  /api/v1/runs/NAME/tables, /tables/TABLE?first=&count=      its Parquet tables
    GET  /api/v1/events?thing=ID&position=    events from a position
    GET  /api/v1/stream?now=1&follow=ID&position=   server-sent events
    GET  /api/v1/overview?thing=ID        a cluster or mirror: states, last ticks, partitions
    GET  /api/v1/proof?thing=ID           proof.json of a mirror
    GET  /api/v1/sides?thing=&source=&target=&source_offset=&target_offset=   records side by side
    GET  /api/v1/tail?thing=&topic=       what is appended to a topic, as server-sent events
    GET  /api/v1/trace?thing=ID           the trace of a cluster: events with vector clocks
    GET  /api/v1/starts                   what may be started
    POST /api/v1/starts, /api/v1/starts/stop, /api/v1/actions    only with --allow-actions
    GET  /api/v1/demo, POST /api/v1/demo/press      only in the page of shoal demo

`docs/guides/pages.md` describes them for users.
"""

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from shoal.experiment.sweep_list import describe_sweep
from shoal.model.errors import ShoalError
from shoal.web.access import LARGEST_BODY_BYTES, Access
from shoal.web.children import ChildKind
from shoal.web.event_files import read_chunk
from shoal.web.guard import Guard
from shoal.web.json_text import SafeJson, encode_json
from shoal.web.ledgers import MOST_ROWS
from shoal.web.overview import find_replicas, read_overview, read_proof
from shoal.web.run_list import (
    RunList,
    read_manifest,
    read_result,
    read_sweep_result,
)
from shoal.web.starts import RunStarter
from shoal.web.stream import MOST_FOLLOWED, PageFollower, StreamCount, stream
from shoal.web.things import Thing, find_thing, find_things
from shoal.web.traces import read_trace

STATIC: Final = Path(__file__).with_name("static")
FILES: Final = {
    "/": ("index.html", "text/html"),
    "/app.js": ("app.js", "text/javascript"),
    "/style.css": ("style.css", "text/css"),
    "/licences.txt": ("licences.txt", "text/plain"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
    "/stories.json": ("stories.json", "application/json"),
}
MOST_RUNS: Final = 200
LARGEST_LANE: Final = 1_000_000
LARGEST_SEQUENCE: Final = 1 << 62
LARGEST_PAGE_BYTES: Final = 2_000_000
_CONTROL: Final = "shoal.control.process"
_NOT_KEPT: Final = {"Cache-Control": "no-store"}
Handler = Callable[[Request], Awaitable[Response]]


class BadRequest(Exception):
    """A request that cannot be answered; the text is for its sender."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


DEMO_PRESS: Final = "/api/v1/demo/press"


class Demo(Protocol):
    """What the page of `shoal demo` shows, and its button."""

    def snapshot(self) -> dict[str, Any]: ...

    def press(self) -> None: ...


@dataclass(slots=True)
class Site:
    """What the handlers share."""

    runs: RunList
    access: Access
    starter: RunStarter
    demo: Demo | None = None
    streams: StreamCount = field(default_factory=StreamCount)
    ledgers: ChildKind = field(
        default_factory=lambda: ChildKind("shoal.web.ledgers", "reading the ledgers", 2)
    )
    # An action must not wait behind records that are read.
    actions: ChildKind = field(default_factory=lambda: ChildKind(_CONTROL, "the action", 4))
    records: ChildKind = field(default_factory=lambda: ChildKind(_CONTROL, "reading records", 2))
    tails: ChildKind = field(default_factory=lambda: ChildKind(_CONTROL, "the tail", 3))

    @property
    def runs_dir(self) -> Path:
        return self.runs.runs_dir

    def find_run(self, request: Request) -> Path:
        folder = self.runs.find(request.path_params["name"])
        if folder is None:
            raise BadRequest(404, "there is no such run")
        return folder

    async def find_thing(self, request: Request) -> Thing:
        id_ = request.query_params.get("thing", "")
        thing = await run_in_threadpool(find_thing, self.runs_dir, id_)
        if thing is None:
            raise BadRequest(404, "there is no such run, cluster or mirror")
        return thing


def build_app(
    runs_dir: Path, access: Access, *, experiments: Path | None = None, demo: Demo | None = None
) -> ASGIApp:
    """The application with all its rules."""
    site = Site(RunList(runs_dir), access, RunStarter(runs_dir, experiments), demo)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await site.starter.close()

    api = "/api/v1"
    routes = [
        *(Route(path, _serve_file(*file)) for path, file in FILES.items()),
        Route(f"{api}/now", _bind(site, _show_now)),
        Route(f"{api}/runs", _bind(site, _list_runs)),
        Route(f"{api}/runs/{{name:path}}/result", _bind(site, _show_result)),
        Route(f"{api}/runs/{{name:path}}/page", _bind(site, _show_page)),
        Route(f"{api}/runs/{{name:path}}/life", _bind(site, _show_life)),
        Route(f"{api}/runs/{{name:path}}/tables", _bind(site, _list_tables)),
        Route(f"{api}/runs/{{name:path}}/tables/{{table}}", _bind(site, _show_table)),
        # Last of its kind: the name of a run of a sweep has a slash.
        Route(f"{api}/runs/{{name:path}}", _bind(site, _show_run)),
        Route(f"{api}/sweeps/{{name}}", _bind(site, _show_sweep)),
        Route(f"{api}/events", _bind(site, _show_events)),
        Route(f"{api}/stream", _bind(site, _open_stream)),
        Route(f"{api}/overview", _bind(site, _show_overview)),
        Route(f"{api}/proof", _bind(site, _show_proof)),
        Route(f"{api}/sides", _bind(site, _show_sides)),
        Route(f"{api}/tail", _bind(site, _open_tail)),
        Route(f"{api}/trace", _bind(site, _show_trace)),
        Route(f"{api}/actions", _bind(site, _act), methods=["POST"]),
        Route(f"{api}/starts", _bind(site, _show_starts), methods=["GET"]),
        Route(f"{api}/starts", _bind(site, _start), methods=["POST"]),
        Route(f"{api}/starts/stop", _bind(site, _stop), methods=["POST"]),
        Route(f"{api}/demo", _bind(site, _show_demo)),
        Route(DEMO_PRESS, _bind(site, _press), methods=["POST"]),
    ]
    handlers = {Exception: _answer_failure}
    return Guard(Starlette(routes=routes, lifespan=lifespan, exception_handlers=handlers), access)


def _serve_file(name: str, media_type: str) -> Handler:
    async def serve(_request: Request) -> Response:
        return FileResponse(
            STATIC / name, media_type=media_type, headers={"Cache-Control": "no-cache"}
        )

    return serve


def _bind(site: Site, handle: Callable[[Site, Request], Awaitable[Response]]) -> Handler:
    async def answer(request: Request) -> Response:
        try:
            return await handle(site, request)
        except BadRequest as error:
            return _answer_json({"error": str(error)}, error.status)
        except ShoalError as error:
            return _answer_json({"error": error.message, "remedy": error.remedy}, 400)

    return answer


async def _answer_failure(_request: Request, _error: Exception) -> Response:
    """The answer to a request that fails because of an error here, which is logged with it."""
    return _answer_json({"error": "internal error; see the output of shoal serve"}, 500)


def _answer_json(content: Any, status: int = 200) -> Response:
    return SafeJson(content, status, headers=_NOT_KEPT)


# What is read


async def _show_now(site: Site, _request: Request) -> Response:
    things = await run_in_threadpool(find_things, site.runs_dir)
    content = {"now_us": time.time_ns() // 1000, "things": [thing.to_json() for thing in things]}
    return _answer_json(content)


async def _list_runs(site: Site, request: Request) -> Response:
    first = _read_number(request, "first", 0, 1_000_000)
    count = _read_number(request, "count", 50, MOST_RUNS)
    runs, total = await run_in_threadpool(site.runs.list_newest, first, count)
    return _answer_json({"runs": runs, "total": total, "folder": str(site.runs_dir)})


async def _show_run(site: Site, request: Request) -> Response:
    folder = site.find_run(request)

    def read() -> dict[str, Any]:
        summary = site.runs.summarise(folder)
        # Without a verdict there is no result that this version can read.
        result = read_result(folder) if summary["verdict"] else None
        return {"summary": summary, "manifest": read_manifest(folder), "result": result}

    return _answer_json(await run_in_threadpool(read))


async def _show_sweep(site: Site, request: Request) -> Response:
    name = request.path_params["name"]

    def read() -> dict[str, Any] | None:
        folder = site.runs.find_sweep(name)
        if folder is None:
            return None
        runs = site.runs.list_runs_of(folder)
        summary = describe_sweep(folder, runs)
        return {"summary": summary, "runs": runs, "result": read_sweep_result(folder)}

    found = await run_in_threadpool(read)
    if found is None:
        raise BadRequest(404, "there is no such sweep")
    return _answer_json(found)


async def _show_result(site: Site, request: Request) -> Response:
    path = _find_file(site.find_run(request), "result.json")
    if path is None:
        raise BadRequest(404, "this run has not been judged")
    return FileResponse(path, media_type="application/json", headers=_NOT_KEPT)


async def _show_page(site: Site, request: Request) -> Response:
    path = _find_file(site.find_run(request), "page.json")
    if path is None or path.stat().st_size > LARGEST_PAGE_BYTES:
        # Not an error: a run that was judged by an older version has none.
        return _answer_json(None)
    return FileResponse(path, media_type="application/json", headers=_NOT_KEPT)


def _find_file(folder: Path, name: str) -> Path | None:
    """A file of a run; None for one that is missing, or a link that leads out of its folder."""
    path = folder / name
    return path if path.is_file() and path.resolve().is_relative_to(folder.resolve()) else None


async def _show_life(site: Site, request: Request) -> Response:
    query = request.query_params
    name: dict[str, Any] = {key: query.get(key, "")[:1000] for key in ("topic", "producer")}
    name["lane"] = _read_number(request, "lane", 0, LARGEST_LANE)
    name["sequence"] = _read_number(request, "sequence", 0, LARGEST_SEQUENCE)
    folder = site.find_run(request)
    life = await site.ledgers.ask({"life": name, "run_dir": str(folder.absolute())})
    manifest = await run_in_threadpool(read_manifest, folder)
    replicas = await run_in_threadpool(find_replicas, folder, life)
    has_target = "target" in manifest.get("clusters", {})
    own = {"has_target": has_target, "acks": manifest.get("acks"), "replicas": replicas}
    return _answer_json({**life, **own})


def _table_names(folder: Path) -> list[str]:
    paths = (folder / "tables").glob("*.parquet")
    return sorted(path.stem for path in paths if _find_file(folder, f"tables/{path.name}"))


async def _list_tables(site: Site, request: Request) -> Response:
    return _answer_json({"tables": _table_names(site.find_run(request))})


async def _show_table(site: Site, request: Request) -> Response:
    folder = site.find_run(request)
    table = request.path_params["table"]
    if table not in _table_names(folder):
        raise BadRequest(404, "this run has no such table")
    first = _read_number(request, "first", 0, LARGEST_SEQUENCE)
    count = _read_number(request, "count", 100, MOST_ROWS)
    wanted = {"table": table, "run_dir": str(folder.absolute()), "first": first, "count": count}
    return _answer_json(await site.ledgers.ask(wanted))


async def _show_events(site: Site, request: Request) -> Response:
    query = request.query_params
    thing = await run_in_threadpool(find_thing, site.runs_dir, query.get("thing", ""))
    position = query.get("position", "")
    chunk = None if thing is None else await run_in_threadpool(read_chunk, thing.path, position)
    if chunk is None:
        # Not an error: a run of another version, or of another tool, has no events.
        return _answer_json({"events": [], "position": None, "is_start": True, "has_more": False})
    return _answer_json(chunk._asdict())


async def _open_stream(site: Site, request: Request) -> Response:
    from sse_starlette import EventSourceResponse

    if site.streams.is_full:
        raise BadRequest(503, "too many pages are open; close some")
    query = request.query_params
    ids, places = query.getlist("follow"), query.getlist("position")
    if len(ids) > MOST_FOLLOWED or len(places) not in (0, len(ids)):
        raise BadRequest(400, f"follow at most {MOST_FOLLOWED} things, each with a position")
    positions = dict(zip(ids, places or [""] * len(ids), strict=True))
    follower = PageFollower(site.runs_dir, is_now=query.get("now") == "1", positions=positions)
    return EventSourceResponse(stream(follower, site.streams), headers=_NOT_KEPT)


async def _show_overview(site: Site, request: Request) -> Response:
    thing = await site.find_thing(request)

    def read() -> dict[str, Any]:
        found = read_overview(thing.path) or {"events": [], "partitions": [], "position": ""}
        return {"thing": thing.to_json(), **found}

    return _answer_json(await run_in_threadpool(read))


async def _show_proof(site: Site, request: Request) -> Response:
    thing = await site.find_thing(request)
    # Not an error: a mirror that is not verified has none.
    return _answer_json(await run_in_threadpool(read_proof, thing.path))


async def _show_sides(site: Site, request: Request) -> Response:
    thing = await site.find_thing(request)
    query = request.query_params
    at = [_read_offset(request, name) for name in ("source_offset", "target_offset")]
    route = {name: query.get(name, "")[:300] for name in ("source", "target")}
    wanted = {"sides": {**route, "at": at}, "thing": thing.id, "runs_dir": str(site.runs_dir)}
    return _answer_json(await site.records.ask(wanted))


async def _open_tail(site: Site, request: Request) -> Response:
    from sse_starlette import EventSourceResponse

    thing = await site.find_thing(request)
    if site.tails.is_full:
        raise BadRequest(503, "too many tails are open; close some")
    topic = request.query_params.get("topic", "")[:300]
    wanted = {"tail": topic, "thing": thing.id, "runs_dir": str(site.runs_dir)}
    return EventSourceResponse(_tail(site, wanted), headers=_NOT_KEPT)


async def _tail(site: Site, wanted: dict[str, Any]) -> AsyncIterator[dict[str, str]]:
    try:
        async for found in site.tails.follow(wanted):
            yield {"event": "records", "data": encode_json(found)}
        yield {"event": "over", "data": "{}"}
    except ShoalError as error:
        yield {"event": "problem", "data": encode_json({"error": str(error)})}


async def _show_trace(site: Site, request: Request) -> Response:
    thing = await site.find_thing(request)
    return _answer_json(await run_in_threadpool(read_trace, thing.meta.get("details", {})))


def _read_offset(request: Request, name: str) -> int:
    if request.query_params.get(name) == "-1":
        return -1
    return _read_number(request, name, 0, LARGEST_SEQUENCE)


def _read_number(request: Request, name: str, default: int, most: int) -> int:
    text = request.query_params.get(name, str(default))
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise BadRequest(400, f"{name} must be a whole number")
    return min(int(text), most)


# Actions: `access.py` lets a POST pass only if they are allowed.


async def _show_starts(site: Site, _request: Request) -> Response:
    allowed = site.access.allow_actions
    content = await run_in_threadpool(lambda: site.starter.to_json(allow_actions=allowed))
    return _answer_json(content)


async def _start(site: Site, request: Request) -> Response:
    body = await _read_body(request)
    return _answer_json(await run_in_threadpool(site.starter.start, body), 202)


async def _stop(site: Site, _request: Request) -> Response:
    return _answer_json(site.starter.stop(), 202)


async def _act(site: Site, request: Request) -> Response:
    body = await _read_body(request)
    wanted = {"action": body, "runs_dir": str(site.runs_dir)}
    return _answer_json(await site.actions.ask(wanted))


async def _show_demo(site: Site, _request: Request) -> Response:
    # Not an error: the page asks whether this is the server of the demo.
    return _answer_json(None if site.demo is None else site.demo.snapshot())


async def _press(site: Site, _request: Request) -> Response:
    if site.demo is None:
        raise BadRequest(404, "this is not the page of shoal demo")
    site.demo.press()
    return _answer_json({}, 202)


async def _read_body(request: Request) -> dict[str, Any]:
    data = b""
    try:
        async for part in request.stream():
            data += part
            if len(data) > LARGEST_BODY_BYTES:
                raise BadRequest(413, "the request body is too large")
    except ClientDisconnect as error:
        raise BadRequest(400, "the request ended within its body") from error
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadRequest(400, "the request body is not JSON") from error
    if not isinstance(body, dict):
        raise BadRequest(400, "the request body is not an object")
    return body
