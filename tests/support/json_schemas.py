"""The installed schemas, read so that a test notices each member that a schema does not describe."""

import json
import os

import jsonschema


def load_schema(folder, name):
    with open(os.path.join(folder, name), encoding="utf-8") as file:
        schema = json.load(file)
    jsonschema.Draft7Validator.check_schema(schema)
    return schema


def strict(schema):
    """A copy that takes no other members. The files themselves do, because later versions may add members."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    copy = {key: strict(part) for key, part in schema.items()}
    if isinstance(schema.get("properties"), dict):
        copy.setdefault("additionalProperties", False)
    return copy
