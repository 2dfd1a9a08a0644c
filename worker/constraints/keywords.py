"""Which keywords of JSON Schema are enforced, which say nothing about a value, and which are refused by name."""

# Each holds one schema; `items` may also hold a list of them.
ONE_SCHEMA = frozenset({"additionalProperties", "additionalItems", "items"})
LIST_OF_SCHEMAS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
MAP_OF_SCHEMAS = frozenset({"properties", "patternProperties"})
COUNTS = frozenset({"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"})
BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
VALUES = frozenset({"$ref", "const", "enum", "type", "required", "pattern", "format"})

SUPPORTED = ONE_SCHEMA | LIST_OF_SCHEMAS | MAP_OF_SCHEMAS | COUNTS | BOUNDS | VALUES

# They restrict what fits, or where a reference leads, in some version of JSON Schema or in OpenAPI. A name that no
# version knows is an annotation, as the standard has it, and ignored.
UNSUPPORTED = frozenset({
    "$dynamicAnchor", "$dynamicRef", "$recursiveAnchor", "$recursiveRef", "contains", "dependencies",
    "dependentRequired", "dependentSchemas", "disallow", "divisibleBy", "else", "extends", "if", "maxContains",
    "minContains", "not", "nullable", "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties",
    "uniqueItems",
})  # fmt: skip

# Said of a keyword that is not enforced, this asks for nothing.
HARMLESS = frozenset({
    ("nullable", False), ("unevaluatedItems", True), ("unevaluatedProperties", True), ("uniqueItems", False),
})  # fmt: skip

TYPES = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})

FORMATS = frozenset({
    "date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri", "uuid",
})  # fmt: skip

DRAFTS = frozenset({
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema",
    "http://json-schema.org/draft-06/schema",
    "http://json-schema.org/draft-04/schema",
})  # fmt: skip
