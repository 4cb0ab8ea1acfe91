"""Who may use the page: every rule that a request must pass, without I/O.

Rules, in this order:
- The Host header names this server (127.0.0.1 or localhost, with the port): a page of another site
  whose name resolves to 127.0.0.1 is refused (DNS rebinding).
- A browser that says that another origin caused a request to the API is refused. SameSite cookies
  do not see ports, so a page on another port of this machine is the same site.
- A POST is for actions. It needs `--allow-actions`, the exact Origin with its port, and the header
  `X-Shoal: 1`, which a page of another origin cannot send without asking first.
- The address that `shoal serve` prints has a token. It is exchanged once for a session cookie that
  scripts cannot read, and the browser is redirected to an address without it. A new token replaces
  each one that was used. Everything but the static files needs the cookie.
"""

import hmac
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

HEADER: Final = "x-shoal"
LARGEST_BODY_BYTES: Final = 16 * 1024
LARGEST_HEADERS_BYTES: Final = 16 * 1024
_SAFE_METHODS: Final = ("GET", "HEAD")
_TOKEN_BYTES: Final = 32

SECURITY_HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Refusal(NamedTuple):
    """Why a request is not served, for the one who sent it."""

    status: int
    text: str


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """What the rules look at. Header names are in lower case; a repeated one has all its values."""

    method: str
    path: str
    headers: Mapping[str, tuple[str, ...]]

    @property
    def header_bytes(self) -> int:
        pairs = ((name, value) for name, values in self.headers.items() for value in values)
        return sum(len(name) + len(value) for name, value in pairs)

    def header(self, name: str) -> str | None:
        """The value of a header; None if it is missing or repeated."""
        values = self.headers.get(name, ())
        return values[0] if len(values) == 1 else None


class Access:
    """The token and the session of one server."""

    def __init__(
        self,
        port: int,
        *,
        allow_actions: bool = False,
        allowed_paths: Collection[str] = (),
        on_exchange: Callable[[str], None] = lambda _address: None,
    ) -> None:
        """`on_exchange` gets the address with the next token when one was used.

        `allowed_paths` are actions that are allowed without `allow_actions`.
        """
        self.port = port
        self.allow_actions = allow_actions
        self._allowed_paths = frozenset(allowed_paths)
        self.cookie_name = f"shoal-{port}"
        self._on_exchange = on_exchange
        self._token = secrets.token_urlsafe(_TOKEN_BYTES)
        self._session = secrets.token_urlsafe(_TOKEN_BYTES)

    @property
    def hosts(self) -> tuple[str, ...]:
        return (f"127.0.0.1:{self.port}", f"localhost:{self.port}")

    @property
    def address(self) -> str:
        """The address to open, with the token."""
        return f"http://{self.hosts[0]}/?token={self._token}"

    def exchange(self, token: str) -> str | None:
        """The Set-Cookie header for a valid token, which is not valid afterwards."""
        if not hmac.compare_digest(token.encode(), self._token.encode()):
            return None
        self._token = secrets.token_urlsafe(_TOKEN_BYTES)
        self._on_exchange(self.address)
        return f"{self.cookie_name}={self._session}; Path=/; HttpOnly; SameSite=Strict"

    def has_session(self, request: RequestFacts) -> bool:
        """Whether the request has this server's cookie."""
        # Cookies ignore ports: those of other servers on this machine come too, in any syntax, and
        # another one may have the same name.
        pairs = (
            pair.strip().partition("=") for pair in (request.header("cookie") or "").split(";")
        )
        session = self._session.encode()
        return any(
            name == self.cookie_name and hmac.compare_digest(value.encode(), session)
            for name, _, value in pairs
        )

    def find_refusal(self, request: RequestFacts) -> Refusal | None:
        """The first rule that the request breaks; None if it may be served."""
        if request.header("host") not in self.hosts:
            names = " or ".join(self.hosts)
            return Refusal(421, f"this server answers requests for {names} only")
        if request.header_bytes > LARGEST_HEADERS_BYTES:
            return Refusal(
                431, f"the headers of a request have at most {LARGEST_HEADERS_BYTES:,} bytes"
            )
        is_api = request.path.startswith("/api/")
        site = request.header("sec-fetch-site")
        if is_api and site not in (None, "same-origin", "none"):
            return Refusal(403, "a page of another origin may not use this API")
        if request.method not in _SAFE_METHODS and (refusal := self._refuse_action(request)):
            return refusal
        if is_api and not self.has_session(request):
            return Refusal(401, "open the address that shoal serve printed, once in each browser")
        return None

    def _refuse_action(self, request: RequestFacts) -> Refusal | None:
        if request.method != "POST":
            return Refusal(405, f"the method {request.method:.20} is not served")
        if not (self.allow_actions or request.path in self._allowed_paths):
            return Refusal(403, "actions are off; start shoal serve with --allow-actions")
        if request.header("origin") != f"http://{request.header('host')}":
            return Refusal(403, "the Origin header is not this server's address")
        if request.header(HEADER) != "1":
            return Refusal(403, "the header X-Shoal: 1 is missing")
        length = request.header("content-length") or ""
        if (
            "transfer-encoding" in request.headers
            or not length.isdecimal()
            or int(length[:12]) > LARGEST_BODY_BYTES
        ):
            return Refusal(413, f"a request body needs a length, at most {LARGEST_BODY_BYTES:,}")
        return None
