"""Which service, as whom: argument, environment, profile, default. No key to the wrong place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from client_stage import says

from gristmill.client import Client, MissingApiKey
from gristmill.client.options import DEFAULT_BASE_URL, find_address, read_profiles
from gristmill.errors import UsageError

PROFILES = """
[profiles.default]
base_url = "http://default/v1"
api_key = "gm_default"
[profiles.far]
base_url = "https://far/v1"
api_key = "gm_far"
"""


@pytest.fixture
def profiles() -> Path:
    path = Path(os.environ["GRISTMILL_CONFIG"])
    path.write_text(PROFILES)
    return path


def found(**given):
    environ = given.pop("environ", {})
    address = find_address(
        environ={"GRISTMILL_CONFIG": os.environ["GRISTMILL_CONFIG"], **environ}, **given
    )
    return address.base_url.value, address.api_key.value


def test_an_argument_wins_over_the_environment_over_a_profile_over_the_default(profiles):
    environ = {"GRISTMILL_BASE_URL": "http://env/v1", "GRISTMILL_API_KEY": "gm_env"}
    openai = {"OPENAI_BASE_URL": "http://openai/v1", "OPENAI_API_KEY": "sk"}

    assert found(environ=environ | openai, base_url="http://arg/v1", api_key="gm_arg") == (
        "http://arg/v1",
        "gm_arg",
    )
    assert found(environ=environ | openai) == ("http://env/v1", "gm_env")
    assert found(environ=openai) == ("http://default/v1", "gm_default")
    assert found(environ=openai, profile="far") == ("https://far/v1", "gm_far")
    assert found(environ={"GRISTMILL_PROFILE": "far"}) == ("https://far/v1", "gm_far")
    profiles.unlink()
    assert found(environ=openai) == ("http://openai/v1", "sk")
    assert found() == (DEFAULT_BASE_URL, "")


def test_the_key_of_another_service_is_never_sent_to_the_default_url():
    assert found(environ={"OPENAI_API_KEY": "sk"}) == (DEFAULT_BASE_URL, "")
    assert found(environ={"OPENAI_API_KEY": "sk"}, base_url="http://x/v1") == ("http://x/v1", "sk")


def test_each_value_says_where_it_comes_from(profiles):
    address = find_address(environ={"GRISTMILL_CONFIG": str(profiles), "GRISTMILL_API_KEY": "k"})

    assert (address.api_key.source, address.base_url.source) == ("GRISTMILL_API_KEY", str(profiles))


def test_without_a_key_the_way_out_is_said():
    with pytest.raises(MissingApiKey, match="gristmill login"):
        Client()


@pytest.mark.parametrize(
    ("text", "words"), [("x = [", "is no TOML"), ("profiles = 3", r"no tables \[profiles")]
)
def test_a_broken_file_of_profiles_is_named(profiles, text, words):
    profiles.write_text(text)

    with pytest.raises(UsageError, match=words):
        read_profiles(profiles)


def test_a_profile_that_is_not_there_is_an_error_that_names_those_that_are(profiles):
    with pytest.raises(UsageError, match=r"no profile 'near'.*default, far"):
        found(profile="near")


@pytest.mark.parametrize("url", ["mill", "ftp://mill", "http://", ""])
def test_a_base_url_is_checked(stage, url):
    with pytest.raises(UsageError, match="base URL is"):
        stage.client().with_options(base_url=url)


def test_a_base_url_without_a_path_gets_v1(stage):
    assert stage.client(base_url="http://mill:8000/").base_url == "http://mill:8000/v1"
    assert stage.client(base_url="http://mill/api/").base_url == "http://mill/api"


def test_options_change_for_a_copy_and_headers_add_up(stage):
    stage.answers = [says({"object": "list", "data": []})]
    client = stage.client(default_headers={"X-One": "1"})
    changed = client.with_options(api_key="gm_other", default_headers={"X-Two": "2"})

    list(changed.models.list(extra_headers={"x-three": "3"}, extra_query={"q": "4"}))
    list(client.models.list())

    first, second = stage.requests
    assert [first.headers[f"x-{name}"] for name in ("one", "two", "three")] == ["1", "2", "3"]
    assert (first.headers["authorization"], first.url.params["q"]) == ("Bearer gm_other", "4")
    assert second.headers["authorization"] == "Bearer gm_key" and "x-two" not in second.headers


def test_a_key_with_a_line_feed_is_refused_without_being_shown(stage):
    with pytest.raises(UsageError) as raised:
        stage.client(api_key="gm_secret\n")

    assert "gm_secret" not in str(raised.value)
    assert "gm_key" not in repr(stage.client()._options)
