"""Takes code blocks out of the text of a published post. Nothing of the posts is part of this project."""

import re
from pathlib import Path

# A block in fences, with the language behind the first one. Some posts have blanks behind their fences.
FENCED = re.compile(r"^ ?```(\w*) *\n(.*?)^ ?``` *$", re.MULTILINE | re.DOTALL)
# The line of a notebook that writes the rest of its cell to a file; it is not part of that file.
WRITE_FILE = re.compile(r"\A%%writefile +(\S.*)\n")


class Post:
    """A post, and the blocks of code in it."""

    def __init__(self, folder, number):
        self.name = number
        (path,) = Path(folder).glob(f"{number}_*.txt")
        self.text = path.read_bytes().decode("utf-8")
        self.blocks = [block for _, block in FENCED.findall(self.text)]

    def file(self, named):
        """The file that a cell of a notebook writes: the one whose path ends in this."""
        found = [(WRITE_FILE.match(block), block) for block in self.blocks]
        return self._one([block[match.end() :] for match, block in found if match and match[1].strip().endswith(named)], named)

    def block(self, *texts):
        """The only block with all of these texts in it."""
        return self._one([block for block in self.blocks if all(text in block for text in texts)], texts)

    def after(self, text):
        """The blocks that follow this text."""
        return [block for _, block in FENCED.findall(self.text[self.text.index(text) :])]

    def between(self, begin, end):
        """The text from the line that begins with `begin`, to before the line that is `end`."""
        start = re.search(rf"^{re.escape(begin)}", self.text, re.MULTILINE).start()
        return self.text[start : re.search(rf"^{re.escape(end)}$", self.text[start:], re.MULTILINE).start() + start]

    def _one(self, found, wanted):
        if len(found) != 1:
            raise AssertionError(f"post {self.name}: {len(found)} blocks with {wanted}, expected one")
        return found[0]
