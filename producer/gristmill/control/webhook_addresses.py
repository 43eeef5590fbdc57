"""Where webhooks may go: never to an address that only this network can reach.

A URL is looked at when it is given, and again, with every address of its name, at each attempt.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

import httpx2

from gristmill.errors import UsageError
from gristmill.settings import Settings, items_of

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

MAX_URL_CHARS = 2048
_DEFAULT_PORTS = {"http": 80, "https": 443}
#: Names that no public name server knows.
_PRIVATE_SUFFIXES = ("localhost", "local", "internal", "home.arpa", "lan", "intranet", "corp")
#: A top-level domain; what begins with a digit may be read as an address (`127.1`, `0x7f.1`).
_LAST_LABEL = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
_LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST = re.compile(rf"{_LABEL}(\.{_LABEL})*")

#: Not reachable from everywhere, or a way to something that is not: RFC 6890 and its successors,
#: the translations of RFC 6052 and RFC 8215, tunnels. Python's `is_global` has some of them only.
_NEVER = tuple(
    ipaddress.ip_network(text)
    for text in (
        *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16"),
        *("172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16"),
        *("198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4"),
        *("::ffff:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "2001::/23"),
        *("2001:db8::/32", "2002::/16", "3fff::/20", "fc00::/7", "fe80::/10", "ff00::/8"),
    )
)
#: All that is given out for use between networks.
_GLOBAL_UNICAST_V6 = IPv6Network("2000::/3")


class UrlRefused(UsageError):
    """Nothing is sent there. The message says what a URL has to be like, never what was found."""


class AddressRefused(UsageError):
    """The name leads to where nothing is sent."""


@dataclass(frozen=True, slots=True)
class AddressPolicy:
    """`allowed` are the networks that the operator opened: plain HTTP, any port, IP addresses."""

    allowed: tuple[Network, ...] = ()
    ports: frozenset[int] = frozenset({443})

    @classmethod
    def of(cls, settings: Settings) -> AddressPolicy:
        return cls(
            tuple(map(ipaddress.ip_network, items_of(settings.webhook_allowed_networks))),
            frozenset(map(int, items_of(settings.webhook_ports))),
        )

    def check_url(self, text: str) -> httpx2.URL:
        """The URL with its host in ASCII. Raises UrlRefused."""
        url = _parse(text)
        if url is None or not self._may_be_good(url):
            ports = ", ".join(map(str, sorted(self.ports)))
            raise UrlRefused(
                f"A webhook URL is https://name/path with a public name, on port {ports}, without "
                f"user, password and fragment, and has at most {MAX_URL_CHARS} characters"
            )
        return url

    def check_addresses(self, addresses: Iterable[str], url: httpx2.URL) -> list[str]:
        """All of them, unless there is one to which nothing is sent: AddressRefused."""
        found = [_as_address(text) for text in addresses]
        is_public_url = url.scheme == "https" and port_of(url) in self.ports
        for address in found:
            if address is None or not (
                self._is_allowed(address) or (is_public_url and is_public(address))
            ):
                raise AddressRefused("The name leads to where no webhook is sent.")
        return [str(address) for address in found]

    def _is_allowed(self, address: Address) -> bool:
        return any(address in network for network in self.allowed)

    def _may_be_good(self, url: httpx2.URL) -> bool:
        """As far as the URL alone can tell. Where networks are opened, its name decides later."""
        host = _host_of(url)
        address = _as_address(host)
        if address is not None:
            return self._is_allowed(address)
        if not _HOST.fullmatch(host) or not _LAST_LABEL.fullmatch(host.rpartition(".")[2]):
            return False
        is_private_name = "." not in host or host.endswith(
            tuple(f".{suffix}" for suffix in _PRIVATE_SUFFIXES)
        )
        is_public_url = url.scheme == "https" and port_of(url) in self.ports
        return bool(self.allowed) or (is_public_url and not is_private_name)


def is_public(address: Address) -> bool:
    """Whether it is the same machine seen from anywhere."""
    if isinstance(address, IPv6Address) and address not in _GLOBAL_UNICAST_V6:
        return False
    return address.is_global and not any(address in network for network in _NEVER)


def port_of(url: httpx2.URL) -> int:
    return url.port or _DEFAULT_PORTS[url.scheme]


def _parse(text: str) -> httpx2.URL | None:
    """None for what is no absolute HTTP URL, or has parts that nobody should send."""
    if len(text) > MAX_URL_CHARS or not text.isprintable() or " " in text:
        return None
    try:
        url = httpx2.URL(text)
        is_whole = bool(_host_of(url)) and url.port != 0
    except (httpx2.InvalidURL, UnicodeError, ValueError):
        return None
    is_plain = not (url.userinfo or url.fragment or "#" in text)
    return url if is_whole and is_plain and url.scheme in _DEFAULT_PORTS else None


def _host_of(url: httpx2.URL) -> str:
    return url.raw_host.decode("ascii").lower().rstrip(".")


def _as_address(text: str) -> Address | None:
    """None for a name, and for an address with a zone, which only this machine knows."""
    try:
        return ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        return None
