"""packaging/pages: what a package has of docs/ leads to what the package has."""

import re
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"\]\(\s*<?([^()\s>]+)")


def headings(text):
    """The anchors that GitHub gives a page's headings."""
    titles = re.findall(r"^#+ +(.*)$", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


class Pages(unittest.TestCase):
    def test_no_relative_link_of_an_installed_page_is_dead(self):
        with tempfile.TemporaryDirectory() as directory:
            subprocess.run([ROOT / "packaging/pages", directory], check=True)
            there = {path.name: path.read_text(encoding="utf8") for path in Path(directory).iterdir()}
        self.assertIn("install.md", there)
        self.assertTrue(any("(engines.md" in text for text in there.values()), "links to pages beside are kept")
        dead = []
        for name, text in there.items():
            for target in LINK.findall(text):
                path, _, anchor = target.partition("#")
                if not re.match(r"[a-z]+:", target):
                    to = there.get(path or name)
                    if to is None or anchor and anchor not in headings(to):
                        dead.append(f"{name}: {target}")
        self.assertEqual(dead, [])
        self.assertIn("`docs/decisions/", "".join(there.values()), "what a page says of other files stays")


if __name__ == "__main__":
    unittest.main()
