"""Writes the options of agent and scheduler into the schema of the chart's values, from
agent.model.settings; `--check` only compares.

    python deploy/schema.py [--check]
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from typing import Any, Final

import msgspec

from agent.cli import config as chart
from agent.model.settings import options
from agent.model.settings.agent import AgentSettings
from agent.model.settings.options import Options
from agent.model.settings.scheduler import SchedulerSettings

SCHEMA: Final = pathlib.Path(__file__).resolve().parent / "chart" / "values.schema.json"
_DEFINITIONS: Final[dict[str, type[Options]]] = {
    "settings": AgentSettings,
    "schedulerSettings": SchedulerSettings,
}
_DECIMAL: Final = r"^[0-9]+[.][0-9]+$"


def definition(kind: type[Options]) -> dict[str, Any]:
    """The options of a process that the chart's users may set."""
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            each.encode_name: _property(each.type)
            for each in sorted(options.options(kind), key=lambda each: each.encode_name)
            if each.encode_name not in chart.OWN_OPTIONS
        },
    }


def _property(kind: msgspec.inspect.Type) -> dict[str, Any]:
    if isinstance(kind, msgspec.inspect.Metadata):
        described = (kind.extra_json_schema or {}).get("description")
        return _property(kind.type) | ({"description": described} if described else {})
    match kind:
        case msgspec.inspect.BoolType():
            # `helm --set-string` gives the words.
            return {"enum": [True, False, "true", "false"]}
        case msgspec.inspect.IntType():
            return {"type": "integer", **_bounds(kind)}
        case msgspec.inspect.FloatType():
            # `helm --set` gives a number with a point as a text, to which bounds do not apply.
            return {"type": ["number", "string"], "pattern": _DECIMAL, **_bounds(kind)}
    if values := options.choices(kind):
        return {"enum": list(values)}
    assert isinstance(kind, msgspec.inspect.StrType), kind
    limits = {"minLength": kind.min_length, "pattern": kind.pattern}
    if limited := {name: value for name, value in limits.items() if value is not None}:
        return {"type": "string", **limited}
    # YAML reads a list with one CPU as a number.
    return {"type": ["string", "integer"]}


def _bounds(kind: msgspec.inspect.IntType | msgspec.inspect.FloatType) -> dict[str, float]:
    bounds = {
        "minimum": kind.ge,
        "exclusiveMinimum": kind.gt,
        "maximum": kind.le,
        "exclusiveMaximum": kind.lt,
    }
    return {name: value for name, value in bounds.items() if value is not None}


def text(schema: str) -> str:
    """The schema with the options as they are declared; all else as it is."""
    found = json.loads(schema)
    found["$defs"] |= {name: definition(kind) for name, kind in _DEFINITIONS.items()}
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def main() -> int:
    """Exit code 1 when `--check` finds the schema out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    present = SCHEMA.read_text()
    wanted = text(present)
    if not check:
        SCHEMA.write_text(wanted)
    elif wanted != present:
        print("deploy/chart/values.schema.json is out of date: python deploy/schema.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
