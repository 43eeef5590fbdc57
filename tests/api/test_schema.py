"""Schemathesis over the OpenAPI document: no fault, no answer that the document does not have."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from house import House, document

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,"
    "response_schema_conformance,response_headers_conformance,unsupported_method,ignored_auth,"
    "negative_data_rejection"
)


@pytest.mark.parametrize(
    ("phases", "max_examples"),
    [
        # Each operation a few times in the default run, all values at their limits in the long.
        ("fuzzing", "2"),
        pytest.param("coverage,fuzzing", "25", marks=pytest.mark.slow),
    ],
)
def test_schemathesis_finds_nothing(
    house: House, tmp_path: Path, phases: str, max_examples: str
) -> None:
    program = "from schemathesis.cli import schemathesis; schemathesis()"
    options = ["--max-examples", max_examples, "--phases", phases, "--checks", CHECKS]
    done = subprocess.run(
        [
            *(sys.executable, "-c", program, "run", f"{house.service.url}/openapi.json"),
            *("-H", f"Authorization: Bearer {house.key('schema')}"),
            *options,
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=280,
    )

    assert done.returncode == 0, done.stdout[-6000:]


def test_the_document_names_every_object_and_needs_no_key(house: House) -> None:
    with house.http(headers={}) as http:
        found = document(http.get("/openapi.json"))
        answer = http.put("/v1/files")

    schemas = found["components"]["schemas"]
    assert {"FileObject", "BatchObject", "ModelObject", "ErrorObject", "BatchRequest"} <= set(
        schemas
    )
    required = {"id", "object", "status", "request_counts", "errors", "metadata"}
    assert required <= set(schemas["BatchObject"]["properties"])
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, POST")
