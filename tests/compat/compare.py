"""Compares an answer with the expected one: the differences, as texts."""

import json
import math
import re

# Most differences within one JSON body that are reported.
TOLD = 5


def differences(scenario, answer):
    """The differences of Trireme's answer to a scenario from the expected one; empty if there are none."""
    if scenario.divergence:
        return against_expectation(scenario.divergence["expect"], answer)
    if scenario.expect:
        return against_expectation(scenario.expect, answer)
    if scenario.recorded is None:
        return ["the scenario has neither an expectation nor a recorded answer"]
    return against_recording(scenario.compare, scenario.recorded, answer)


def against_expectation(expect, answer):
    """Compares with an expectation that was written by hand."""
    found = differ("status", expect["status"], answer.status)
    for name, value in expect.get("headers", {}).items():
        found += differ(f"header {name}", value, answer.headers.get(name))
    if "error" in expect:
        found += differ("body", {"error": expect["error"]}, parsed(answer.text))
    if "text" in expect:
        found += differ("body", expect["text"], answer.text)
    if "pattern" in expect and not re.fullmatch(expect["pattern"], answer.text, re.DOTALL):
        found.append(f"body: expected to match {expect['pattern']}\n    found {shown(answer.text)}")
    if "json" in expect:
        found += unequal(expect["json"], parsed(answer.text), expect.get("tolerance", 0))[:TOLD]
    if "subset" in expect:
        found += outside(expect["subset"], parsed(answer.text), "body")
    if "binary" in expect:
        found += differ("binary", expect["binary"], answer.binary.hex())
    return found


def against_recording(compare, recorded, answer):
    """Compares with the answer of the real server. Statuses, the header that splits bodies and the types of successes
    always count; texts and bytes are compared as they are unless `compare` says otherwise."""
    found = differ("status", recorded.status, answer.status)
    names = ["inference-header-content-length", "content-encoding"]
    if recorded.status == 200 and recorded.text:
        names.append("content-type")
    for name in names:
        # If the layout of the JSON is free, its length is free as well.
        if name != "inference-header-content-length" or compare.get("as", "text") == "text":
            found += differ(f"header {name}", recorded.headers.get(name), answer.headers.get(name))
    match compare.get("as", "text"):
        case "text":
            found += differ("body", recorded.text, answer.text)
        case "json":
            sides = [without(parsed(side.text), compare.get("ignore", [])) for side in (recorded, answer)]
            if compare.get("outputs") == "in any order":
                for side in sides:
                    side.get("outputs", []).sort(key=lambda output: output["name"])
            found += unequal(*sides, compare.get("tolerance", 0))[:TOLD]
        case "status":
            return found
    return found + differ("binary", recorded.binary.hex(), answer.binary.hex())


def differ(what, expected, found):
    if expected == found:
        return []
    return [f"{what}: expected {shown(expected)}\n    found    {shown(found)}"]


def shown(value):
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = text.encode(errors="backslashreplace").decode()
    return text if len(text) <= 600 else f"{text[:400]} … {text[-100:]} ({len(text)} characters)"


def parsed(text):
    try:
        return json.loads(text)
    except ValueError:
        return f"no JSON: {shown(text)}"


def unequal(a, b, tolerance, where="body"):
    """The places where two JSON values differ. Clients distinguish integers and doubles: `1` is not `1.0`."""
    if isinstance(a, dict) and isinstance(b, dict):
        found = [f"{where}.{key}: is missing" for key in a if key not in b]
        found += [f"{where}.{key}: is not expected" for key in b if key not in a]
        return found + [text for key in a if key in b for text in unequal(a[key], b[key], tolerance, f"{where}.{key}")]
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return [text for i, pair in enumerate(zip(a, b)) for text in unequal(*pair, tolerance, f"{where}.{i}")]
    if isinstance(a, float) and isinstance(b, float):
        if math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance) or (math.isnan(a) and math.isnan(b)):
            return []
    elif type(a) is type(b) and a == b:
        return []
    return [f"{where}: expected {shown(a)}\n    found    {shown(b)}"]


def without(value, paths):
    """`value` without the members that the dotted paths name; `*` is every element of an array."""
    for path in paths:
        *steps, last = path.split(".")
        places = [value]
        for step in steps:
            inner = [list(p) if step == "*" else [p.get(step)] if isinstance(p, dict) else [] for p in places]
            places = [place for group in inner for place in group]
        for place in places:
            if isinstance(place, dict):
                place.pop(last, None)
    return value


def outside(subset, value, where):
    """The parts of `subset` that are not in `value`. Objects may have more members; arrays may not. `<integer>`, `<number>`,
    `<string>` and `<any>` stand for any such value, `<absent>` for a member that must not be there."""
    if isinstance(subset, dict):
        if not isinstance(value, dict):
            return differ(where, subset, value)
        found = []
        for key, want in subset.items():
            if want == "<absent>":
                found += differ(f"{where}.{key}", "no such member", value[key]) if key in value else []
            elif key not in value:
                found.append(f"{where}.{key}: is missing in {shown(value)}")
            else:
                found += outside(want, value[key], f"{where}.{key}")
        return found
    if isinstance(subset, list):
        if not isinstance(value, list) or len(subset) != len(value):
            return differ(where, subset, value)
        return [text for index, want in enumerate(subset) for text in outside(want, value[index], f"{where}.{index}")]
    kinds = {"<integer>": int, "<number>": (int, float), "<string>": str, "<any>": object}
    if isinstance(subset, str) and subset in kinds:
        right = isinstance(value, kinds[subset]) and not (subset in ("<integer>", "<number>") and isinstance(value, bool))
        return [] if right else differ(where, subset, value)
    return unequal(subset, value, 0, where)
