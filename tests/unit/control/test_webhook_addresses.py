"""Where webhooks may go: the list of ways into a private network, each of them closed."""

from __future__ import annotations

import ipaddress

import pytest

from gristmill.control.webhook_addresses import (
    AddressPolicy,
    AddressRefused,
    UrlRefused,
    is_public,
)
from gristmill.settings import Settings

PUBLIC = AddressPolicy()
OPENED = AddressPolicy.of(Settings(webhook_allowed_networks="10.1.0.0/16, 127.0.0.0/8, fd00::/8"))


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com/hook",
        "https://example.com:443/hook?x=1",
        "https://hooks.example.co.uk",
        "https://b\u00fccher.example/h",
        "https://EXAMPLE.com/%7Ex",
    ],
)
def test_a_url_of_a_public_name_is_taken(url: str) -> None:
    assert PUBLIC.check_url(url).raw_host.isascii()


@pytest.mark.parametrize(
    "url",
    [
        *("http://example.com/", "ftp://example.com/", "file:///etc/passwd", "example.com", ""),
        *("https://example.com:8080/", "https://example.com:22/", "https://example.com:0/"),
        *("https://user@example.com/", "https://user:word@example.com/"),
        *("https://example.com/#part", "https://example.com/a b", "https://exa\nmple.com/"),
        *("https://", "https:///x", "https://localhost/", "https://LOCALHOST./", "https://db/"),
        *("https://a.localhost/", "https://printer.local/", "https://metadata.google.internal/"),
        *("https://127.0.0.1/", "https://1.1.1.1/", "https://169.254.169.254/latest/meta-data"),
        *("https://127.1/", "https://2130706433/", "https://0x7f.1/", "https://0177.0.0.1/"),
        *("https://0x7f000001/", "https://[::1]/", "https://[::ffff:127.0.0.1]/"),
        *("https://[64:ff9b::7f00:1]/", "https://[fe80::1%25eth0]/", "https://\u2460.\u2460/"),
        *("https://\uff11\uff12\uff17.0.0.1/", "https://exa_mple..com/", "https://-x.com/"),
        "https://example.com/" + "x" * 2048,
    ],
)
def test_a_url_of_anything_else_is_refused_with_one_text(url: str) -> None:
    with pytest.raises(UrlRefused, match="https://name/path with a public name") as refusal:
        PUBLIC.check_url(url)
    with pytest.raises(UrlRefused) as other:
        PUBLIC.check_url("https://localhost/")

    assert str(refusal.value) == str(other.value)


@pytest.mark.parametrize(
    "address",
    [
        *("0.0.0.0", "10.0.0.1", "100.64.0.1", "127.0.0.1", "127.255.255.254", "169.254.169.254"),
        *("172.16.0.1", "172.31.255.255", "192.0.0.1", "192.0.2.1", "192.88.99.1", "192.168.1.1"),
        *("198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "240.0.0.1"),
        *("255.255.255.255", "::", "::1", "::7f00:1", "::ffff:127.0.0.1", "::ffff:8.8.8.8"),
        *("64:ff9b::a00:1", "64:ff9b::808:808", "64:ff9b:1::1", "100::1", "2001::1", "2001:db8::1"),
        *("2002:7f00:1::", "2002:a00:1::1", "3fff::1", "fc00::1", "fd12::1", "fe80::1", "fec0::1"),
        *("ff02::1", "4000::1"),
    ],
)
def test_an_address_that_is_not_the_same_from_everywhere_is_refused(address: str) -> None:
    url = PUBLIC.check_url("https://example.com/")

    assert not is_public(ipaddress.ip_address(address))
    with pytest.raises(AddressRefused):
        PUBLIC.check_addresses([address], url)
    with pytest.raises(AddressRefused):
        PUBLIC.check_addresses(["93.184.216.34", address], url)


@pytest.mark.parametrize("address", ["93.184.216.34", "1.1.1.1", "2606:4700::1111", "2a00::1"])
def test_an_address_of_everybody_is_taken(address: str) -> None:
    url = PUBLIC.check_url("https://example.com/")

    assert PUBLIC.check_addresses([address], url) == [address]


def test_what_is_no_address_is_none() -> None:
    url = PUBLIC.check_url("https://example.com/")

    for text in ("", "example.com", "1.2.3.4.5", "fe80::1%eth0"):
        with pytest.raises(AddressRefused):
            PUBLIC.check_addresses([text], url)


def test_an_operator_opens_networks_for_http_and_any_port_and_nothing_more() -> None:
    literal = OPENED.check_url("http://127.0.0.1:9000/hook")
    named = OPENED.check_url("http://hooks.internal:9000/")
    public = OPENED.check_url("https://example.com/")

    assert OPENED.check_addresses(["127.0.0.1"], literal) == ["127.0.0.1"]
    assert OPENED.check_addresses(["10.1.2.3", "fd00::1"], named) == ["10.1.2.3", "fd00::1"]
    assert OPENED.check_addresses(["10.1.2.3"], public) == ["10.1.2.3"]
    for url in (literal, named, public):
        for address in ("10.2.0.1", "169.254.169.254", "::1", "::ffff:127.0.0.1"):
            with pytest.raises(AddressRefused):
                OPENED.check_addresses([address], url)
    with pytest.raises(AddressRefused):  # the world hears nothing in plain text
        OPENED.check_addresses(["93.184.216.34"], named)
    for text in ("http://10.2.0.1/", "http://[::1]/", "ftp://127.0.0.1/", "http://u@127.0.0.1/"):
        with pytest.raises(UrlRefused):
            OPENED.check_url(text)


def test_an_operator_opens_ports() -> None:
    policy = AddressPolicy.of(Settings(webhook_ports="443, 8443"))
    url = policy.check_url("https://example.com:8443/")

    assert policy.check_addresses(["93.184.216.34"], url) == ["93.184.216.34"]
    with pytest.raises(UrlRefused, match="443, 8443"):
        policy.check_url("https://example.com:8080/")


@pytest.mark.parametrize(
    "wrong",
    [
        {"webhook_allowed_networks": "10.0.0.0/33"},
        {"webhook_allowed_networks": "10.0.0.1/8"},
        {"webhook_allowed_networks": "localhost"},
        {"webhook_ports": "0"},
        {"webhook_ports": "https"},
        {"webhook_ports": "70000"},
    ],
)
def test_settings_that_name_no_network_or_port_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Settings(**wrong)
