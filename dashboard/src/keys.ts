// The keyboard: what each key does, and the page that says so.

import { h } from "./dom";
import { link } from "./route";

export const PAGES = [
  { page: "node", title: "Node" },
  { page: "memory", title: "Memory" },
  { page: "disks", title: "Disks" },
  { page: "findings", title: "Findings" },
  { page: "profiles", title: "Profiles" },
] as const;

const HELP: [string, string][] = [
  ["/", "filter containers"],
  ["↑ ↓ PgUp PgDn Home End", "walk through containers"],
  ["Enter", "open the container"],
  ["Esc", "leave the filter; back to all containers"],
  ["Tab, then ← →", "walk through the changes on a chart, with their reasons"],
  ["1 – 5", "node, memory, disks, findings, profiles"],
  ["[ ]", "shorter, longer time"],
  ["t", "theme"],
  ["?", "this help"],
];

export function help(): HTMLDialogElement {
  const close = h("button.plain", { type: "button" }, "Close");
  const dialog = h(
    "dialog.help", { "aria-label": "Keyboard" },
    h("h2", {}, "Keyboard"),
    h("dl.facts", {}, ...HELP.flatMap(([key, words]) => [h("dt", {}, ...key.split(" ").map((part) => (/^(Tab,|then|–)$/.test(part) ? ` ${part} ` : h("kbd", {}, part)))), h("dd", {}, words)])),
    h(
      "p.quiet", {},
      h("b", {}, "used"), " what it uses now. ", h("b", {}, "effective"), " what it can use now, and what its programs are shown. ", h("b", {}, "limit"), " what it may use at most. ",
      h("b", {}, "throttled"), " CPU that its quota held back. ", h("b", {}, "waiting"), " the part of the time that a task waited, as the kernel counts it (PSI). ",
      "CPUs have two decimals; KiB, MiB and GiB are powers of 1024. Times are this browser's; hover for UTC.",
    ),
    close,
  );
  close.addEventListener("click", () => dialog.close());
  return dialog;
}

export interface Actions {
  filter(): void;
  help(): void;
  theme(): void;
  /** One range shorter or longer. */
  range(step: number): void;
  back(): void;
}

export function listenKeys(actions: Actions): void {
  addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    const target = event.target as HTMLElement;
    const typing = target.matches("input, textarea, select");
    if (document.querySelector("dialog[open]")) return;
    if (event.key === "Escape") {
      if (typing) target.blur();
      else actions.back();
      return;
    }
    if (typing) return;
    const page = PAGES[Number(event.key) - 1];
    if (page) location.hash = link(page.page);
    else if (event.key === "/") actions.filter();
    else if (event.key === "?") actions.help();
    else if (event.key === "t") actions.theme();
    else if (event.key === "[") actions.range(-1);
    else if (event.key === "]") actions.range(1);
    else return;
    event.preventDefault();
  });
}
