"""Messages of the parser in plain words, on one line."""

import re

_UNION = "Does not validate against any of the Union subtypes"
_CLASS = re.compile(r"<class '(?:\w+\.)*(\w+)'>")
_LITERAL = re.compile(r"typing\.Literal\[([^\]]*)\]")


def plain(message: str) -> str:
    """A message on one line. Of a value that fits none of several types, jsonargparse lists all it has tried."""
    line = " ".join(part.strip() for part in message.splitlines())
    if _UNION in line:
        before, _, rest = line.partition(_UNION)
        _, _, tried = rest.partition("Errors:")
        tried, _, given = tried.partition("Given value type:")
        line = before + _reasons(tried, given.partition("Given value: ")[2].strip())
    line = re.sub(r"- Expected a path but \S+ either not accessible or invalid - ", "", line)
    line = re.sub(r"Expected a dot import path string: (\S+)", r"there is no class \1", line)
    line = re.sub(r'^Parser key "([^"]*)":', r"\1:", line)
    return re.sub(r"Problem with given class_path '(?:\w+\.)*(\w+)': ", r"\1: ", _CLASS.sub(r"\1", line))


def _reasons(tried: str, given: str) -> str:
    """What was expected, or what was wrong in particular."""
    parts = [part.strip(" -") for part in re.split(r"\s- ", f" {tried}") if part.strip(" -")]
    types = [part.removeprefix("Expected a ") for part in parts if part.startswith("Expected a <class")]
    types += [part.removeprefix("Expected a ") for part in parts if part.startswith("Expected a typing.Literal")]
    others = [part for part in parts if not part.startswith("Expected a ") or part.startswith("Expected a dot")]
    if others:
        return "; ".join(part.rpartition("callable class: ")[2] for part in others)
    wanted = [_LITERAL.sub(r"\1", _CLASS.sub(r"\1", kind)) for kind in types if "NoneType" not in kind]
    return f"expected {' or '.join(wanted)}, got {given}"
