"""Puts a new API key into AWS Secrets Manager, so that it stands in no log and on no screen."""

from __future__ import annotations

from typing import Any

from gristmill.errors import UsageError


def put_secret(secret_id: str, text: str) -> None:
    """Make `text` the value of a secret that exists, named by its name or ARN.

    Credentials and region are those of boto3. Raises UsageError, with what Secrets Manager says.
    """
    try:
        from gristmill.aws import AWS_ERRORS, aws_session, client_config, explain, parse_aws_url
    except ImportError as error:
        raise UsageError("AWS needs boto3: pip install 'gristmill[server]'.") from error
    where = parse_aws_url("secretsmanager://", choices={}, attempts=3, timeout_s=10.0)
    session = aws_session()
    make: Any = session.client  # its types know the services that we have stubs of
    try:
        client = make("secretsmanager", config=client_config(where, session))
        client.put_secret_value(SecretId=secret_id, SecretString=text)
    except AWS_ERRORS as error:
        trouble = explain(error, where="AWS Secrets Manager", doing=f"writing {secret_id!r}")
        raise UsageError(trouble.message) from error
