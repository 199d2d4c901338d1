"""tools/house finds what it says it finds: small crates with one fault each."""

import importlib.machinery
import importlib.util
import tempfile
import unittest
from pathlib import Path

loader = importlib.machinery.SourceFileLoader("house", str(Path(__file__).resolve().parent.parent / "house"))
house = importlib.util.module_from_spec(importlib.util.spec_from_loader("house", loader))
loader.exec_module(house)

DOCUMENT = """
**`elbowroom-a`**: `low` and `high`.

- `unsafe` is only in `elbowroom-a/src/low`.

- Text is printed only in %s.
""" % ", ".join(f"`{path.removeprefix('crates/')}`" for path in sorted(house.PRINTERS))


class House(unittest.TestCase):
    def crate(self, **texts):
        """A crate of these files: `low__mod` is `src/low/mod.rs`."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        crate = Path(folder.name).resolve() / "crates/elbowroom-a"
        for name, text in {"lib": "mod low;\nmod high;\n", **texts}.items():
            path = crate / "src" / (name.replace("__", "/") + ".rs")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return [house.File(crate, path) for path in sorted(crate.rglob("*.rs"))]

    def circles(self, **texts):
        return [house.listing(group) for group in house.folder_circles(self.crate(**texts))]

    def test_folders_that_import_each_other_are_a_circle(self):
        low = "pub struct Low;\nuse crate::high::High;\n"
        high = "use crate::low::Low;\npub struct High(Low);\n"
        self.assertEqual(self.circles(low__mod=low, high__mod=high), ["high, low"])
        self.assertEqual(self.circles(low__mod="pub struct Low;\n", high__mod=high), [])

    def test_a_folder_and_a_file_beside_it_are_a_circle_too(self):
        high = "use crate::low::part::Part;\npub struct High(Part);\n"
        part = "pub struct Part;\nfn part() -> super::super::high::High { loop {} }\n"
        self.assertEqual(self.circles(low__mod="pub mod part;\n", low__part=part, high=high), ["high, low"])
        self.assertEqual(self.circles(low__mod="pub mod part;\n", low__part="pub struct Part;\n", high=high), [])

    def test_what_a_folder_hands_on_is_imported_from_it(self):
        low = "mod part;\npub use part::Part;\n"
        high = "pub struct High;\nfn high() -> crate::low::Part { loop {} }\n"
        part = "pub struct Part(crate::high::High);\n"
        self.assertEqual(self.circles(low__mod=low, low__part=part, high=high), ["high, low"])

    def test_a_circle_deeper_down_is_found(self):
        texts = {"low__mod": "mod inner;\nmod state;\n", "low__state": "pub struct State(super::inner::Rule);\n", "high__mod": ""}
        rule = "use super::super::state::State;\npub struct Rule(Box<State>);\n"
        self.assertEqual(self.circles(**texts, low__inner__mod="pub struct Rule;\n", low__inner__rule=rule), ["low::inner, low::state"])

    def test_two_files_of_one_folder_may_import_each_other(self):
        texts = {"low__mod": "mod a;\nmod b;\n", "low__a": "pub struct A(super::b::B);\n", "low__b": "pub struct B(Box<super::a::A>);\n"}
        self.assertEqual(self.circles(**texts, high__mod=""), [])

    def broken(self, document=DOCUMENT, **texts):
        found = []
        house.architecture({"elbowroom-a": self.crate(**texts)}, document, found)
        return found

    def test_what_the_document_lists_is_compared_with_the_code(self):
        low = "fn low() { unsafe { loop {} } }\n"
        self.assertEqual(self.broken(low__mod=low, high__mod=""), [])
        self.assertEqual(
            self.broken(low__mod="", high__mod=low),
            [
                "crates/elbowroom-a/src/high/mod.rs: unsafe, in a place that ARCHITECTURE.md does not list",
                "ARCHITECTURE.md: no unsafe in crates/elbowroom-a/src/low",
            ],
        )
        self.assertEqual(self.broken(low__mod=low, high__mod="", more__mod=""), ["ARCHITECTURE.md: elbowroom-a has a folder more that its paragraph does not name"])
        self.assertEqual(self.broken(DOCUMENT + "`Low::gone`", low__mod=low + "struct Low;\n", high__mod=""), ["ARCHITECTURE.md: Low::gone: no crate has the word gone"])
        without = DOCUMENT.replace("`elbowroom-kube/src/main.rs`", "")
        self.assertEqual(self.broken(without, low__mod=low, high__mod=""), ["ARCHITECTURE.md: crates/elbowroom-kube/src/main.rs prints, or does not, unlike tools/house says"])

    def test_a_path_that_is_not_there_is_named(self):
        found = []
        house.paths("GUIDE.md", "see `docs/gone.md`, `docs/here.md` and `lab/jobs/NAME.py`", lambda path: path == "docs/here.md", found)
        self.assertEqual(found, ["GUIDE.md: there is no docs/gone.md"])

    def test_a_command_with_a_path_of_others_is_found(self):
        self.assertTrue(house.REDIRECTS.search('format!("echo {to} > {file}")'))
        self.assertFalse(house.REDIRECTS.search('manual_fix(&["sync; echo 2 > /proc/sys/vm/drop_caches"])'))

    def test_words_for_persons_are_found_in_prose_and_not_in_code(self):
        self.assertEqual(house.persons("Nobody reads it, and somebody\nwaits."), ["Nobody", "somebody"])
        self.assertEqual(house.persons("It runs as `nobody`.\n```\nsudo -u nobody true\n```\n"), [])
        words = house.function_words("fn nobody_waits() {}\npub fn become_nobody() {}\nasync fn reads(nobody: Pid) {}")
        self.assertEqual(words, ["nobody waits", "reads"])


if __name__ == "__main__":
    unittest.main()
