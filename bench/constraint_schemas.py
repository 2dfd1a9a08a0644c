"""Ten large JSON Schemas, written after kinds that people use: documents, configurations, records, lists of tools."""

from collections.abc import Callable, Mapping
from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
SHORT: Schema = {"type": "string", "minLength": 1, "maxLength": 80}
FLAG: Schema = {"type": "boolean"}
COUNT: Schema = {"type": "integer", "minimum": 0}
PRICE: Schema = {"type": "number", "minimum": 0, "multipleOf": 0.01}
DAY: Schema = {"type": "string", "format": "date"}
TIME: Schema = {"type": "string", "format": "date-time"}
URI: Schema = {"type": "string", "format": "uri"}
LABELS: Schema = {"type": "object", "additionalProperties": TEXT}


def schemas() -> dict[str, Schema]:
    """Return them by name."""
    makers: Mapping[str, Callable[[], Schema]] = {
        "package manifest": _manifest,
        "build pipeline": _pipeline,
        "service description": _service,
        "cluster workload": _workload,
        "invoice": _invoice,
        "patient record": _patient,
        "map features": _features,
        "event log": _events,
        "product catalogue": _catalogue,
        "two hundred tools": _tools,
    }
    return {name: make() for name, make in makers.items()}


def closed(properties: Mapping[str, Any], *required: str) -> Schema:
    """Return an object of these properties and no others; without names all are required."""
    names = list(required or properties)
    return {"type": "object", "properties": dict(properties), "required": names, "additionalProperties": False}


def listed(items: Schema, least: int = 0) -> Schema:
    """Return a list of such items."""
    return {"type": "array", "items": items, "minItems": least}


def named(name: str) -> Schema:
    """Return a reference to a definition."""
    return {"$ref": f"#/$defs/{name}"}


def _manifest() -> Schema:
    version = {"type": "string", "pattern": r"^[~^]?\d{1,4}\.\d{1,4}\.\d{1,4}(-[a-z0-9.]{1,20})?$"}
    person = closed({"name": SHORT, "email": {"type": "string", "format": "email"}, "url": URI}, "name")
    sections = {
        f"{kind}Dependencies": {"type": "object", "additionalProperties": version} for kind in ("", "dev", "peer")
    }
    tools = {f"tool{index}": closed({f"option{i}": TEXT for i in range(12)}, "option0") for index in range(30)}
    facts = {"name": {"type": "string", "pattern": "^[a-z][a-z0-9-]{0,60}$"}, "version": version, "license": SHORT}
    people = {"author": person, "maintainers": listed(person), "keywords": listed(SHORT), "private": FLAG}
    return closed({**facts, **people, **sections, **tools, "scripts": LABELS}, "name", "version")


def _pipeline() -> Schema:
    step = {
        "anyOf": [
            closed({"run": TEXT, "shell": {"enum": ["bash", "sh", "python"]}, "env": LABELS, "name": SHORT}, "run"),
            closed({"uses": TEXT, "with": LABELS, "name": SHORT, "timeout": COUNT}, "uses"),
        ]
    }
    filters = closed({"branches": listed(TEXT), "tags": listed(TEXT), "paths": listed(TEXT)}, "branches")
    events: Schema = dict.fromkeys(("push", "pull_request", "release", "schedule", "deployment", "issues"), filters)
    job = closed(
        {
            "runs-on": {"anyOf": [TEXT, listed(TEXT, 1)]},
            "needs": listed(TEXT),
            "strategy": closed({"matrix": {"type": "object", "additionalProperties": listed(TEXT)}, "fail-fast": FLAG}),
            "steps": listed(named("step"), 1),
            "permissions": closed(
                {f"scope{index}": {"enum": ["read", "write", "none"]} for index in range(20)}, "scope0"
            ),
        },
        "runs-on",
        "steps",
    )
    jobs = {"type": "object", "additionalProperties": named("job"), "minProperties": 1}
    return {**closed({"name": SHORT, "on": closed(events, "push"), "jobs": jobs}), "$defs": {"step": step, "job": job}}


def _service() -> Schema:
    value = {
        "anyOf": [
            closed({"type": {"const": "string"}, "maxLength": COUNT, "enum": listed(TEXT)}, "type"),
            closed({"type": {"enum": ["integer", "number"]}, "minimum": {"type": "number"}}, "type"),
            closed({"type": {"const": "array"}, "items": named("value")}),
            closed(
                {"type": {"const": "object"}, "properties": {"type": "object", "additionalProperties": named("value")}}
            ),
            closed({"$ref": {"type": "string", "pattern": "^#/components/schemas/[A-Za-z]{1,40}$"}}),
        ]
    }
    body = closed({"content": {"type": "object", "additionalProperties": closed({"schema": named("value")})}})
    parameter = closed({"name": SHORT, "in": {"enum": ["query", "path", "header"]}, "schema": named("value")})
    responses = {"type": "object", "patternProperties": {r"^[1-5]\d\d$": body}, "additionalProperties": False}
    operation = closed({"operationId": SHORT, "parameters": listed(parameter), "responses": responses}, "responses")
    methods = closed(dict[str, Any].fromkeys(("get", "put", "post", "delete", "patch", "head"), operation), "get")
    paths = {"type": "object", "patternProperties": {"^/": methods}, "additionalProperties": False}
    return {**closed({"info": closed({"title": SHORT, "version": SHORT}), "paths": paths}), "$defs": {"value": value}}


def _workload() -> Schema:
    quantity = {"type": "string", "pattern": r"^\d{1,6}(m|Ki|Mi|Gi)?$"}
    resources = closed({"limits": closed({"cpu": quantity, "memory": quantity})})
    probe = closed({"httpGet": closed({"path": TEXT, "port": COUNT}), "periodSeconds": COUNT}, "httpGet")
    volumes = [closed({"name": SHORT, f"source{index}": closed({"path": TEXT, "mode": COUNT})}) for index in range(30)]
    container = closed(
        {
            "name": {"type": "string", "pattern": "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"},
            "image": TEXT,
            "args": listed(TEXT),
            "env": listed(closed({"name": SHORT, "value": TEXT})),
            "ports": listed(closed({"containerPort": {"type": "integer", "minimum": 1, "maximum": 65535}})),
            "resources": resources,
            "livenessProbe": probe,
            "readinessProbe": probe,
        },
        "name",
        "image",
    )
    containers = {"containers": listed(container, 1), "initContainers": listed(container)}
    pod = closed({**containers, "volumes": listed({"anyOf": volumes})}, "containers")
    metadata = closed({"name": SHORT, "labels": LABELS, "annotations": LABELS}, "name")
    spec = closed({"replicas": COUNT, "selector": LABELS, "template": closed({"metadata": metadata, "spec": pod})})
    return closed(
        {"apiVersion": {"const": "apps/v1"}, "kind": {"const": "Deployment"}, "metadata": metadata, "spec": spec}
    )


def _invoice() -> Schema:
    country = {"enum": [f"{first}{second}" for first in "ABCDEFGHIJKL" for second in "ABCDEFGHIJKLMNOPQRST"]}
    address = closed({"street": SHORT, "city": SHORT, "zip": SHORT, "country": country})
    party = closed({"name": SHORT, "taxId": {"type": "string", "pattern": "^[A-Z]{2}[0-9]{9,12}$"}, "address": address})
    tax = closed({"rate": {"type": "number", "minimum": 0, "maximum": 100}, "amount": PRICE})
    line = closed(
        {"sku": SHORT, "text": TEXT, "quantity": COUNT, "unitPrice": PRICE, "taxes": listed(tax)}, "sku", "quantity"
    )
    extra = {f"field{index}": {"anyOf": [SHORT, PRICE, DAY, {"type": "null"}]} for index in range(60)}
    parts = {"number": SHORT, "issued": DAY, "due": DAY, "seller": party, "buyer": party, "lines": listed(line, 1)}
    return closed(
        {**parts, **extra, "total": PRICE, "currency": {"enum": ["EUR", "USD", "GBP", "JPY"]}}, *parts, "total"
    )


def _patient() -> Schema:
    definitions: dict[str, Schema] = {
        "coding": closed({"system": URI, "code": SHORT, "display": TEXT}, "code"),
        "period": closed({"start": TIME, "end": TIME}, "start"),
        "quantity": closed({"value": {"type": "number"}, "unit": SHORT}),
    }
    for index in range(60):
        before = named(f"resource{index - 1}") if index else named("coding")
        parts = {"id": {"type": "string", "format": "uuid"}, "code": named("coding"), "period": named("period")}
        values = {f"value{each}": {"anyOf": [TEXT, named("quantity"), FLAG]} for each in range(8)}
        kind = {"resourceType": {"const": f"Resource{index}"}}
        definitions[f"resource{index}"] = closed({**kind, **parts, **values, "partOf": before}, "resourceType", "id")
    resources = {"oneOf": [named(f"resource{index}") for index in range(60)]}
    return {**closed({"resourceType": {"const": "Bundle"}, "entry": listed(resources)}), "$defs": definitions}


def _features() -> Schema:
    place: Schema = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 3}
    coordinates: Schema = place
    shapes: list[Schema] = []
    for kind in ("Point", "LineString", "Polygon", "MultiPolygon"):
        shapes.append(closed({"type": {"const": kind}, "coordinates": coordinates}))
        coordinates = listed(coordinates, 1)
    styles = {f"style{index}": {"anyOf": [{"type": "number"}, TEXT, {"type": "null"}]} for index in range(150)}
    feature = closed(
        {"type": {"const": "Feature"}, "geometry": {"oneOf": shapes}, "properties": closed(styles, "style0")}
    )
    return closed({"type": {"const": "FeatureCollection"}, "features": listed(feature)})


def _events() -> Schema:
    def event(index: int) -> Schema:
        facts = {f"fact{each}": [SHORT, COUNT, TIME, FLAG][each % 4] for each in range(index % 17 + 3)}
        return closed({"kind": {"const": f"event.{index}"}, "at": TIME, **facts}, "kind", "at", "fact0")

    return closed({"source": SHORT, "events": listed({"oneOf": [event(index) for index in range(150)]})})


def _catalogue() -> Schema:
    sizes = {"enum": [f"{width}x{height}" for width in range(20, 60) for height in range(20, 30)]}
    colours = {"enum": [f"colour-{index:03}" for index in range(500)]}
    variant = closed(
        {"sku": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{6}$"}, "size": sizes, "colour": colours, "price": PRICE}
    )
    rating = {"type": "number", "minimum": 0, "maximum": 5}
    product = closed(
        {"id": {"type": "string", "format": "uuid"}, "title": SHORT, "variants": listed(variant, 1), "rating": rating}
    )
    return closed({"products": listed(product), "updated": TIME})


def _tools() -> Schema:
    def call(index: int) -> Schema:
        arguments = {
            f"argument{each}": [TEXT, COUNT, {"enum": ["low", "high"]}][each % 3] for each in range(index % 7 + 1)
        }
        return closed({"name": {"const": f"tool_{index}"}, "arguments": closed(arguments, "argument0")})

    return {"anyOf": [call(index) for index in range(200)]}
