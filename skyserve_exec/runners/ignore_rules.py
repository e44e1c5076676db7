"""The patterns of .skyignore and .gitignore files (gitignore(5)).

Room: executor. No I/O.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rule:
    """One pattern. `base` is the folder of its file, relative to the source and empty or ending with a slash."""

    base: str
    regex: re.Pattern[str]
    keeps: bool
    only_folders: bool


def parse(text: str, base: str) -> list[Rule]:
    """The rules of one file, in order."""
    rules = (_rule(line, base) for line in text.splitlines())
    return [rule for rule in rules if rule is not None]


def is_ignored(path: str, is_folder: bool, rules: Iterable[Rule]) -> bool:
    """Whether the last rule that fits leaves the path out; the caller does not look into folders that are left out."""
    ignored = False
    for rule in rules:
        applies = ignored == rule.keeps and (is_folder or not rule.only_folders) and path.startswith(rule.base)
        if applies and rule.regex.fullmatch(path, len(rule.base)):
            ignored = not rule.keeps
    return ignored


def _rule(line: str, base: str) -> Rule | None:
    # Spaces at the end count only when they are escaped.
    pattern = re.sub(r"(?<!\\) +$", "", line.rstrip("\r"))
    if not pattern or pattern.startswith("#"):
        return None
    keeps = pattern.startswith("!")
    pattern = pattern[1:] if keeps else pattern
    only_folders = pattern.endswith("/")
    pattern = pattern.rstrip("/")
    # A slash at the start or in the middle ties the pattern to the folder of its file.
    anywhere = "/" not in pattern
    pattern = pattern.removeprefix("/")
    if not pattern:
        return None
    try:
        regex = re.compile(("(?:.*/)?" if anywhere else "") + _translated(pattern), re.DOTALL)
    except re.error:
        return None  # such as a range that runs backwards: it fits nothing
    return Rule(base, regex, keeps, only_folders)


TOKEN = re.compile(
    r"(?P<any_folders>(?:^|(?<=/))\*\*/)|(?P<all_below>(?<=/)\*\*$)|(?P<stars>\*+)|(?P<one>\?)"
    r"|\[(?P<negated>[!^]?)(?P<set>\]?(?:\\.|[^\]\\])*)\]|\\(?P<escaped>.)|(?P<plain>.)",
    re.DOTALL,
)
FIXED = {"any_folders": "(?:.*/)?", "all_below": ".+", "stars": "[^/]*", "one": "[^/]"}


def _translated(pattern: str) -> str:
    """The pattern as a regular expression."""
    parts = []
    for token in TOKEN.finditer(pattern):
        if token["set"] is not None:
            members = re.sub(r"\\(.)", r"\1", token["set"])
            members = re.sub(r"([\\\[\]^&~|])", r"\\\1", members)
            parts.append(f"(?!/)[{'^' if token['negated'] else ''}{members}]")
        else:
            kind = token.lastgroup or ""
            parts.append(FIXED.get(kind) or re.escape(token[kind]))
    return "".join(parts)
