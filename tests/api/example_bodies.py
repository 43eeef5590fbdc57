"""Bodies that the OpenAPI document allows, so requests are refused for what a test is about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def example_body(spec: Mapping[str, Any], operation: Mapping[str, Any]) -> Any:
    """The smallest JSON body of an operation; None where it takes none, or a form."""
    content = operation.get("requestBody", {}).get("content", {})
    if "application/json" not in content:
        return None
    return example(spec, content["application/json"]["schema"])


def example(spec: Mapping[str, Any], schema: Mapping[str, Any]) -> Any:
    """A value of a schema with what is required, and no more."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return example(spec, spec["components"]["schemas"][name])
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            return example(spec, schema[several][0])
    if "default" in schema:
        return schema["default"]
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "object":
            properties = schema.get("properties", {})
            return {name: example(spec, properties[name]) for name in schema.get("required", ())}
        case "array":
            return [example(spec, schema["items"])] * schema.get("minItems", 1)
        case "integer" | "number":
            return schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
        case "boolean":
            return True
    is_url = schema.get("format") == "uri"
    return "https://example.com/" if is_url else "x" * max(schema.get("minLength", 1), 1)
