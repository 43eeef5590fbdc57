"""A new key goes into AWS Secrets Manager, and nowhere else."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pytest
from click.testing import Result
from typer.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parents[1] / "services"))

from aws_server import REGION, AwsServer
from aws_server import aws as aws

from gristmill.api.key_text import parse_key_text
from gristmill.cli import app
from gristmill.cli.failures import ExitCode

Gristmill = Callable[..., Result]


@pytest.fixture
def gristmill(aws: AwsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gristmill:
    """`gristmill keys …` in a ledger of its own, with credentials for the server."""
    environ = {
        "AWS_ENDPOINT_URL_SECRETS_MANAGER": aws.url,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "GRISTMILL_LEDGER": f"sqlite:///{tmp_path / 'ledger.sqlite'}",
        "GRISTMILL_KEY_PEPPER": "p" * 40,
    }
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    return lambda *words: CliRunner().invoke(app, ["keys", *words])


def test_a_key_is_put_into_a_secret_and_not_printed(gristmill: Gristmill, aws: AwsServer) -> None:
    secrets, name = aws.client("secretsmanager"), f"mill-{uuid4().hex}/first-key"
    secrets.create_secret(Name=name)

    made = gristmill("create", "--name", "first", "--to-secret", name)

    key = parse_key_text(secrets.get_secret_value(SecretId=name)["SecretString"])
    assert made.exit_code == 0 and key is not None
    assert made.stdout == f"The key {key.id} is in the secret {name}.\n"
    assert key.secret not in made.output
    assert key.id in gristmill("list", "--quiet").stdout


def test_a_key_that_could_not_be_handed_over_is_revoked(gristmill: Gristmill) -> None:
    made = gristmill("create", "--to-secret", "nowhere")

    assert made.exit_code == ExitCode.USAGE
    assert "writing 'nowhere' failed" in made.stderr and "ResourceNotFound" in made.stderr
    assert "gm_" not in made.output
    (listed,) = gristmill("list").stdout.splitlines()
    assert json.loads(listed)["revoked_at"] is not None
