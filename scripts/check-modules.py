#!/usr/bin/env python3
"""Checks the modules within each crate as check-dependencies.py checks crates: no circle between files, no arrow upwards.

The rule, for each crate:

- A file is a module. An arrow leads from a file to each file whose items it names, by `crate::`, `self::` or `super::` paths.
  A name that a file re-exports with `pub use` stands for the file that has the item.
- `mod child;` and `pub use child::Item;` are no arrows: a parent may declare and re-export its children.
- A child may use its parent's items where the parent uses none of the child's, and the other way round; never both.
- Among the children of one parent, whole folders counted as one, the arrows have no circle. So the children of each folder
  stand on one another in an order, and nothing uses what stands on it.

Tests (`#[cfg(test)]`, files and folders called `tests`) are left out. What the rule does not see: calls of a type's methods
whose `impl` blocks lie in several files.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Comments, texts and characters; lifetimes are not among them.
TOKEN = re.compile(
    r"""//[^\n]*|/\*.*?\*/|b?r(#+)".*?"\1|b?r"[^"]*"|b?"(?:[^"\\]|\\.)*"|b?'(?:[^'\\\n]|\\[^\n]{1,9}?)'""", re.S
)

# `use` with its tree.
USE = re.compile(r"^[ \t]*(pub(?:\([^)]*\))?\s+)?use\s+([\w:{}\s,*]+);", re.M)


def strip(text):
    """Rust code without comments, texts and tests: blocks after `#[cfg(test)]`."""
    text = TOKEN.sub(lambda found: '""' if found[0][0] not in "/'" else "", text)
    kept, position = [], 0
    for found in re.finditer(r"#\[cfg\((?:test|any\(test\b[^\]]*|all\(test\b[^\]]*)\)?\]", text):
        if found.start() < position:
            continue
        kept.append(text[position : found.start()])
        position = end_of_item(text, found.end())
    return "".join(kept) + text[position:]


def end_of_item(text, start):
    """The end of the item that begins at `start`: its closing brace, or its semicolon if that comes first."""
    depth = 0
    for index in range(start, len(text)):
        character = text[index]
        if character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                return index + 1
        elif character == ";" and depth == 0:
            return index + 1
    return len(text)


def split_list(body):
    """The members of a `{…}` list, at its own depth."""
    parts, depth, last = [], 0, 0
    for index, character in enumerate(body):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append(body[last:index])
            last = index + 1
    return [part for part in [*parts, body[last:]] if part.strip()]


def expand(tree):
    """The paths of a `use` tree, each as (names, name it gets here)."""
    tree = tree.strip()
    if "{" in tree:
        head, body = tree.split("{", 1)
        prefix = [name for name in head.strip().split("::") if name]
        for part in split_list(body[: body.rindex("}")]):
            for names, alias in expand(part.strip()):
                yield prefix + names, alias
        return
    path, _, alias = tree.partition(" as ")
    names = [name.strip() for name in path.strip().split("::") if name.strip()]
    yield names, alias.strip() or (names[-1] if names else "")


class Crate:
    def __init__(self, root):
        """`root` is the crate's lib.rs (or main.rs)."""
        self.source = root.parent
        self.text, self.children, self.uses, self.exports = {}, {}, {}, {}
        self.add((), root)

    def add(self, module, path):
        text = strip(path.read_text())
        self.text[module], self.children[module] = text, set()
        folder = path.parent if path.name in ("lib.rs", "main.rs", "mod.rs") else path.with_suffix("")
        for found in re.finditer(r"\bmod\s+(\w+)\s*;", text):
            name = found[1]
            for child in (folder / f"{name}.rs", folder / name / "mod.rs"):
                if child.exists() and name != "tests":
                    self.children[module].add(name)
                    self.add((*module, name), child)
                    break

    def read(self):
        for module, text in self.text.items():
            self.uses[module], self.exports[module] = [], {}
            for found in USE.finditer(text):
                for names, alias in expand(found[2]):
                    path = self.absolute(module, names)
                    if path is None:
                        continue
                    if found[1] and path[: len(module)] == module and len(path) > len(module):
                        self.exports[module][alias] = path
                    else:
                        self.uses[module].append(path)
                        if found[1]:
                            self.exports[module][alias] = path
            rest = USE.sub("", text)
            # An item that is re-exported and also used here.
            words = set(re.findall(r"\w+", rest))
            self.uses[module] += [path for alias, path in self.exports[module].items() if alias in words]
            for found in re.finditer(r"\b((?:crate|super|self)(?:::\w+)+)", rest):
                path = self.absolute(module, found[1].split("::"))
                if path is not None:
                    self.uses[module].append(path)
            for child in self.children[module]:
                for found in re.finditer(rf"(?<![\w:.]){child}::(\w+)", rest):
                    self.uses[module].append((*module, child, found[1]))

    def absolute(self, module, names):
        """The path from the crate's root; `None` for paths of other crates."""
        if not names:
            return None
        if names[0] == "crate":
            return tuple(names[1:])
        if names[0] == "self":
            return (*module, *names[1:])
        if names[0] == "super":
            base = module
            while names and names[0] == "super":
                base, names = base[:-1], names[1:]
            return (*base, *names)
        if names[0] in self.children[module]:
            return (*module, *names)
        return None

    def owner(self, path, depth=0):
        """The module that has the item, re-exports followed."""
        module, rest = (), list(path)
        while rest:
            if rest[0] in self.children[module]:
                module, rest = (*module, rest[0]), rest[1:]
            elif depth < 9 and rest[0] in self.exports[module]:
                return self.owner((*self.exports[module][rest[0]], *rest[1:]), depth + 1)
            else:
                break
        return module

    def arrows(self):
        self.read()
        return {
            (module, self.owner(path))
            for module, paths in self.uses.items()
            for path in paths
            if path and self.owner(path) != module
        }

    def circles(self):
        arrows = self.arrows()
        for parent in self.children:
            depth = len(parent)
            graph = {}
            for start, end in arrows:
                if start[:depth] != parent or end[:depth] != parent:
                    continue
                # The parent's own file is a node beside its children.
                graph.setdefault(start[: depth + 1], set()).add(end[: depth + 1])
            for circle in components(graph):
                yield sorted("::".join(module) or "crate" for module in circle)


def components(graph):
    """The strongly connected components of more than one node (Tarjan)."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph.get(node, ()):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            component = []
            while True:
                other = stack.pop()
                component.append(other)
                if other == node:
                    break
            if len(component) > 1:
                found.append(component)

    sys.setrecursionlimit(10_000)
    for node in list(graph):
        if node not in index:
            visit(node)
    return found


def roots():
    command = ["cargo", "metadata", "--format-version", "1", "--offline", "--no-deps"]
    metadata = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    for package in json.loads(metadata.stdout)["packages"]:
        libraries = [target for target in package["targets"] if set(target["kind"]) & {"lib", "rlib"}]
        programs = [target for target in package["targets"] if "bin" in target["kind"]]
        for target in libraries or programs[:1]:
            yield package["name"], Path(target["src_path"])


def main():
    faults, crates = [], 0
    for name, root in sorted(roots()):
        crates += 1
        faults += [f"{name}: a circle of {len(circle)}: {', '.join(circle)}" for circle in Crate(root).circles()]
    if "--arrows" in sys.argv:
        for name, root in roots():
            if name == sys.argv[-1]:
                for start, end in sorted(Crate(root).arrows()):
                    print("::".join(start) or "crate", "->", "::".join(end) or "crate")
        return
    for fault in faults:
        print(f"module rule: {fault}", file=sys.stderr)
    if faults:
        sys.exit(1)
    print(f"module rules hold for {crates} crates")


if __name__ == "__main__":
    main()
