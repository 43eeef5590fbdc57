"""Clients of AWS, and of servers that speak its protocols, and what their errors mean in words.

Knows neither Store nor Queue. Credentials come from boto3's own chain (environment, files, role of
the machine), never from a URL: URLs are logged.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal, cast
from urllib.parse import parse_qsl, urlsplit

import boto3
import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.loaders import Loader, create_loader

from gristmill.errors import UsageError

#: What botocore raises; nothing else is let through to callers as it is.
AWS_ERRORS = (BotoCoreError, ClientError)

CONNECT_TIMEOUT_S = 5.0
_COMMON_PARAMETERS = ("endpoint", "region", "retries", "attempts", "timeout_s")


@dataclass(frozen=True, slots=True)
class AwsUrl:
    """`scheme://name/path?endpoint=…&region=…&retries=…&attempts=…&timeout_s=…` taken apart."""

    name: str
    path: str
    #: None: AWS itself, or what the AWS_ENDPOINT_URL variables say.
    endpoint: str | None
    region: str | None
    #: `adaptive` also slows its own requests down while the server throttles.
    retries: Literal["standard", "adaptive"]
    #: How often one request is sent at most; the waits between grow up to 20 s.
    attempts: int
    #: How long the server may be silent before a request counts as failed.
    timeout_s: float
    #: Parameters that belong to one service.
    extra: Mapping[str, str]


def parse_aws_url(
    url: str, *, choices: Mapping[str, Collection[str]], attempts: int, timeout_s: float
) -> AwsUrl:
    """Raises UsageError. `choices` are the service's own parameters with the values they take.

    `attempts` and `timeout_s` are what holds where the URL does not say.
    """
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise UsageError(
            f"A {parts.scheme}:// URL carries no credentials, because URLs are logged. Set "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or use a profile or a role."
        )
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    known = [*_COMMON_PARAMETERS, *choices]
    for name, value in given.items():
        if name not in known:
            raise UsageError(f"{name!r} is no parameter of {url}. Known: {', '.join(known)}.")
        if name in choices and value not in choices[name]:
            raise UsageError(f"{name}={value!r} in {url}: one of {', '.join(choices[name])}.")
    endpoint = given.get("endpoint")
    if endpoint is not None and not _is_endpoint(endpoint):
        raise UsageError(
            f"endpoint={endpoint!r} in {url}: give a server, such as http://127.0.0.1:9000."
        )
    retries = given.get("retries", "standard")
    if retries not in ("standard", "adaptive"):
        raise UsageError(f"retries={retries!r} in {url}: one of standard, adaptive.")
    return AwsUrl(
        name=parts.netloc,
        path=parts.path.strip("/"),
        endpoint=endpoint,
        region=given.get("region"),
        retries=cast(Literal["standard", "adaptive"], retries),
        attempts=int(_number(url, "attempts", given.get("attempts", attempts), least=1)),
        timeout_s=_number(url, "timeout_s", given.get("timeout_s", timeout_s), least=1),
        extra={name: value for name, value in given.items() if name in choices},
    )


def _is_endpoint(endpoint: str) -> bool:
    parts = urlsplit(endpoint)
    return parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.path.strip("/")


def _number(url: str, name: str, text: str | float, *, least: float) -> float:
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not least <= number < 1e6:
        raise UsageError(f"{name}={text!r} in {url}: a number from {least:g} on.")
    return number


def aws_session() -> boto3.session.Session:
    """A session of its own: the default one is shared with whatever else runs in the process."""
    core = botocore.session.Session()
    core.register_component("data_loader", _data_loader())
    return boto3.session.Session(botocore_session=core)


@cache
def _data_loader() -> Loader:
    """Keeps the descriptions of services: reading one takes 0.1 s."""
    return create_loader()


def client_config(url: AwsUrl, session: boto3.session.Session) -> Config:
    """Timeouts, retries and region. Requests are retried by botocore alone, never around it."""
    region = url.region or session.region_name
    if region is None and url.endpoint is not None:
        region = "us-east-1"  # signatures need one, most servers that are not AWS look at none
    return Config(
        region_name=region,
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=url.timeout_s,
        retries={"mode": url.retries, "total_max_attempts": url.attempts},
        max_pool_connections=32,
        tcp_keepalive=True,
        user_agent_extra="gristmill",
    )


def is_aws(endpoint: str) -> bool:
    """Whether this is AWS itself and not another server that speaks its protocol."""
    host = urlsplit(endpoint).hostname or ""
    return host.endswith((".amazonaws.com", ".amazonaws.com.cn", ".api.aws"))


@dataclass(frozen=True, slots=True)
class Trouble:
    """An error of botocore in words."""

    #: As the server names it, or the class of an error that has no reply.
    code: str
    #: What was wrong, the value seen and, where there is one, the way out.
    message: str
    retryable: bool


_CREDENTIALS = (
    "The credentials are not accepted. See that AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY "
    "(or the profile or role in use) belong to this server."
)
_NO_CREDENTIALS = (
    "There are no usable credentials. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
    "AWS_PROFILE, or give the machine a role."
)
_EXPIRED = "The credentials have expired. Renew them and start again."
_FORBIDDEN = "These credentials may not do that. Allow the action in the policy of user or role."
_CLOCK = "The clock of this machine is wrong. Set it (NTP)."
_REGION = "That is another region. Put the right one into the URL: region=…"
_SILENT = "The server does not answer. See that it runs and that its address is right."
_BUSY = "The server is overloaded or has an inner fault; it may pass."
_BROKEN = "The connection broke; it may pass."

#: What to say, by the code of a reply or the class of the error; and whether to try again.
_MEANINGS: dict[str, tuple[str, bool]] = {
    **dict.fromkeys(
        (
            "InvalidAccessKeyId",
            "SignatureDoesNotMatch",
            "InvalidToken",
            "InvalidClientTokenId",
            "UnrecognizedClientException",
            "AuthFailure",
            "IncompleteSignature",
        ),
        (_CREDENTIALS, False),
    ),
    **dict.fromkeys(
        ("NoCredentialsError", "PartialCredentialsError", "ProfileNotFound"),
        (_NO_CREDENTIALS, False),
    ),
    **dict.fromkeys(("ExpiredToken", "ExpiredTokenException", "RequestExpired"), (_EXPIRED, False)),
    **dict.fromkeys(
        ("AccessDenied", "AccessDeniedException", "AllAccessDisabled", "403"), (_FORBIDDEN, False)
    ),
    **dict.fromkeys(
        (
            "PermanentRedirect",
            "AuthorizationHeaderMalformed",
            "301",
            "IllegalLocationConstraintException",
            "InvalidRegionError",
            "NoRegionError",
        ),
        (_REGION, False),
    ),
    "RequestTimeTooSkewed": (_CLOCK, True),
    "CredentialRetrievalError": (_NO_CREDENTIALS, True),
    **dict.fromkeys(
        (
            "EndpointConnectionError",
            "ConnectTimeoutError",
            "ReadTimeoutError",
            "ProxyConnectionError",
        ),
        (_SILENT, True),
    ),
    **dict.fromkeys(
        (
            "ConnectionClosedError",
            "HTTPClientError",
            "ResponseStreamingError",
            "IncompleteReadError",
            "SSLError",
            "BadDigest",
        ),
        (_BROKEN, True),
    ),
    **dict.fromkeys(
        (
            "SlowDown",
            "Throttling",
            "ThrottlingException",
            "RequestThrottled",
            "RequestTimeout",
            "TooManyRequestsException",
            "RequestLimitExceeded",
            "429",
        ),
        (_BUSY, True),
    ),
}


def explain(error: BotoCoreError | ClientError, *, where: str, doing: str) -> Trouble:
    """What an error means: `where` is the server and place, `doing` what was asked of it."""
    if isinstance(error, ClientError):
        details = error.response.get("Error", {})
        code = details.get("Code") or "unknown"
        said = f"{code}: {details.get('Message') or 'no message'}"
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    else:
        code, said, status = type(error).__name__, str(error), 0
    busy = status >= 500 and code != "NotImplemented"
    meaning, retryable = _MEANINGS.get(code, (_BUSY if busy else "", busy))
    return Trouble(
        code, " ".join(f"{where}: {doing} failed ({said}). {meaning}".split()), retryable
    )
