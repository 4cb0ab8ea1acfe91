"""What went wrong on another file system, as one error of this project.

Arrow reports failures of S3 and HDFS as `OSError` with the text of the service, in which the name
of the failure is the only thing to go by.
"""

import re
from typing import Final, NamedTuple

from shoal.model.errors import LedgerError, ShoalError, SystemFailure, UnreachableError
from shoal.storage.places import S3_SCHEMES, bucket_of, is_url

NO_BUCKET: Final = "NO_SUCH_BUCKET"
_LONGEST: Final = 300


class _FailureCause(NamedTuple):
    """A failure, recognised by a pattern in the text of the service; `{}` is the bucket or host."""

    pattern: str
    kind: type[ShoalError]
    why: str
    remedy: str


_CREDENTIALS: Final = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile (AWS_PROFILE) or a role, where the"
    " command runs and on every executor"
)
_ADDRESS: Final = (
    "check the address and the network; AWS_ENDPOINT_URL names a server that is not Amazon's"
)

# The first that matches counts.
_CAUSES: Final = (
    _FailureCause(
        rf"{NO_BUCKET}|NoSuchBucket|bucket does not exist",
        SystemFailure,
        "bucket {} does not exist",
        "create the bucket, or correct its name",
    ),
    _FailureCause(
        r"INVALID_ACCESS_KEY_ID|InvalidAccessKeyId|SIGNATURE_DOES_NOT_MATCH|EXPIRED_TOKEN"
        r"|ExpiredToken|INVALID_CLIENT_TOKEN|UNRECOGNIZED_CLIENT|MISSING_AUTHENTICATION"
        r"|InvalidClientTokenId|NO_CREDENTIALS|Unable to load credentials",
        SystemFailure,
        "the credentials are missing or not accepted",
        _CREDENTIALS,
    ),
    _FailureCause(
        r"ACCESS_DENIED|AccessDenied|AccessControlException|Permission denied|HTTP status 403"
        r"|Forbidden",
        SystemFailure,
        "permission denied",
        f"allow these credentials to read and write there, or use others: {_CREDENTIALS}",
    ),
    _FailureCause(
        r"NETWORK_CONNECTION|curlCode|Connection refused|UnknownHostException"
        r"|NETWORK_UNREACHABLE|REQUEST_TIMEOUT|SERVICE_UNAVAILABLE",
        UnreachableError,
        "the server does not answer",
        _ADDRESS,
    ),
    _FailureCause(
        r"PermanentRedirect|MOVED_PERMANENTLY|AuthorizationHeaderMalformed|HTTP status 301"
        r"|IllegalLocationConstraint",
        SystemFailure,
        "bucket {} is in another region",
        "set AWS_REGION to the region of the bucket",
    ),
    _FailureCause(
        r"libjvm|libhdfs|CLASSPATH|NoClassDefFoundError",
        SystemFailure,
        "the client of HDFS could not be loaded",
        "install Hadoop's client, and set JAVA_HOME, HADOOP_HOME and"
        ' CLASSPATH="$($HADOOP_HOME/bin/hadoop classpath --glob)"',
    ),
)


def describe_failure(action: str, place: str, error: Exception) -> ShoalError:
    """Return the error that says what could not be done, where, why, and what to do.

    `action` completes "cannot …", as in `read`. What the reader of a file cannot understand is a
    `LedgerError`, as for a file of this machine.
    """
    text = str(error)
    what = f"cannot {action} {place}"
    if isinstance(error, FileNotFoundError):
        return LedgerError(
            f"{what}: it does not exist",
            remedy="check the address; if it existed a moment ago, something deletes ledgers",
        )
    for cause in _CAUSES:
        if is_url(place) and re.search(cause.pattern, text):
            why = cause.why.format(bucket_of(place))
            service = "" if cause.kind is UnreachableError or "{}" in cause.why else _quote(text)
            return cause.kind(f"{what}: {why}{service}", remedy=_adapt(cause.remedy, place))
    return SystemFailure(
        f"{what}: {text:.{_LONGEST}}",
        remedy="check the address, the credentials and AWS_ENDPOINT_URL; or copy the run's folder",
    )


def is_understood(error: Exception) -> bool:
    """Whether a failure is one of the file system, and not of the content of a file."""
    return isinstance(error, FileNotFoundError) or any(
        re.search(cause.pattern, str(error)) for cause in _CAUSES
    )


def _quote(text: str) -> str:
    """Return what the service itself said, if it said so."""
    found = re.search(r"AWS Error (\w+) during (\w+) operation", text)
    return f" ({found[1]} in {found[2]})" if found else ""


def _adapt(remedy: str, place: str) -> str:
    """Return a remedy without words about S3, for other file systems."""
    if place.partition(":")[0] in S3_SCHEMES or "AWS_" not in remedy:
        return remedy
    return "check the address and the permissions"
