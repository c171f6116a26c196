"""SSM documents by name: those that an account made, and the one of AWS's own that runs what it is given.

A command's parameters are checked as SSM checks them: only those that the document names, each with its allowed
pattern. What a host then runs is the document's own script with the values put in.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .requests import ApiError

SHELL = "AWS-RunShellScript"
_PLUGIN = "aws:runShellScript"
_VALUE = re.compile(r"\{\{\s*(\w+)\s*\}\}")
#: As far as it matters here: AWS's own takes a script of any kind.
_AWS = {
    "schemaVersion": "2.2",
    "parameters": {
        "commands": {"type": "StringList"},
        "workingDirectory": {"type": "String", "default": ""},
        "executionTimeout": {"type": "String", "default": "3600", "allowedPattern": "([1-9][0-9]{0,4})"},
    },
    "mainSteps": [
        {
            "action": _PLUGIN,
            "name": "runShellScript",
            "inputs": {"timeoutSeconds": "{{ executionTimeout }}", "runCommand": "{{ commands }}"},
        }
    ],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What a host is to run, and for how long it may."""

    text: str
    timeout_s: float


class Documents:
    """The documents of one account and region."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[str, Any]] = {SHELL: _AWS}

    def create(self, data: dict[str, Any]) -> dict[str, Any]:
        """CreateDocument. A name is taken once."""
        if data["Name"] in self._kept:
            raise ApiError("DocumentAlreadyExists", "The specified document already exists.")
        return self.put(data["Name"], json.loads(data["Content"]))

    def put(self, name: str, content: dict[str, Any]) -> dict[str, Any]:
        """A new document, or the newest version of one, which is the one that is run."""
        if name.startswith(("AWS", "amazon", "amzn")):
            raise ApiError("ValidationException", f"{name}: names of AWS's own are not to be had.")
        if content.get("schemaVersion") != "2.2" or not content.get("mainSteps"):
            raise ApiError(
                "InvalidDocumentContent", "The simulator knows documents of schema 2.2 with steps."
            )
        for step in content["mainSteps"]:
            if step.get("action") != _PLUGIN:
                raise ApiError("InvalidDocumentContent", f"The simulator knows the action {_PLUGIN} only.")
        self._kept[name] = content
        return {"DocumentDescription": {"Name": name, "Status": "Active", "DocumentType": "Command"}}

    def delete(self, name: str) -> None:
        self._kept.pop(name, None)

    def names(self) -> list[str]:
        return sorted(self._kept)

    def script(self, name: str, given: Mapping[str, list[str]]) -> Script:
        """The document's steps with these parameters. Raises `ApiError` where SSM would refuse the command."""
        content = self._kept.get(name)
        if content is None:
            raise ApiError("InvalidDocument", f"Document with name {name} does not exist.")
        values = _checked(content.get("parameters", {}), given)
        lines: list[str] = []
        timeout_s = 0.0
        for step in content["mainSteps"]:
            inputs = step["inputs"]
            lines += _put_in(inputs["runCommand"], values)
            timeout_s += float(_put_in([inputs.get("timeoutSeconds", "3600")], values)[0])
        return Script(text="\n".join(lines), timeout_s=timeout_s)


def _checked(known: Mapping[str, dict[str, Any]], given: Mapping[str, list[str]]) -> dict[str, list[str]]:
    if strangers := sorted(set(given) - set(known)):
        raise ApiError("InvalidParameters", f"Unknown parameters: {', '.join(strangers)}.")
    values: dict[str, list[str]] = {}
    for name, about in known.items():
        said = [str(value) for value in given.get(name) or ()]
        if not said and "default" not in about:
            raise ApiError("InvalidParameters", f"Parameter {name} is required.")
        if len(said) > 1 and about.get("type") == "String":
            raise ApiError("InvalidParameters", f"Parameter {name} takes one value.")
        pattern = about.get("allowedPattern", "(?s).*")
        if not all(re.fullmatch(pattern, value) for value in said):
            raise ApiError("InvalidParameters", f"Parameter {name} does not match {pattern}.")
        values[name] = said or [str(about["default"])]
    return values


def _put_in(lines: list[str] | str, values: Mapping[str, list[str]]) -> list[str]:
    """Text for text, as SSM does it; a list alone stands for its lines."""
    if isinstance(lines, str):
        alone = _VALUE.fullmatch(lines)
        return list(values[alone[1]]) if alone else _put_in([lines], values)
    return [_VALUE.sub(lambda found: "\n".join(values[found[1]]), line) for line in lines]
