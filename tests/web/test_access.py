"""Who may use the page: each rule, without a server."""

import pytest

from shoal.web.access import Access, RequestFacts

HOST = "127.0.0.1:8080"
ORIGIN = f"http://{HOST}"


def log_in(access: Access) -> str:
    """The cookie of a browser that opened the printed address."""
    cookie = access.exchange(access.address.partition("token=")[2])
    assert cookie is not None
    return cookie.partition(";")[0]


def status_of(access: Access, method: str, path: str, **headers: str | None) -> int:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    facts = {name: (value,) for name, value in given.items() if value is not None}
    refusal = access.find_refusal(RequestFacts(method, path, facts))
    return 200 if refusal is None else refusal.status


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8080", 200),
        ("localhost:8080", 200),
        ("127.0.0.1", 421),
        ("127.0.0.1:80", 421),
        ("evil.example:8080", 421),
        ("127.0.0.1.evil.example:8080", 421),
        ("LOCALHOST:8080", 421),
        ("[::1]:8080", 421),
        ("0.0.0.0:8080", 421),
        ("", 421),
        (None, 421),
    ],
)
def test_only_requests_for_this_server_are_served(host: str | None, status: int) -> None:
    access = Access(8080)
    assert status_of(access, "GET", "/", host=host) == status
    assert status_of(access, "GET", "/api/v1/now", host=host, cookie=log_in(access)) == status


@pytest.mark.parametrize(
    ("site", "status"),
    [(None, 200), ("same-origin", 200), ("none", 200), ("same-site", 403), ("cross-site", 403)],
)
def test_pages_of_other_origins_may_not_use_the_api(site: str | None, status: int) -> None:
    access = Access(8080)
    cookie = log_in(access)
    found = status_of(access, "GET", "/api/v1/now", host=HOST, cookie=cookie, sec_fetch_site=site)
    assert found == status


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, 200),
        ({"origin": None}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://127.0.0.1"}, 403),
        ({"origin": "http://127.0.0.1:8081"}, 403),
        ({"origin": "https://127.0.0.1:8080"}, 403),
        ({"origin": "http://localhost:8080"}, 403),
        ({"origin": "http://127.0.0.1:8080/"}, 403),
        ({"x_shoal": None}, 403),
        ({"x_shoal": "0"}, 403),
        ({"content_length": None}, 413),
        ({"content_length": "16385"}, 413),
        ({"content_length": "-1"}, 413),
        ({"content_length": "9" * 100}, 413),
        ({"cookie": None}, 401),
        ({"cookie": "shoal-8080=guessed"}, 401),
        ({"cookie": "shoal-8081=x"}, 401),
        ({"transfer_encoding": "chunked"}, 413),
        ({"x_any": "a" * 20_000}, 431),
    ],
)
def test_an_action_needs_origin_header_length_and_cookie(
    changes: dict[str, str | None], status: int
) -> None:
    access = Access(8080, allow_actions=True)
    headers: dict[str, str | None] = {"host": HOST, "origin": ORIGIN, "x_shoal": "1"}
    headers |= {"content_length": "10", "cookie": log_in(access)}
    assert status_of(access, "POST", "/api/v1/starts", **(headers | changes)) == status
    without = Access(8080)
    headers["cookie"] = log_in(without)
    assert status_of(without, "POST", "/api/v1/starts", **headers) == 403


def test_an_allowed_path_needs_everything_else_and_allows_no_other() -> None:
    access = Access(8080, allowed_paths=("/api/v1/demo/press",))
    headers: dict[str, str | None] = {"host": HOST, "origin": ORIGIN, "x_shoal": "1"}
    headers |= {"content_length": "2", "cookie": log_in(access)}
    assert status_of(access, "POST", "/api/v1/demo/press", **headers) == 200
    assert status_of(access, "POST", "/api/v1/demo/press", **(headers | {"origin": None})) == 403
    assert status_of(access, "POST", "/api/v1/demo/press", **(headers | {"cookie": None})) == 401
    for path in ("/api/v1/starts", "/api/v1/actions", "/api/v1/demo/press/"):
        assert status_of(access, "POST", path, **headers) == 403


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "CONNECT"])
def test_other_methods_are_not_served(method: str) -> None:
    access = Access(8080, allow_actions=True)
    assert status_of(access, method, "/api/v1/starts", host=HOST, origin=ORIGIN) == 405


def test_a_token_is_valid_once_and_the_next_one_is_announced() -> None:
    announced: list[str] = []
    access = Access(8080, on_exchange=announced.append)
    token = access.address.partition("token=")[2]
    assert access.exchange("wrong") is None
    assert access.exchange("") is None
    cookie = access.exchange(token)
    assert cookie is not None
    assert cookie.startswith("shoal-8080=")
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert access.exchange(token) is None
    assert announced == [access.address]
    assert token not in access.address


def test_a_repeated_header_counts_as_missing() -> None:
    access = Access(8080)
    twice = {"host": (HOST, "evil.example"), "cookie": (log_in(access),)}
    refusal = access.find_refusal(RequestFacts("GET", "/api/v1/now", twice))
    assert refusal is not None
    assert refusal.status == 421


@pytest.mark.parametrize(
    "cookie",
    [
        "{own}",
        "a=1; {own}",
        "x[]=1; {own}",
        'settings={{"a":1}}; {own}',
        "path=/; {own}; other",
        'a="not closed; {own}',
        "shoal-8080=of another server; {own}",
        "{own}; shoal-8080=of another server",
    ],
)
def test_cookies_of_other_servers_of_this_machine_log_nobody_out(cookie: str) -> None:
    access = Access(8080)
    given = cookie.format(own=log_in(access))
    assert status_of(access, "GET", "/api/v1/now", host=HOST, cookie=given) == 200
    for wrong in (given.replace("shoal-8080=", "shoal-8080=x"), given.replace("8080", "80801")):
        assert status_of(access, "GET", "/api/v1/now", host=HOST, cookie=wrong) == 401
